"""The store: an engine is there whole, or it is not there."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest

from specdeploy.engine.store import EngineStore
from specdeploy.errors import BuildFailed
from specdeploy.system.signals import Stopped, stopped_by
from tests.unit.engine.fakes import KEY, manifest


@pytest.fixture
def store(tmp_path):
    """An empty store in a folder that does not exist yet."""
    return EngineStore(tmp_path / "engines")


def _publish(store, key=KEY, files=None):
    with store.lock(key), store.stage(key) as staging:
        for name, data in (files or {"model.bin": b"weights", "sub/config.json": b"{}"}).items():
            (staging / name).parent.mkdir(exist_ok=True)
            (staging / name).write_bytes(data)
        return store.publish(staging, manifest(key))


def _entries(store):
    return sorted(path.name for path in store.root.iterdir() if path.name not in {".locks", "logs"})


def test_what_was_published_is_found(store):
    """With every file, its size and its hash."""
    published = _publish(store)

    assert store.find(KEY) == published
    assert [(f.path, f.size) for f in published.files] == [("model.bin", 7), ("sub/config.json", 2)]
    assert published.files[0].sha256 == hashlib.sha256(b"weights").hexdigest()
    assert published.size_bytes == 9
    assert _entries(store) == [KEY[:16]]


def test_an_empty_store_has_nothing(store):
    """And looking does not create it."""
    assert store.find(KEY) is None
    assert store.clean() == ()
    assert not store.root.exists()


def test_a_failed_build_leaves_nothing(store):
    """The staging directory goes, whatever ended the block."""

    def interrupted():
        with store.stage(KEY) as staging:
            (staging / "model.bin").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert store.find(KEY) is None
    assert _entries(store) == []


def test_a_build_is_invisible_until_it_is_published(store):
    """Nobody takes what is still being written."""
    with store.stage(KEY) as staging:
        (staging / "model.bin").write_bytes(b"weights")

        assert store.find(KEY) is None


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda d: (d / "model.bin").unlink(), "engine.file-missing"),
        (lambda d: (d / "model.bin").write_bytes(b"w"), "engine.size-differs"),
        (lambda d: (d / "manifest.json").unlink(), "engine.manifest-damaged"),
        (lambda d: (d / "manifest.json").write_text("{"), "engine.manifest-damaged"),
        (lambda d: (d / "manifest.json").write_bytes(b"\xff\x00"), "engine.manifest-damaged"),
        (lambda d: (d / "manifest.json").write_text("[]"), "engine.manifest-damaged"),
    ],
)
def test_a_damaged_engine_is_not_found(store, damage, code):
    """It is no hit, and verify says why."""
    _publish(store)
    damage(store.path(KEY))

    assert store.find(KEY) is None
    assert [finding.code for finding in store.verify(KEY)] == [code]


def test_an_engine_without_files_is_none(store):
    """An empty list of files describes no engine."""
    _publish(store)
    path = store.path(KEY) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"files": []}))

    assert store.find(KEY) is None


def test_two_keys_that_begin_alike_are_two_engines(store):
    """Directories are named by a part of the key; the manifest has all of it."""
    _publish(store)

    assert store.find(KEY[:16] + "0" * 48) is None


def test_a_damaged_engine_is_moved_aside_and_replaced(store):
    """Rebuilding succeeds, and one earlier wreck is kept to look at."""
    for _ in range(2):
        _publish(store)
        (store.path(KEY) / "model.bin").unlink()
    published = _publish(store)

    assert store.find(KEY) == published
    assert _entries(store) == [f".broken-{KEY[:16]}", KEY[:16]]


def test_verify_reads_the_content_only_when_asked(store):
    """A flipped byte keeps the size; the hash finds it."""
    _publish(store)
    (store.path(KEY) / "model.bin").write_bytes(b"weighty")

    assert store.verify(KEY) == ()
    assert [finding.code for finding in store.verify(KEY, full=True)] == ["engine.content-differs"]


def test_verify_of_what_is_not_there(store):
    """It says so, as a finding."""
    assert [finding.code for finding in store.verify(KEY)] == ["engine.missing"]


def test_a_good_engine_verifies(store):
    """No finding, fully read or not."""
    _publish(store)

    assert store.verify(KEY, full=True) == ()


def test_links_are_not_published(store):
    """A link would leave a part of the engine elsewhere."""
    with store.stage(KEY) as staging:
        (staging / "model.bin").symlink_to("/etc/hostname")
        with pytest.raises(BuildFailed, match="link"):
            store.publish(staging, manifest())

    assert _entries(store) == []


def test_leftovers_of_dead_builders_are_removed(store):
    """A killed process leaves its staging directory, and the kernel drops its lock."""
    dead = store.root / f".staging-{KEY[:16]}-99999"
    dead.mkdir(parents=True)
    (dead / "half.bin").write_bytes(b"x")

    assert store.clean() == (dead,)
    assert not dead.exists()


def test_the_staging_of_a_living_builder_stays(store):
    """Its lock is held."""
    with store.lock(KEY), store.stage(KEY) as staging:
        assert store.clean() == ()
        assert staging.is_dir()


def test_the_manifest_is_written_last(store, monkeypatch):
    """Were it first, a crash in between would leave a directory that claims to be complete."""
    order = []
    write, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append(str(Path(f"/proc/self/fd/{fd}").readlink())), write(fd)))
    monkeypatch.setattr(os, "rename", lambda a, b: (order.append(f"rename {b}"), rename(a, b)))

    _publish(store)

    manifest_at = next(i for i, name in enumerate(order) if "manifest.json" in name)
    assert all(i < manifest_at for i, name in enumerate(order) if name.endswith(("model.bin", "config.json")))
    assert manifest_at < order.index(f"rename {store.path(KEY)}")


def test_free_space_is_seen_or_unknown(store):
    """Never zero for want of knowing."""
    assert store.free_bytes() is None
    store.root.mkdir()
    assert store.free_bytes() > 0


def test_what_another_builder_works_with_is_not_removed(store):
    """Two engines may be made from one conversion: whoever is done first must not take it from the other."""
    directory = store.begin_step(KEY)
    (directory / "rank0").write_bytes(b"x")
    store.keep_step(KEY)

    with store.lock(KEY):
        store.drop_step(KEY)
        assert store.kept_step(KEY) == directory
    store.drop_step(KEY)

    assert store.kept_step(KEY) is None
    assert not directory.exists()


@pytest.mark.parametrize("damage", ["cut", "gone", "more"])
def test_a_step_that_was_damaged_is_not_taken_for_complete(store, damage):
    """The next build does it again, in place of failing on it for ever."""
    file = store.begin_step(KEY) / "rank0"
    file.write_bytes(b"whole")
    store.keep_step(KEY)
    assert store.kept_step(KEY) is not None

    {"cut": lambda: file.write_bytes(b"who"), "gone": file.unlink, "more": (file.parent / "x").touch}[damage]()

    assert store.kept_step(KEY) is None


def test_an_abandoned_builder_writes_elsewhere(store):
    """What a killed build's program still writes cannot get into the next one's result."""
    left_over = store.step_directory(KEY, "1")
    left_over.mkdir(parents=True)

    assert store.begin_step(KEY) != left_over
    assert store.leftovers() == tuple(sorted((left_over, store.step_directory(KEY))))


def test_what_is_not_ours_is_no_engine(store):
    """A folder that somebody put into the store is neither listed nor verified nor removed."""
    published = _publish(store)
    for name in ("backup", "exported-engines", "abcdef", "f" * 17):
        (store.root / name).mkdir()

    assert store.directories() == (published.key[:16],)
    assert store.manifests() == (published,)
    assert store.leftovers() == ()


def test_a_thread_that_waits_for_a_lock_can_be_stopped(store):
    """Its builder may be given up while somebody else builds for an hour."""
    asked, ended = threading.Event(), []

    def wait():
        try:
            with stopped_by(asked), store.lock(KEY, asked.set):
                ended.append("got it")
        except Stopped:
            ended.append("stopped")

    with store.lock(KEY):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(30)

    assert ended == ["stopped"]
