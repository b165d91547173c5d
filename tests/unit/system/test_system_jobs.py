"""Chains of jobs on this machine, and what a job in a container has to see of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specdeploy.errors import EnvironmentFault
from specdeploy.system.follow import Follow
from specdeploy.system.jobs import Job, LocalJobs
from specdeploy.system.mounts import Mount, job_mounts, require_present, with_link_targets
from specdeploy.system.process import SubprocessRunner


class Notes:
    """Writes down what it is told; raises when a job ends with anything but 0."""

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
        if exit_code:
            raise EnvironmentFault(job.name)


@pytest.fixture
def job(tmp_path):
    """Return a function that makes a job of a Python snippet, or one with other fields."""

    def make(name: str = "build", code: str = "", **fields) -> Job:
        argv = (sys.executable, "-c", code)
        return Job(**{"name": name, "argv": argv, "env": {}, "log": tmp_path / "log", "timeout_s": 60.0, **fields})

    return make


def test_jobs_run_in_order(job):
    """Each is told from its start to its end before the next begins, with its variables set."""
    notes = Notes()
    show = "import os; print(os.environ['WHO'])"

    LocalJobs(SubprocessRunner()).run_chain(
        [job("convert", show, env={"WHO": "first"}), job("build", show, env={"WHO": "second"})], notes
    )

    assert notes.events == [
        ("started", "convert"),
        ("line", "convert", "first"),
        ("ended", "convert", 0),
        ("started", "build"),
        ("line", "build", "second"),
        ("ended", "build", 0),
    ]


def test_the_listener_stops_the_chain(job, tmp_path):
    """What it raises leaves the chain, and nothing runs after it."""
    notes = Notes()
    code = f"open({str(tmp_path / 'second')!r}, 'w')"

    with pytest.raises(EnvironmentFault, match="convert"):
        LocalJobs(SubprocessRunner()).run_chain([job("convert", "raise SystemExit(3)"), job("build", code)], notes)

    assert notes.events == [("started", "convert"), ("ended", "convert", 3)]
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("reads", "writes", "expected"),
    [
        (("/m",), ("/e",), {"/m": False, "/e": True}),
        (("/m", "/m"), ("/e",), {"/m": False, "/e": True}),
        (("/e/log",), ("/e",), {"/e": True}),
        (("/m", "/m/weights"), (), {"/m": False}),
        (("/e",), ("/e",), {"/e": True}),
        (("/m",), ("/m/out", "/m/out/deep"), {"/m": False, "/m/out": True}),
        (("/m", "/m/out/in"), ("/m/out",), {"/m": False, "/m/out": True}),
        (("/models",), ("/m",), {"/models": False, "/m": True}),
    ],
)
def test_a_mount_is_made_once(job, reads, writes, expected):
    """Nested and repeated paths share one, unless the inner one needs more rights; a common prefix is no nesting."""
    made = job_mounts(job(reads=tuple(map(Path, reads)), writes=tuple(map(Path, writes))))

    assert {str(mount.path): mount.writable for mount in made} == expected


def test_outer_mounts_come_first(job):
    """Or they would cover the inner ones."""
    made = job_mounts(job(reads=(Path("/a"), Path("/b/c")), writes=(Path("/a/x/y"),)))

    assert [str(mount.path) for mount in made] == ["/a", "/b/c", "/a/x/y"]


def test_promised_files_are_in_what_is_writable(job):
    """Also where the caller forgot to say so."""
    made = job_mounts(job(writes=(Path("/e"),), promises=(Path("/e/x/rank0.engine"), Path("/f/config.json"))))

    assert made == (Mount(path=Path("/e"), writable=True), Mount(path=Path("/f"), writable=True))


@pytest.mark.parametrize("path", ["relative", "/up/../and/down"])
def test_only_absolute_paths_are_mounted(job, path):
    """Inside, another working directory would give them another meaning."""
    with pytest.raises(ValueError, match="not an absolute path"):
        job_mounts(job(reads=(Path(path),)))


def test_links_out_of_a_folder_bring_what_they_lead_to(job, tmp_path):
    """As in a Hugging Face cache, whose snapshots link to blobs; the system's own folders are the image's business."""
    snapshot, blobs = tmp_path / "snapshots" / "1", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abc").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    (snapshot / "broken").symlink_to("../nowhere")
    (snapshot / "inside").symlink_to("config.json")
    (snapshot / "python").symlink_to("/usr/bin/env")

    assert with_link_targets(job(reads=(snapshot,))).reads == (snapshot, blobs)


def test_a_missing_path_is_named(job, tmp_path):
    """Rather than mounted as an empty directory."""
    made = job(reads=(tmp_path / "gone",))

    with pytest.raises(EnvironmentFault, match=r"gone, which build needs, is not there"):
        require_present(made, job_mounts(made))


def test_a_file_is_followed_from_its_end(tmp_path):
    """Old content is skipped, half a line waits for its other half, and the last one needs no end."""
    path = tmp_path / "log"
    path.write_text("old\n")
    follow = Follow(path)

    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert follow.read() == ("one",)
        file.write("o\nthree")
        file.flush()
        assert follow.read() == ("two",)
    assert follow.rest() == ("three",)


def test_a_file_may_come_into_being_later(tmp_path):
    """A job that waits has no log yet."""
    path = tmp_path / "log"
    follow = Follow(path)

    assert follow.read() == ()
    path.write_text("one\n")
    assert follow.read() == ("one",)
