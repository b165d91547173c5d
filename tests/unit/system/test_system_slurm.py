"""Slurm without Slurm: the scripts as text, and what is made of answers that a healthy cluster seldom gives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from specdeploy.errors import ConfigError, EnvironmentFault, ToolMissing
from specdeploy.system.jobs import Job
from specdeploy.system.process import Captured
from specdeploy.system.slurm import SlurmJobs, SlurmSettings, chain_scripts
from specdeploy.system.slurm_client import SlurmClient
from specdeploy.system.slurm_script import exit_file, quote

UNKNOWN_JOB = Captured(exit_code=1, output="slurm_load_jobs error: Invalid job id specified")
NO_ACCOUNTS = Captured(exit_code=1, output="Slurm accounting storage is disabled")
DOWN = Captured(exit_code=1, output="squeue: error: Unable to contact slurm controller (connect failure)")


class Time:
    """A clock that goes on when somebody waits; *on_wait* is called with the seconds since the start."""

    def __init__(self, on_wait=lambda now: None) -> None:
        self.now = 0.0
        self._on_wait = on_wait

    def monotonic(self) -> float:
        """Return the seconds since the start."""
        return self.now

    def now_iso(self) -> str:
        """Return some date."""
        return "2026-01-31T09:30:00+00:00"

    def wait(self, seconds: float) -> None:
        """Let time go by."""
        assert seconds > 0
        self.now += seconds
        self._on_wait(self.now)


class FakeSlurm:
    """Answers as the client programs do.

    Args:
        states: By job number what squeue prints as state and reason, look by look; the last one stays. "" is a job
            that was forgotten.
        sacct: By job number what sacct prints.
        scontrol: By job number what scontrol prints.
    """

    def __init__(self, states, *, sacct=None, scontrol=None, sbatch=None) -> None:
        self.states = {number: list(looks) for number, looks in states.items()}
        self.sacct, self.scontrol, self.sbatch = sacct, scontrol or {}, list(sbatch or ())
        self.calls: list[list[str]] = []
        self.cancelled: list[str] = []
        self._submitted = 0

    def capture(self, argv) -> Captured:
        """Answer as the program would."""
        self.calls.append(list(argv))
        while argv[0] == "env" or argv[0].startswith("--unset="):
            argv = argv[1:]
        return getattr(self, f"_{argv[0]}")(argv)

    def _sbatch(self, argv) -> Captured:
        self._submitted += 1
        if self.sbatch and (answer := self.sbatch.pop(0)) is not None:
            return answer
        return Captured(exit_code=0, output=f"sbatch: a greeting of the site\n{self._submitted}")

    def _squeue(self, argv) -> Captured:
        (numbers,) = (arg.removeprefix("--jobs=").split(",") for arg in argv if arg.startswith("--jobs="))
        if "--states=all" not in argv:
            left = [number for number in numbers if number not in self.cancelled]
            return Captured(exit_code=0, output="\n".join(f"{number}|RUNNING|None" for number in left))
        looks = self.states[numbers[0]]
        answer = looks.pop(0) if len(looks) > 1 else looks[0]
        if isinstance(answer, Captured):
            return answer
        rows = [f"{numbers[0]}|{answer}"] if isinstance(answer, str) else answer
        return Captured(exit_code=0, output="\n".join(rows)) if answer else UNKNOWN_JOB

    def _sacct(self, argv) -> Captured:
        (number,) = (arg.removeprefix("--jobs=") for arg in argv if arg.startswith("--jobs="))
        return NO_ACCOUNTS if self.sacct is None else Captured(exit_code=0, output=self.sacct.get(number, ""))

    def _scontrol(self, argv) -> Captured:
        text = self.scontrol.get(argv[-1])
        return UNKNOWN_JOB if text is None else Captured(exit_code=0, output=text)

    def _scancel(self, argv) -> Captured:
        self.cancelled += argv[2:]
        return Captured(exit_code=0, output="")


class Notes:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events = []

    def started(self, job):
        """A job begins."""
        self.events.append(("started", job.name))

    def line(self, job, text):
        """A line was printed."""
        self.events.append(("line", job.name, text))

    def ended(self, job, exit_code):
        """A job ended."""
        self.events.append(("ended", job.name, exit_code))


@pytest.fixture
def job(tmp_path):
    """Return a function that makes a job."""

    def make(name: str = "build", **fields) -> Job:
        defaults = {"argv": ("true",), "env": {}, "log": tmp_path / "build.log", "timeout_s": 3600.0}
        return Job(**{"name": name, **defaults, **fields})

    return make


def run(slurm: FakeSlurm, jobs, *, settings=None, time=None, environ=None, which=lambda name: Path("/bin", name)):
    """Run a chain against the fake and return what the listener was told."""
    notes, clock = Notes(), time or Time()
    client = SlurmClient(capture=slurm.capture, which=which, environ=environ or {})
    SlurmJobs(settings or SlurmSettings(), client=client, clock=clock, wait=clock.wait).run_chain(jobs, notes)
    return notes.events


def _shown(number: str, state: str, code: str = "0:0", reason: str = "None") -> str:
    return f"JobId={number} JobName=x JobState={state} Reason={reason} Requeue=0 ExitCode={code} RunTime=00:00:01"


def test_the_script_of_a_job(tmp_path):
    """All of it: the options, what leaves the exit code, the variables, the site's own lines, and the command."""
    settings = SlurmSettings(
        partition="h200", account="ml", qos="high", cpus_per_task=16, mem="200G",
        extra_lines=("#SBATCH --exclusive", "--constraint=a|b", "module load cuda"),
    )  # fmt: skip
    job = Job(
        name="build: target", argv=("trtllm-build", "--x", "a b"), env={"TOKEN": "it's"},
        log=Path("/logs/100%/b b.log"), timeout_s=5401.0, gpus=2,
    )  # fmt: skip

    (script,) = chain_scripts(settings, [job])

    assert script.path == Path("/logs/100%/b b.1.sbatch")
    assert script.text == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=specdeploy-build-target\n"
        '#SBATCH --output="/logs/100%%/b b.log"\n'
        "#SBATCH --open-mode=append\n"
        "#SBATCH --nodes=1\n"
        "#SBATCH --ntasks=1\n"
        "#SBATCH --time=91\n"
        "#SBATCH --partition=h200\n"
        "#SBATCH --account=ml\n"
        "#SBATCH --qos=high\n"
        "#SBATCH --gres=gpu:2\n"
        "#SBATCH --cpus-per-task=16\n"
        "#SBATCH --mem=200G\n"
        "#SBATCH --no-requeue\n"
        "#SBATCH --exclusive\n"
        "#SBATCH --constraint=a|b\n"
        "\n"
        "exit_file='/logs/100%/b b.'$SLURM_JOB_ID.exit\n"
        """trap 'echo "$?" > "$exit_file.new" && mv -f "$exit_file.new" "$exit_file"' EXIT\n"""
        "export PYTHONUNBUFFERED=1\n"
        "export TOKEN='it'\"'\"'s'\n"
        "module load cuda\n"
        "trtllm-build --x 'a b'\n"
    )


def test_the_script_in_a_container(job):
    """A step by way of pyxis: the image as enroot spells it, the mounts, and the names of the job's variables."""
    settings = SlurmSettings(container_image="nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3", cpus_per_task=8)
    made = job(env={"HF_TOKEN": "x"}, reads=(Path("/models/a b"),), writes=(Path("/engines"),))

    (script,) = chain_scripts(settings, [made])

    assert script.text.splitlines()[-1] == (
        "srun --ntasks=1 --cpus-per-task=8"
        " '--container-image=nvcr.io#nvidia/tritonserver:26.07-trtllm-python-py3'"
        " '--container-mounts=/engines:/engines:rw,/models/a b:/models/a b:ro'"
        " --container-writable --no-container-mount-home --container-env=PYTHONUNBUFFERED,HF_TOKEN true"
    )


@pytest.mark.parametrize("image", ["/images/t.sqsh", "ubuntu:24.04", "nvcr.io#nvidia/tritonserver:26.07", "user/image"])
def test_other_images_keep_their_name(job, image):
    """A file, an image of the default registry, or one that is spelled for enroot already."""
    (script,) = chain_scripts(SlurmSettings(container_image=image), [job()])

    assert f"--container-image={image}" in script.text


def test_the_check_of_the_promised_files_is_an_array(job):
    """One task a file, small, without GPUs, where the jobs run; none where nothing was promised or it is not wanted."""
    made = job(gpus=2, promises=(Path("/e/rank0.engine"), Path("/e/config.json")))
    settings = SlurmSettings(partition="h200", time_limit="12:00:00", cpus_per_task=32, mem="1T")

    script = chain_scripts(settings, [job("convert"), made])[-1]

    assert script.tasks == 2
    assert "files=(/e/rank0.engine /e/config.json)" in script.text
    options = [line for line in script.text.splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --partition=h200", "#SBATCH --time=5", "#SBATCH --mem=256M"} <= set(options)
    assert not [line for line in options if "gres" in line or "cpus" in line]
    assert len(chain_scripts(SlurmSettings(verify=False), [made])) == 1
    assert len(chain_scripts(SlurmSettings(), [job()])) == 1


@pytest.mark.parametrize(
    "text", ["", "plain", "it's", "a\nb", "\r\n", "\t'\\x41'", "ü$HOME`id`", "\x1b[0m", "\\n\n", "!x\n"]
)
def test_bash_reads_a_word_as_it_was(text):
    """Quoted without a carriage return, for whose sake sbatch refuses a script."""
    quoted = quote(text)
    result = subprocess.run(["bash", "-c", f"printf %s {quoted}"], capture_output=True, timeout=30, check=True)

    assert result.stdout.decode() == text
    assert "\r" not in quoted


@pytest.mark.parametrize(
    ("fields", "settings", "message"),
    [
        ({"env": {"not-a-name": "x"}}, {}, "variable called 'not-a-name'"),
        ({"argv": ("a\0b",)}, {}, "NUL"),
        ({"log": Path("/a\nb/log")}, {}, "cannot take the output"),
        ({"log": Path("/a\\b/log")}, {}, "cannot take the output"),
        ({"reads": (Path("/a,b"),)}, {"container_image": "i"}, "comma or a colon"),
        ({}, {"partition": "a\nb"}, "cannot take the partition"),
    ],
)
def test_what_no_script_can_say_is_refused(job, fields, settings, message):
    """Before anything is submitted."""
    with pytest.raises(ConfigError, match=message):
        chain_scripts(SlurmSettings(**settings), [job(**fields)])


@pytest.mark.parametrize("fields", [{"poll_s": 0.0}, {"extra_lines": ("a\nb",)}])
def test_settings_that_cannot_be(fields):
    """Refused where they are made."""
    with pytest.raises(ConfigError):
        SlurmSettings(**fields)


def test_a_chain_is_submitted_at_once(job):
    """Each depends on the one before it, and goes away when that cannot be met; the check is the last."""
    slurm = FakeSlurm(
        {"1": ["COMPLETED|None"], "2": ["COMPLETED|None"], "3": [["3_0|COMPLETED|None"]]},
        scontrol={
            "1": _shown("1", "COMPLETED"),
            "2": _shown("2", "COMPLETED"),
            "3": _shown("4", "COMPLETED") + " ArrayJobId=3 ArrayTaskId=0",
        },
    )

    events = run(slurm, [job("convert"), job("build", promises=(Path("/e"),))])

    submitted = [call for call in slurm.calls if call[0] == "sbatch"]
    assert [[arg for arg in call if arg.startswith(("--dep", "--kill", "--array"))] for call in submitted] == [
        [],
        ["--dependency=afterok:1", "--kill-on-invalid-dep=yes"],
        ["--dependency=afterok:2", "--kill-on-invalid-dep=yes", "--array=0-0"],
    ]
    assert slurm.calls[:3] == submitted
    assert events == [("started", "convert"), ("ended", "convert", 0), ("started", "build"), ("ended", "build", 0)]
    assert slurm.cancelled == []


def test_reasons_are_told_when_they_change(job):
    """In words where they are known; a start is told once."""
    looks = [
        "PENDING|Priority",
        "PENDING|Priority",
        "PENDING|Resources",
        "RUNNING|None",
        "RUNNING|None",
        "COMPLETED|None",
    ]

    events = run(FakeSlurm({"1": looks}, scontrol={"1": _shown("1", "COMPLETED")}), [job()])

    assert [event[0] for event in events] == ["line", "line", "started", "ended"]
    assert "Slurm job 1 waits (Priority): jobs of higher priority" in events[0][2]
    assert "(Resources)" in events[1][2]


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({"sacct": {"1": "1|FAILED|7:0|None"}}, 7),
        ({"sacct": {"1": "1|RUNNING|0:0|None"}, "scontrol": {"1": _shown("1", "FAILED", "7:0")}}, 7),
        ({"sacct": {"1": "1|FAILED|0:9|None"}}, -9),
        ({"sacct": {"1": "1|FAILED|139:0|None"}}, -11),
        ({"sacct": {"1": "1|FAILED|255:0|None"}}, 255),
        ({"scontrol": {"1": _shown("1", "FAILED", "0:9", "JobLaunchFailure")}}, -9),
    ],
)
def test_how_a_job_ended(job, answers, code):
    """By the accounts, or by the controller where those are off or behind."""
    assert run(FakeSlurm({"1": ["RUNNING|None", ""]}, **answers), [job()])[-1] == ("ended", "build", code)


def test_a_cluster_that_remembers_nothing(job):
    """The script left its exit code in a file; it is not kept."""
    made = job()

    def leave(now: float) -> None:
        if now > 20:
            exit_file(made.log, "1").write_text("7\n")

    events = run(FakeSlurm({"1": ["RUNNING|None", ""]}), [made], time=Time(leave))

    assert events[-1] == ("ended", "build", 7)
    assert not exit_file(made.log, "1").exists()


def test_a_job_of_which_nothing_is_left(job):
    """An error after a minute, not a guess."""
    with pytest.raises(EnvironmentFault, match=r"Slurm job 1 \(build\) has left the queue, and nothing tells"):
        run(FakeSlurm({"1": ["RUNNING|None", ""]}), [job()])


@pytest.mark.parametrize(
    ("row", "message", "hint"),
    [
        ("CANCELLED by 1000|0:15|None", r"CANCELLED \(by 1000\)", "Somebody"),
        ("TIMEOUT|0:0|None", "TIMEOUT", "time limit"),
        ("NODE_FAIL|1:0|None", "NODE_FAIL", "node failed"),
        ("OUT_OF_MEMORY|0:125|OutOfMemory", r"OUT_OF_MEMORY \(OutOfMemory\)", "memory"),
        ("FAILED|0:1|BadConstraints", "BadConstraints", "No node has"),
        ("FAILED|0:53|None", "could not be started on its node", "disk that the nodes see"),
        ("PREEMPTED|0:0|None", "PREEMPTED", "priority"),
    ],
)
def test_a_job_that_did_not_end_by_itself(job, row, message, hint):
    """Each state in its own words, with the job's number and what to do; what waits behind it is cancelled."""
    slurm = FakeSlurm({"1": ["RUNNING|None", ""]}, sacct={"1": f"1|{row}"})

    with pytest.raises(EnvironmentFault, match=message) as caught:
        run(slurm, [job(), job("next")])

    assert "Slurm job 1 (build)" in caught.value.message
    assert hint in caught.value.hint
    assert slurm.cancelled == ["2"]


def test_a_controller_that_is_restarted_is_waited_for(job):
    """Said once, and the chain goes on when it answers."""
    looks = ["RUNNING|None", DOWN, DOWN, "RUNNING|None", "COMPLETED|None"]

    events = run(FakeSlurm({"1": looks}, scontrol={"1": _shown("1", "COMPLETED")}), [job()])

    assert [event[0] for event in events] == ["started", "line", "ended"]
    assert "Unable to contact slurm controller" in events[1][2]


def test_a_controller_that_stays_down_ends_the_chain(job):
    """After ten minutes, and cancelling is tried all the same."""
    slurm, time = FakeSlurm({"1": ["RUNNING|None", DOWN]}), Time()

    with pytest.raises(EnvironmentFault, match="queue could not be read") as caught:
        run(slurm, [job()], time=time)

    assert time.now == pytest.approx(600, abs=10)
    assert "slurmctld" in caught.value.hint
    assert slurm.cancelled == ["1"]


def test_a_job_that_runs_too_long_is_cancelled(job):
    """Counted from its start, not from when it was submitted."""
    slurm, time = FakeSlurm({"1": [*["PENDING|Priority"] * 100, "RUNNING|None"]}), Time()

    with pytest.raises(EnvironmentFault, match="ran longer than 60 s"):
        run(slurm, [job(timeout_s=60.0)], time=time)

    assert time.now == pytest.approx(100 * 5 + 60, abs=10)
    assert slurm.cancelled == ["1"]


def test_a_submission_that_fails_leaves_nothing(job):
    """Those before it are cancelled."""
    refusal = Captured(exit_code=1, output="sbatch: error: Batch job submission failed: Invalid qos specification")
    slurm = FakeSlurm({}, sbatch=[None, refusal])

    with pytest.raises(EnvironmentFault, match="Invalid qos specification") as caught:
        run(slurm, [job("convert"), job("build")])

    assert "sacctmgr" in caught.value.hint
    assert "1" in slurm.cancelled


def test_a_submission_without_an_answer_is_cancelled_by_name(job):
    """Slurm may have taken it: its number is not known, but its name is nobody else's."""
    slurm = FakeSlurm({}, sbatch=[Captured(exit_code=None, output="")])

    with pytest.raises(EnvironmentFault, match="no answer in 60 s"):
        run(slurm, [job()])

    (name,) = (arg for arg in slurm.calls[0] if arg.startswith("--job-name="))
    assert slurm.cancelled == [name.replace("--job-name", "--name")]
    assert name != "--job-name=specdeploy-build"


def test_options_in_the_environment_do_not_win(job):
    """They would come before the script's; what the settings leave open may come from there."""
    environ = {"SBATCH_PARTITION": "a", "SBATCH_ACCOUNT": "b", "SBATCH_OUTPUT": "c", "SQUEUE_USERS": "d", "HOME": "/"}
    slurm = FakeSlurm({"1": ["COMPLETED|None"]}, scontrol={"1": _shown("1", "COMPLETED")})

    run(slurm, [job()], settings=SlurmSettings(partition="mine"), environ=environ)

    assert slurm.calls[0][:4] == ["env", "--unset=SBATCH_PARTITION", "--unset=SBATCH_OUTPUT", "sbatch"]
    assert slurm.calls[1][:3] == ["env", "--unset=SQUEUE_USERS", "squeue"]


def test_slurm_is_not_here(job):
    """Named, before anything is written."""
    made = job()

    with pytest.raises(ToolMissing, match="sbatch, squeue, scontrol, scancel are not on PATH"):
        run(FakeSlurm({}), [made], which=lambda name: None)

    assert not list(made.log.parent.iterdir())


def test_a_check_that_was_cancelled_is_no_missing_file(job):
    """Nothing is known of the file then."""
    slurm = FakeSlurm(
        {"1": ["COMPLETED|None"], "2": [["2_0|CANCELLED|None"]]},
        sacct={"1": "1|COMPLETED|0:0|None", "2": "2_0|CANCELLED by 0|0:0|None"},
    )

    with pytest.raises(EnvironmentFault, match="Slurm job 2_0") as caught:
        run(slurm, [job(promises=(Path("/e"),))])

    assert "missing" not in caught.value.message
