"""What the programs of the embedded engine say and return when something outside fails."""

from __future__ import annotations

import errno

import pytest

from specdeploy.cpu.console import Progress, exit_code_of
from specdeploy.cpu.disk import room_for, write_text
from specdeploy.cpu.packages import require_packages
from specdeploy.errors import CheckpointError, EnvironmentFault, ToolMissing


def test_an_error_is_one_line_a_hint_and_its_code(capsys):
    """No traceback for what the user can mend."""

    def fail(_):
        raise CheckpointError("config.json is missing", hint="look again")

    assert exit_code_of(fail) == 2
    assert capsys.readouterr().err == "error: config.json is missing\nhint: look again\n"


def test_a_bug_keeps_its_traceback():
    """What is not one of our errors is not dressed up as one."""

    def fail(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        exit_code_of(fail)


def test_steps_are_numbered(capsys):
    """Every line says how far it is."""
    progress = Progress(2)
    progress.step("one")
    progress.step("two")
    assert capsys.readouterr().out == "[1/2] one\n[2/2] two\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_every_kind_of_full_disk_names_the_path_and_the_bytes(tmp_path, code):
    """A full disk, a used-up quota and a file-size limit read the same."""
    path = tmp_path / "model.onnx.data"
    with (
        pytest.raises(EnvironmentFault, match=rf"no space left to write {path}: 123 bytes needed"),
        room_for(path, 123),
    ):
        raise OSError(code, "full")


def test_another_fault_of_the_disk_is_told_apart(tmp_path):
    """A folder that is not there is no lack of space."""
    with pytest.raises(EnvironmentFault, match=r"cannot write .*: No such file or directory"):
        write_text(tmp_path / "missing" / "file", "text")


def test_every_missing_package_is_named():
    """One message for all of them, with the extra that brings them."""
    require_packages("a test", "json")
    with pytest.raises(ToolMissing, match="a test needs not_there, nor_there") as caught:
        require_packages("a test", "json", "not_there", "nor_there")
    assert "specdeploy[cpu]" in caught.value.hint
