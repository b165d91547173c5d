"""Jobs in containers: the command line, and what becomes of the container, by stand-ins for the engines.

A stand-in is as strict about options as the real engine. It checks the mounts and runs the command in a session of its
own with only the variables that it was told of, so that ending the client leaves the "container" running.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from specdeploy.errors import ConfigError, EnvironmentFault, ToolMissing
from specdeploy.system.container import ContainerJobs, ContainerSettings, container_argv
from specdeploy.system.container_command import client_env
from specdeploy.system.jobs import Job
from specdeploy.system.process import SubprocessRunner
from specdeploy.system.signals import Stopped, stopped_by

ROOT = Path(__file__).parents[3]
USER = f"{os.getuid()}:{os.getgid()}"
IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
DIGEST = "nvcr.io/nvidia/tritonserver@sha256:" + "0" * 64

ENGINE = r"""
import json, os, signal, subprocess, sys
from pathlib import Path

STATE = Path(__file__).parent / "state"
ENGINE = Path(sys.argv[0]).name
DOCKER = {"--name", "--gpus", "--device", "--security-opt", "--userns", "--shm-size", "--ulimit", "--user"}
DOCKER |= {"--mount", "--env"}
ALLOWED = {
    "docker": DOCKER - {"--device", "--userns"},
    "podman": DOCKER - {"--gpus"},
    "apptainer": {"--home", "--bind", "--env"},
}[ENGINE]
SWITCHES = {"docker": {"--rm"}, "podman": {"--rm"}, "apptainer": {"--cleanenv", "--nv"}}[ENGINE]


def fail(code, text):
    print(text, file=sys.stderr)
    raise SystemExit(code)


def parse(args):
    options = {}
    while args and args[0].startswith("-"):
        name, has_value, value = args.pop(0).partition("=")
        if name not in (ALLOWED if has_value else SWITCHES):
            fail(125, f"unknown flag: {name}")
        options.setdefault(name, []).append(value)
    return options, args


def mounts(options):
    for text in options.get("--mount", ()):
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        assert parts.pop("type") == "bind" and set(parts) <= {"source", "target", "readonly"}, text
        yield parts["source"], parts["target"], "readonly" not in parts
    for text in options.get("--bind", ()):
        source, target, rights = text.split(":")
        yield source, target, {"rw": True, "ro": False}[rights]


def variables(options):
    inside = {"PATH": os.environ["PATH"]}
    for text in options.get("--env", ()):
        name, given, value = text.partition("=")
        inside[name] = value if given else os.environ[name]
    if ENGINE == "apptainer":
        prefix = "APPTAINERENV_"
        inside |= {name[len(prefix):]: value for name, value in os.environ.items() if name.startswith(prefix)}
    return inside


def run(args):
    options, (image, *command) = parse(args)
    if image.endswith("absent:1"):
        fail(125, "Unable to find image 'absent:1' locally\n"
             "docker: Error response from daemon: pull access denied for absent, repository does not exist or may "
             "require 'docker login': denied: requested access to the resource is denied.")
    if image.endswith("absent.sif"):
        fail(255, "FATAL:   could not open image absent.sif: no such file or directory")
    made = list(mounts(options))
    for source, target, _ in made:
        if not os.path.exists(source):
            fail(125, f"docker: Error response from daemon: bind source path does not exist: {source}")
    (STATE / "last.json").write_text(json.dumps({"mounts": made, "options": options, "image": image}))
    try:
        process = subprocess.Popen(command, env=variables(options), start_new_session=ENGINE != "apptainer")
    except FileNotFoundError:
        fail(127, "docker: Error response from daemon: failed to create task for container: exec: "
             f"\"{command[0]}\": executable file not found in $PATH: unknown.")
    running = STATE / "running" / options.get("--name", ["unnamed"])[0]
    running.write_text(str(process.pid))
    code = process.wait()
    running.unlink(missing_ok=True)
    raise SystemExit(code if code >= 0 else 128 - code)


def remove(args):
    assert args[:2] == ["--force", "--volumes"] and len(args) == 3, args
    running = STATE / "running" / args[2]
    if not running.exists():
        fail(1, f"Error response from daemon: No such container: {args[2]}")
    os.killpg(int(running.read_text()), signal.SIGKILL)
    running.unlink()
    (STATE / "removed").write_text(args[2])


{"run": run, "exec": run, "rm": remove}[sys.argv[1]](sys.argv[2:])
"""


class Notes:
    """Writes down what it is told; *on_line* may raise."""

    def __init__(self, on_line=lambda text: None) -> None:
        self.events = []
        self._on_line = on_line

    def started(self, job):
        """A job begins."""
        self.events.append(("started", job.name))

    def line(self, job, text):
        """A line was printed."""
        self.events.append(("line", job.name, text))
        self._on_line(text)

    def ended(self, job, exit_code):
        """A job ended."""
        self.events.append(("ended", job.name, exit_code))


class Engines:
    """The folder with the stand-ins, and what they note."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = folder / "state"
        (self._state / "running").mkdir(parents=True)
        for name in ("docker", "podman", "apptainer"):
            path = folder / name
            path.write_text(f"#!{sys.executable}\n{ENGINE}")
            path.chmod(0o755)

    @property
    def running(self) -> list[str]:
        """The containers that run."""
        return [path.name for path in (self._state / "running").iterdir()]

    @property
    def was_removed(self) -> bool:
        """Whether a running container was removed."""
        return (self._state / "removed").exists()

    @property
    def last(self) -> dict:
        """What the last container was started with."""
        return json.loads((self._state / "last.json").read_text())


@pytest.fixture
def engines(tmp_path, monkeypatch):
    """The stand-ins, in front of everything else on PATH."""
    made = Engines(tmp_path / "engines")
    monkeypatch.setenv("PATH", str(made.folder), prepend=os.pathsep)
    return made


@pytest.fixture
def job(tmp_path):
    """Return a function that makes a job of a Python snippet, or one with other fields."""

    def make(name: str = "build", code: str = "", **fields) -> Job:
        argv = (sys.executable, "-c", code)
        return Job(**{"name": name, "argv": argv, "env": {}, "log": tmp_path / "log", "timeout_s": 60.0, **fields})

    return make


def jobs(engine: str = "docker", image: str = IMAGE, **settings) -> ContainerJobs:
    """Return what runs chains, with these settings."""
    return ContainerJobs(ContainerSettings(engine=engine, image=image, **settings), SubprocessRunner(grace_s=1.0))


def _plan(settings: ContainerSettings, **fields) -> tuple[str, ...]:
    made = Job(name="b", log=Path("/log"), timeout_s=1.0, **{"argv": ("trtllm-build", "--x"), "env": {}, **fields})
    return container_argv(settings, made, "NAME")


def test_dockers_command_line():
    """All of it: GPUs, limits, who we are, mounts at the same paths, variables by name, and then the image."""
    argv = _plan(
        ContainerSettings(image=DIGEST, extra_args=("--network=none",)),
        env={"HF_TOKEN": "secret", "LD_LIBRARY_PATH": "/opt/lib"},
        gpus=2,
        reads=(Path("/models/a b"),),
        writes=(Path("/engines"),),
    )

    assert argv == (
        *("docker", "run", "--rm", "--name=NAME", "--gpus=all", "--shm-size=1g"),
        *("--ulimit=memlock=-1", "--ulimit=stack=67108864", f"--user={USER}"),
        "--mount=type=bind,source=/engines,target=/engines",
        "--mount=type=bind,source=/models/a b,target=/models/a b,readonly",
        *("--env=PYTHONUNBUFFERED=1", "--env=HOME=/tmp", "--env=USER=specdeploy", "--env=LOGNAME=specdeploy"),
        *("--env=HF_TOKEN", "--env=LD_LIBRARY_PATH=/opt/lib"),
        *("--network=none", DIGEST, "trtllm-build", "--x"),
    )


@pytest.mark.parametrize(
    ("engine", "gpus", "expected"),
    [
        ("docker", "2", ["--gpus=2"]),
        ("docker", "device=1", ["--gpus=device=1"]),
        ("docker", "device=0,1", ['--gpus="device=0,1"']),
        ("podman", "all", ["--device=nvidia.com/gpu=all"]),
        ("podman", "2", ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1"]),
        ("podman", "device=3", ["--device=nvidia.com/gpu=3"]),
        ("apptainer", "all", ["--nv"]),
    ],
)
def test_how_each_engine_is_asked_for_gpus(engine, gpus, expected):
    """A job that needs none gets none."""
    settings = ContainerSettings(engine=engine, image=IMAGE, gpus=gpus)

    assert [arg for arg in _plan(settings, gpus=1) if "gpu" in arg or arg == "--nv"] == expected
    assert not [arg for arg in _plan(settings, gpus=0) if "gpu" in arg or arg == "--nv"]


def test_apptainers_command_line():
    """An image by name is fetched as Docker's are; a file is taken as it is. Chosen GPUs and variables go by prefix."""
    settings = ContainerSettings(engine="apptainer", image="/images/t.sif", gpus="device=2,3")
    fields = {"env": {"HF_TOKEN": "secret"}, "gpus": 1, "reads": (Path("/m"),), "writes": (Path("/e"),)}

    assert _plan(settings, **fields) == (
        *("apptainer", "exec", "--cleanenv", "--home=/tmp:/home/specdeploy", "--nv"),
        *("--bind=/e:/e:rw", "--bind=/m:/m:ro", "/images/t.sif", "trtllm-build", "--x"),
    )
    assert f"docker://{IMAGE}" in _plan(ContainerSettings(engine="apptainer", image=IMAGE))
    job = Job(name="b", argv=("x",), log=Path("/log"), timeout_s=1.0, env=fields["env"], gpus=1)
    assert client_env(settings, job) == {
        "APPTAINERENV_PYTHONUNBUFFERED": "1",
        "APPTAINERENV_PYTHONNOUSERSITE": "1",
        "APPTAINERENV_CUDA_VISIBLE_DEVICES": "2,3",
        "APPTAINERENV_HF_TOKEN": "secret",
    }


def test_another_user_keeps_the_images_home():
    """The image knows that user, and where their home is."""
    argv = _plan(ContainerSettings(image=IMAGE, user="root"))

    assert "--user=root" in argv
    assert not [arg for arg in argv if arg.startswith("--env=HOME")]


@pytest.mark.parametrize(
    ("engine", "path"), [("docker", "/a,b"), ("docker", '/a"b'), ("apptainer", "/a:b"), ("apptainer", "/a,b")]
)
def test_a_path_that_an_engine_cannot_take_is_named(engine, path):
    """Rather than split into something else."""
    with pytest.raises(EnvironmentFault, match="cannot be mounted"):
        _plan(ContainerSettings(engine=engine, image=IMAGE), reads=(Path(path),))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "rkt"}, "'rkt' is not one of docker, podman, apptainer"),
        ({"image": ""}, "not the name of a container image"),
        ({"image": "--privileged"}, "not the name of a container image"),
        ({"gpus": "0"}, "'0' are neither all"),
        ({"gpus": "0,1"}, "'0,1' are neither all"),
        ({"shm_size": "lots"}, "'lots' is not a size"),
        ({"engine": "apptainer", "user": "root"}, "leave the user empty"),
    ],
)
def test_settings_that_cannot_be(fields, message):
    """Refused before anything runs."""
    with pytest.raises(ConfigError, match=message):
        ContainerSettings(**{"image": IMAGE, **fields})


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer"])
def test_a_job_runs_in_a_container(engines, job, tmp_path, engine):
    """It reads and writes at the paths that it has outside, and its output, variables and exit code come through."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text("weights")
    (tmp_path / "out").mkdir()
    notes = Notes()
    code = (
        f"import os; open({str(tmp_path / 'out' / 'engine')!r}, 'w').write("
        f"open({str(tmp_path / 'in' / 'config.json')!r}).read()); print(os.environ['TOKEN']); raise SystemExit(3)"
    )
    made = job(
        code=code,
        env={"TOKEN": "a 'b'\n=$HOME"},
        gpus=1,
        reads=(tmp_path / "in",),
        writes=(tmp_path / "out",),
        promises=(tmp_path / "out" / "engine",),
    )

    jobs(engine).run_chain([made], notes)

    assert notes.events == [
        ("started", "build"),
        ("line", "build", "a 'b'"),
        ("line", "build", "=$HOME"),
        ("ended", "build", 3),
    ]
    assert (tmp_path / "out" / "engine").read_text() == "weights"
    inside, outside = str(tmp_path / "in"), str(tmp_path / "out")
    assert sorted(engines.last["mounts"]) == [[inside, inside, False], [outside, outside, True]]
    assert made.log.read_text().startswith(f"$ {engine} ")
    assert made.log.read_text().count("=$HOME") == 1, "a value stands on the command line"
    assert engines.running == []


def test_links_out_of_a_model_folder_are_mounted(engines, job, tmp_path):
    """A snapshot of a Hugging Face cache can be read."""
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc").write_text("{}")
    (tmp_path / "snapshot" / "config.json").symlink_to("../blobs/abc")

    jobs().run_chain([job(reads=(tmp_path / "snapshot",))], Notes())

    assert [mount[0] for mount in engines.last["mounts"]] == [str(tmp_path / "blobs"), str(tmp_path / "snapshot")]


def test_variables_that_the_client_reads_itself_are_not_set_for_it(engines, job):
    """A job's PATH must not decide which docker runs."""
    notes = Notes()
    made = job(code="import os; print(os.environ['PATH'], os.environ['HOME'])", env={"PATH": "/nowhere", "HOME": "/h"})

    jobs().run_chain([made], notes)

    assert notes.events[1] == ("line", "build", "/nowhere /h")


def test_a_failure_ends_the_chain(engines, job):
    """A listener that bears it does not make the next job run on what is not there."""
    notes = Notes()

    with pytest.raises(EnvironmentFault, match="convert ended with exit code 3"):
        jobs().run_chain([job("convert", "raise SystemExit(3)"), job("build")], notes)

    assert notes.events == [("started", "convert"), ("ended", "convert", 3)]


def test_a_time_out_removes_the_container(engines, job):
    """Ending the client would leave it running."""
    with pytest.raises(EnvironmentFault, match="longer than 1 s"):
        jobs().run_chain([job(code="import time; print('running'); time.sleep(600)", timeout_s=1.0)], Notes())

    assert engines.running == []
    assert engines.was_removed


def test_a_listener_that_raises_removes_the_container(engines, job):
    """Its error goes on its way afterwards; Ctrl-C takes the same road."""

    def interrupt(text: str) -> None:
        if text == "running":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jobs().run_chain([job(code="import time; print('running'); time.sleep(600)")], Notes(interrupt))

    assert engines.running == []
    assert engines.was_removed


def test_a_thread_that_is_stopped_removes_the_container(engines, job):
    """Chains run side by side in threads; when one fails, the others are asked to stop."""
    asked, left = threading.Event(), []

    def follow() -> None:
        notes = Notes(lambda text: asked.set() if text == "running" else None)
        with contextlib.suppress(Stopped), stopped_by(asked):
            jobs().run_chain([job(code="import time; print('running'); time.sleep(600)")], notes)
        left.extend(engines.running)

    thread = threading.Thread(target=follow)
    thread.start()
    thread.join(30)

    assert not thread.is_alive()
    assert left == []
    assert engines.was_removed


def test_sigterm_removes_the_container(engines, job, tmp_path):
    """A CI system that gives up leaves no GPU occupied."""
    running = tmp_path / "running"
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.unit.system.test_system_container import IMAGE, Notes, jobs\n"
        "from specdeploy.system.jobs import Job\n"
        "argv = (sys.executable, '-c', f'import time; open({sys.argv[1]!r}, \"w\"); time.sleep(600)')\n"
        "job = Job(name='b', argv=argv, env={}, log=Path(sys.argv[1] + '.log'), timeout_s=60.0)\n"
        "jobs().run_chain([job], Notes())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(running)], cwd=ROOT) as process:
        try:
            deadline = time.monotonic() + 30
            while not (running.exists() and engines.running) and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            code = process.wait(30)
        finally:
            process.kill()

    assert code == 128 + signal.SIGTERM
    assert engines.running == []
    assert engines.was_removed


def test_an_engine_that_is_not_here(job, tmp_path, monkeypatch):
    """Named, with the ways out."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ToolMissing, match="docker is not on PATH") as caught:
        jobs().run_chain([job()], Notes())

    assert "another engine" in caught.value.hint


@pytest.mark.parametrize(
    ("engine", "image", "hint"), [("docker", "absent:1", "log in"), ("apptainer", "/absent.sif", "path")]
)
def test_an_image_that_cannot_be_had(engines, job, engine, image, hint):
    """The engine's own words, and what to look at; the job did not end, since it never began."""
    notes = Notes()

    with pytest.raises(EnvironmentFault, match=rf"{engine} could not run build in {image}") as caught:
        jobs(engine, image).run_chain([job()], notes)

    assert hint in caught.value.hint
    assert notes.events[-1][0] == "line"


def test_a_program_that_the_image_lacks(engines, job):
    """The wrong image, most often."""
    with pytest.raises(EnvironmentFault, match="executable file not found") as caught:
        jobs().run_chain([job(argv=("trtllm-build-of-old",))], Notes())

    assert "right one" in caught.value.hint


def test_the_programs_own_127_is_its_own(engines, job):
    """Nothing was said by the engine: the code goes to the listener, with what it usually means."""
    notes = Notes()

    jobs().run_chain([job(code="raise SystemExit(127)")], notes)

    assert notes.events[-1] == ("ended", "build", 127)
    assert "the image does not have" in notes.events[-2][2]


def test_an_option_that_the_engine_does_not_know(engines, job):
    """From the settings; the engine says which."""
    with pytest.raises(EnvironmentFault, match="unknown flag: --nonsense"):
        jobs(extra_args=("--nonsense",)).run_chain([job()], Notes())


def test_a_missing_checkpoint_is_found_before_the_engine_runs(engines, job, tmp_path):
    """Some engines would mount an empty directory in its place."""
    notes = Notes()

    with pytest.raises(EnvironmentFault, match="gone, which build needs"):
        jobs().run_chain([job(reads=(tmp_path / "gone",))], notes)

    assert notes.events == []
