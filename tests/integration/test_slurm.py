"""Chains of jobs on a real Slurm cluster of one node: what is told, what is left behind, and what went wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from specdeploy.errors import EnvironmentFault
from specdeploy.system.jobs import Job
from specdeploy.system.signals import Stopped, stopped_by
from specdeploy.system.slurm import SlurmJobs, SlurmSettings
from tests.slurm_cluster import Cluster, missing

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).parents[2]
FAST = SlurmSettings(poll_s=0.2)
ODD = "a 'b' \"c\" $HOME `id` \\ # ; & ü \t tab\nline\r\nend %j !"


class Notes:
    """Writes down what it is told; *on_line* may act on a line, or raise."""

    def __init__(self, on_line=lambda text: None) -> None:
        self.events: list[tuple[str, ...]] = []
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

    def lines(self, name: str) -> list[str]:
        """Return what a job printed, without what the runner said about it."""
        own = [event[2] for event in self.events if event[:2] == ("line", name)]
        return [text for text in own if not text.startswith("Slurm job")]

    def without_lines(self) -> list[tuple[str, ...]]:
        """Return the starts and ends."""
        return [event for event in self.events if event[0] != "line"]


@pytest.fixture(scope="module")
def cluster():
    """A cluster for the tests of this file."""
    if (reason := missing()) is not None:
        pytest.skip(f"slurm tier: {reason}")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, Cluster(Path(folder)) as running:
        yield running


@pytest.fixture(autouse=True)
def _client_environment(cluster, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))


@pytest.fixture
def job(tmp_path):
    """Return a function that makes a job of a bash or Python snippet; the log's folder has an odd name."""

    def make(name: str, code: str, *, python: bool = False, **fields) -> Job:
        argv = (sys.executable, "-c", code) if python else ("bash", "-c", code)
        log = tmp_path / "logs of 'it' 100%j \"#" / f"{name} it.log"
        return Job(**{"name": name, "argv": argv, "env": {}, "log": log, "timeout_s": 60.0, **fields})

    return make


def _exists(path: Path, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return path.exists()


def test_a_chain_runs_in_order(cluster, job, tmp_path):
    """The second sees what the first wrote; lines and exit codes come in order, and each has its log."""
    engine = tmp_path / "engine.bin"
    notes = Notes()
    jobs = [
        job("convert", f"echo converting; echo weights > {engine}; echo converted"),
        job("build", f"cat {engine}; printf 'no end of line'", promises=(engine,), writes=(tmp_path,)),
    ]

    SlurmJobs(FAST).run_chain(jobs, notes)

    assert notes.without_lines() == [
        ("started", "convert"),
        ("ended", "convert", 0),
        ("started", "build"),
        ("ended", "build", 0),
    ]
    assert notes.lines("convert") == ["converting", "converted"]
    assert notes.lines("build")[:2] == ["weights", "no end of line"]
    assert notes.lines("build")[2].startswith(f"{engine}: 8 bytes on ")
    assert jobs[0].log.read_text() == "converting\nconverted\n"
    assert jobs[1].log.read_text() == "weights\nno end of line"
    assert cluster.queue() == []
    assert not list(jobs[0].log.parent.glob("*.exit*"))


def test_a_failure_ends_the_chain(cluster, job, tmp_path):
    """The listener gets the program's own exit code; what should follow never runs and does not wait for ever."""
    second = tmp_path / "second"
    notes = Notes()

    with pytest.raises(EnvironmentFault, match="convert ended with exit code 7"):
        SlurmJobs(FAST).run_chain([job("convert", "echo oh; exit 7"), job("build", f"touch {second}")], notes)

    assert notes.without_lines() == [("started", "convert"), ("ended", "convert", 7)]
    assert cluster.queue() == []
    assert not second.exists()


def test_a_signal_is_told_by_its_number(job):
    """As for a program that runs here."""
    notes = Notes()

    SlurmJobs(FAST).run_chain([job("convert", "kill -SEGV $$")], notes)

    assert notes.without_lines()[-1] == ("ended", "convert", -signal.SIGSEGV)


def test_a_cancelled_job_is_no_failed_one(cluster, job):
    """Somebody runs scancel: the error names the job and the state, and what waits behind it goes, too."""

    def cancel_the_first(text: str) -> None:
        if text == "running":
            cluster.run("scancel", min(cluster.queue(), key=int))

    notes = Notes(cancel_the_first)

    with pytest.raises(EnvironmentFault, match=r"Slurm job \d+ \(convert\) ended in the state CANCELLED"):
        SlurmJobs(FAST).run_chain([job("convert", "echo running; sleep 60"), job("build", "true")], notes)

    assert notes.without_lines() == [("started", "convert")]
    assert cluster.queue() == []


def test_a_listener_that_raises_empties_the_queue(cluster, job):
    """The running job and the waiting one are cancelled before the error goes on its way."""

    def stop(text: str) -> None:
        if text == "running":
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        SlurmJobs(FAST).run_chain([job("convert", "echo running; sleep 60"), job("build", "true")], Notes(stop))

    assert cluster.queue() == []


def test_a_thread_that_is_stopped_empties_the_queue(cluster, job):
    """Chains run side by side in threads; when one fails, the others are asked to stop."""
    asked, left = threading.Event(), []

    def follow() -> None:
        notes = Notes(lambda text: asked.set() if text == "running" else None)
        with contextlib.suppress(Stopped), stopped_by(asked):
            SlurmJobs(FAST).run_chain([job("convert", "echo running; sleep 60"), job("build", "true")], notes)
        left.extend(cluster.queue())

    thread = threading.Thread(target=follow)
    thread.start()
    thread.join(30)

    assert not thread.is_alive()
    assert asked.is_set()
    assert left == []


def test_a_signal_empties_the_queue(cluster, job, tmp_path):
    """SIGTERM for the process that follows the chain also ends the chain."""
    running = tmp_path / "running"
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from specdeploy.system.jobs import Job\n"
        "from specdeploy.system.slurm import SlurmJobs, SlurmSettings\n"
        "from tests.integration.test_slurm import Notes\n"
        "argv = ('bash', '-c', f'touch {sys.argv[1]}; sleep 60')\n"
        "job = Job(name='j', argv=argv, env={}, log=Path(sys.argv[1] + '.log'), timeout_s=60.0)\n"
        "SlurmJobs(SlurmSettings(poll_s=0.2)).run_chain([job, job], Notes())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(running)], cwd=ROOT) as process:
        try:
            assert _exists(running)
            process.send_signal(signal.SIGTERM)
            code = process.wait(30)
        finally:
            process.kill()

    assert code == 128 + signal.SIGTERM
    assert cluster.queue() == []


def test_a_job_that_runs_too_long_is_ended(cluster, job):
    """To the second, although Slurm counts in minutes."""
    with pytest.raises(EnvironmentFault, match=r"Slurm job \d+ \(convert\) ran longer than 0.5 s"):
        SlurmJobs(FAST).run_chain([job("convert", "echo running; sleep 60", timeout_s=0.5)], Notes())

    assert cluster.queue() == []


def test_variables_and_arguments_arrive_intact(job, tmp_path):
    """Whatever characters they hold; and nobody else can read the script, which may hold secrets."""
    out = tmp_path / "out"
    code = "import os, sys; open(sys.argv[1], 'w', newline='').write(os.environ['ODD'] + '|' + sys.argv[2])"
    made = job("convert", code, python=True, env={"ODD": ODD})
    made = job("convert", "", argv=(*made.argv, str(out), ODD), env={"ODD": ODD})

    SlurmJobs(FAST).run_chain([made], Notes())

    assert out.read_bytes().decode() == f"{ODD}|{ODD}"
    scripts = list(made.log.parent.glob("*.sbatch"))
    assert [path.stat().st_mode & 0o777 for path in scripts] == [0o600]


def test_a_promised_file_that_no_node_sees_is_named(cluster, job, tmp_path):
    """Each is looked for on a node; an empty one counts as missing."""
    present, absent, empty = (tmp_path / name for name in ("present file", "absent", "empty"))
    code = f"echo x > '{present}'; touch {empty}"
    made = job("build", code, promises=(present, absent, empty))
    notes = Notes()

    with pytest.raises(EnvironmentFault, match="missing or empty") as caught:
        SlurmJobs(FAST).run_chain([made], notes)

    assert str(absent) in caught.value.message
    assert str(empty) in caught.value.message
    assert str(present) not in caught.value.message
    assert notes.without_lines()[-1] == ("ended", "build", 0)
    assert cluster.queue() == []


def test_gpus_are_asked_for(cluster, job):
    """A job that needs GPUs gets that many; the check of its files gets none."""
    notes = Notes()
    code = "scontrol --oneliner show job $SLURM_JOB_ID"

    SlurmJobs(FAST).run_chain([job("build", code, gpus=2), job("look", code)], notes)

    assert "TresPerNode=gres:gpu:2" in notes.lines("build")[0]
    assert "TresPerNode" not in notes.lines("look")[0]


def test_more_gpus_than_there_are(cluster, job):
    """Refused when submitted, with what to do; the job before it, which Slurm took already, does not stay."""
    with pytest.raises(EnvironmentFault, match="did not take the job specdeploy-build") as caught:
        SlurmJobs(FAST).run_chain([job("convert", "sleep 60"), job("build", "true", gpus=7)], Notes())

    assert "not available" in caught.value.message
    assert "sinfo" in caught.value.hint
    assert cluster.queue() == []


def test_an_unknown_partition(cluster, job):
    """Slurm's own words, and where to look."""
    with pytest.raises(EnvironmentFault, match="invalid partition specified: nope") as caught:
        SlurmJobs(SlurmSettings(partition="nope")).run_chain([job("convert", "true")], Notes())

    assert "sinfo" in caught.value.hint


def test_a_controller_that_is_down(job, tmp_path, monkeypatch):
    """Nothing listens there: the error says so, and what shows it."""
    config = tmp_path / "slurm.conf"
    config.write_text(
        Path(os.environ["SLURM_CONF"]).read_text().replace("SlurmctldPort=", "SlurmctldPort=1\n#")
        + "\nMessageTimeout=1\n"
    )
    monkeypatch.setenv("SLURM_CONF", str(config))

    with pytest.raises(EnvironmentFault, match="did not take the job specdeploy-convert") as caught:
        SlurmJobs(FAST).run_chain([job("convert", "true")], Notes())

    assert "slurmctld" in caught.value.hint


def test_a_log_that_the_node_cannot_write(cluster, job, tmp_path):
    """Slurm says only that the launch failed; the error says where to look."""
    log = tmp_path / "logs" / "build.log"
    jobs = [job("convert", f"rm -r {log.parent}"), job("build", "true", log=log)]

    with pytest.raises(EnvironmentFault, match="could not be started on its node") as caught:
        SlurmJobs(FAST).run_chain(jobs, Notes())

    assert str(log.parent) in caught.value.hint


def test_why_a_job_waits_is_told(cluster, job):
    """Once for each reason: here all GPUs are in use by somebody else's job, which ends."""
    blocker = cluster.run(
        "sbatch", "--parsable", "--gres=gpu:2", "--output=/dev/null", "--wrap=sleep 60"
    ).stdout.strip()

    def release(text: str) -> None:
        if "(Resources)" in text:
            cluster.run("scancel", blocker)

    notes = Notes(on_line=release)

    SlurmJobs(FAST).run_chain([job("build", "true", gpus=1)], notes)

    waits = [event for event in notes.events if event[0] == "line" and "(Resources)" in event[2]]
    assert len(waits) == 1
    assert notes.events.index(waits[0]) < notes.events.index(("started", "build"))
