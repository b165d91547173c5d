"""Files that are complete or absent, and directories that are ours or left alone."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.errors import ConfigError, RepositoryError
from specdeploy.system import files


def _names(path):
    return sorted(entry.name for entry in path.iterdir())


def test_a_file_is_replaced_as_a_whole(tmp_path):
    """Text is UTF-8, parents are made, and nothing temporary stays."""
    path = tmp_path / "deep" / "file.txt"

    files.write_atomic(path, "first")
    files.write_atomic(path, "zweites Ü")

    assert path.read_text(encoding="utf-8") == "zweites Ü"
    assert _names(path.parent) == ["file.txt"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    """The disk fills up between the first byte and the last."""
    path = tmp_path / "file.txt"
    files.write_atomic(path, b"old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomic(path, b"new")

    assert path.read_bytes() == b"old"
    assert _names(tmp_path) == ["file.txt"]


def test_json_has_no_nan(tmp_path):
    """What is written can be read by every other program."""
    files.write_json_atomic(tmp_path / "a.json", {"name": "Ü", "values": [1, None]})

    assert json.loads((tmp_path / "a.json").read_bytes()) == {"name": "Ü", "values": [1, None]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json_atomic(tmp_path / "b.json", float("nan"))


def test_json_may_hold_halves_of_characters(tmp_path: Path) -> None:
    """Some server said so; they are spelt out, and come back."""
    files.write_json_atomic(tmp_path / "a.json", {"said": "\ud83d Ü"})

    assert "\\ud83d Ü" in (tmp_path / "a.json").read_text()
    assert json.loads((tmp_path / "a.json").read_text()) == {"said": "\ud83d Ü"}
    assert _names(tmp_path) == ["a.json"]


def test_a_tree_is_published_and_replaced_as_a_whole(tmp_path):
    """Files of the earlier tree do not linger."""
    path = tmp_path / "repo"

    files.publish_tree({"a/1/model.py": b"x", "old": b"y"}, path)
    files.publish_tree({"a/1/model.py": b"z", "b/config.pbtxt": b""}, path)

    found = {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    assert found.pop(".specdeploy")
    assert found == {"a/1/model.py": b"z", "b/config.pbtxt": b""}
    assert _names(tmp_path) == ["repo"]
    assert files.is_owned(path)


def test_an_empty_directory_may_be_taken(tmp_path):
    """Somebody made it for us."""
    files.publish_tree({"a": b"x"}, tmp_path)

    assert (tmp_path / "a").read_bytes() == b"x"


def test_a_foreign_directory_is_never_touched(tmp_path):
    """Neither replaced nor removed, and the message says why."""
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(RepositoryError, match="not empty and was not written by specdeploy"):
        files.publish_tree({"a": b"x"}, tmp_path)
    with pytest.raises(RepositoryError, match="not empty"):
        files.remove_owned(tmp_path)

    assert _names(tmp_path) == ["thesis.tex"]


def test_a_file_in_the_way_is_refused(tmp_path):
    """A directory cannot be written over it."""
    (tmp_path / "repo").write_text("x")

    with pytest.raises(RepositoryError, match="is a file"):
        files.publish_tree({"a": b"x"}, tmp_path / "repo")


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../b", "", "."])
def test_names_cannot_lead_outside(tmp_path, name):
    """A tree is written where it was said to be."""
    with pytest.raises(RepositoryError, match="leads outside"):
        files.publish_tree({name: b"x"}, tmp_path / "repo")

    assert _names(tmp_path) == []


def test_a_failed_rename_puts_the_old_tree_back(tmp_path, monkeypatch):
    """There is a repository at every moment after the first."""
    path = tmp_path / "repo"
    files.publish_tree({"a": b"old"}, path)
    rename = Path.rename

    def failing(self, target):
        if self.name.startswith(".repo.new"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(ConfigError, match=r"repo cannot be written: Input/output"):
        files.publish_tree({"a": b"new"}, path)

    assert (path / "a").read_bytes() == b"old"
    assert _names(tmp_path) == ["repo"]


def test_what_somebody_added_or_edited_is_not_replaced(tmp_path):
    """A model put beside ours, or a file edited by hand, is named and kept; Python's caches are nobody's."""
    path = tmp_path / "repo"
    files.publish_tree({"a": b"old", "m/b": b"old"}, path)
    (path / "m" / "__pycache__").mkdir()
    (path / "m" / "__pycache__" / "b.pyc").write_bytes(b"cache")
    files.publish_tree({"a": b"newer", "m/b": b"old"}, path)

    (path / "theirs").mkdir()
    (path / "theirs" / "model.py").write_text("precious")
    with pytest.raises(RepositoryError, match=r"did not write: theirs/model\.py"):
        files.publish_tree({"a": b"new"}, path)
    assert (path / "theirs" / "model.py").read_text() == "precious"

    (path / "theirs" / "model.py").unlink()
    (path / "a").write_text("by hand")
    with pytest.raises(RepositoryError, match=r"were edited since .*: a"):
        files.publish_tree({"a": b"new"}, path)
    assert (path / "a").read_text() == "by hand"


def test_a_run_that_was_killed_between_two_renames_is_made_good(tmp_path):
    """The tree that it had put aside comes back, and is then replaced like any other."""
    path = tmp_path / "repo"
    files.publish_tree({"a": b"old"}, path)
    path.rename(tmp_path / ".repo.old-999999999")

    files.publish_tree({"a": b"new"}, path)

    assert (path / "a").read_bytes() == b"new"
    assert _names(tmp_path) == ["repo"]


def test_what_a_killed_process_left_of_a_file_goes_with_the_next_one(tmp_path):
    """But not what somebody still writes: a process of this machine, or one elsewhere that holds the lock."""
    living, elsewhere = f".a.jsonl.new-{os.getppid()}", ".a.jsonl.new-999999998"
    for name in (".a.jsonl.new-999999999", living, elsewhere, ".a.jsonl.new-x", ".b.jsonl.new-999999999"):
        (tmp_path / name).write_text("half")

    with (tmp_path / elsewhere).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        files.write_atomic(tmp_path / "a.jsonl", b"whole")

    assert _names(tmp_path) == sorted([living, elsewhere, ".a.jsonl.new-x", ".b.jsonl.new-999999999", "a.jsonl"])


def test_of_several_files_the_last_is_never_beside_those_of_another_run(tmp_path):
    """Where one cannot take its name, the last, which tells of them, is not the old one."""
    one, last = tmp_path / "records", tmp_path / "document"
    for text in (b"old", b"new"):
        with files.new_files(one, last) as opened:
            for file in opened:
                file.write(text)
        assert (one.read_bytes(), last.read_bytes()) == (text, text)
    one.unlink()
    one.mkdir()
    with pytest.raises(IsADirectoryError), files.new_files(one, last):
        pass

    assert _names(tmp_path) == ["records"]


def test_a_run_directory_is_no_tree_of_ours(tmp_path):
    """Both have a tag, and only one of them is written as a whole."""
    (tmp_path / "models.run").mkdir()
    (tmp_path / "models.run" / files.OWNER_TAG).write_text("Another kind of directory.\n")
    (tmp_path / "models.run" / "server.log").write_text("kept")

    with pytest.raises(RepositoryError, match="was not written by specdeploy"):
        files.publish_tree({"a": b"new"}, tmp_path / "models.run")
    assert (tmp_path / "models.run" / "server.log").read_text() == "kept"


@pytest.mark.parametrize("place", ["/proc/nope/models", "/dev/null/models"])
def test_a_place_that_cannot_be_written_is_named(place):
    """Whatever the system says about it."""
    with pytest.raises(ConfigError, match=f"{place} cannot be written"):
        files.publish_tree({"a": b"new"}, Path(place))


def test_an_owned_directory_can_be_removed(tmp_path):
    """And what is absent already is removed as well."""
    path = tmp_path / "repo"
    files.publish_tree({"a": b"x"}, path)

    files.remove_owned(path)
    files.remove_owned(path)

    assert _names(tmp_path) == []


@given(data=st.binary(max_size=300))
def test_the_hash_is_sha256(tmp_path_factory, data):
    """Of the content, whatever its length."""
    path = tmp_path_factory.mktemp("h") / "f"
    path.write_bytes(data)

    assert files.sha256_file(path) == hashlib.sha256(data).hexdigest()


def test_the_tail_is_read_from_the_end(tmp_path):
    """A log of any size, cheaply; what is not there is empty."""
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1_000_000 + b"\nlast but one\n\xff last\n")

    assert files.tail(path, 2) == ("last but one", "\ufffd last")
    assert len(files.tail(path, 9)) == 3
    assert len(files.tail(path, 9)[0]) < 65536
    assert files.tail(tmp_path / "absent", 5) == ()


def test_a_lock_excludes_and_says_that_it_waits(tmp_path):
    """The second one enters only after the first has left."""
    path = tmp_path / "locks" / "a.lock"
    order, waiting = [], threading.Event()

    def second():
        with files.locked(path, waiting.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with files.locked(path, lambda: order.append("never")):
        thread.start()
        assert waiting.wait(30)
        order.append("first")
    thread.join(30)

    assert order == ["first", "second"]


def test_a_free_lock_is_taken_and_a_held_one_is_not(tmp_path):
    """Without waiting, either way."""
    path = tmp_path / "a.lock"

    with files.locked_if_free(path) as first, files.locked_if_free(path) as second:
        assert (first, second) == (True, False)
    with files.locked_if_free(path) as again:
        assert again is True


def test_a_fresh_path_takes_its_name_when_it_is_complete(tmp_path):
    """A directory without a suffix, a file with one; after an error neither is there, and no rest of it."""
    with files.fresh_path(tmp_path / "out" / "folder") as fresh:
        (fresh / "a").write_text("a")
        assert not (tmp_path / "out" / "folder").exists()
    with files.fresh_path(tmp_path / "out" / "file.tar") as fresh:
        fresh.write_text("b")
    for name in ("other", "other.tar"):
        with pytest.raises(RuntimeError, match="stop"):
            _write_half(tmp_path / "out" / name)

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["file.tar", "folder"]


def _write_half(path):
    with files.fresh_path(path) as fresh:
        (fresh / "half" if fresh.is_dir() else fresh).write_text("half")
        raise RuntimeError("stop")
