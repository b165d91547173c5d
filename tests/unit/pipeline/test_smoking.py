"""What the command line asks of a smoke test, as values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdeploy.config.load import load_config
from specdeploy.pipeline import smoking
from specdeploy.smoke import CHECKS

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = "name: tiny\ntarget: {checkpoint: target}\ndraft: {checkpoint: draft}\n"


def test_what_the_command_line_says_goes_before_the_file(tmp_path: Path) -> None:
    """Samples and the self-draft replace the file's; quick shortens answers and calls, and lengthens none."""
    (tmp_path / "specdeploy.yaml").write_text(f"{CONFIG}smoke: {{max_tokens: 40, samples: 60, request_timeout_s: 2}}\n")
    loaded = load_config(tmp_path / "specdeploy.yaml", overrides={}, env={})

    plain = smoking.adjusted(loaded, quick=False, self_draft=False, samples=None)
    changed = smoking.adjusted(loaded, quick=True, self_draft=True, samples=0).config.smoke

    slow = smoking.adjusted(
        load_config(tmp_path / "specdeploy.yaml", overrides={"smoke.request_timeout_s": "60"}, env={}),
        quick=True,
        self_draft=False,
        samples=None,
    )

    assert plain == loaded
    assert slow.config.smoke.request_timeout_s == pytest.approx(2.8)
    assert (changed.samples, changed.self_draft, changed.max_tokens, changed.request_timeout_s) == (0, True, 8, 2)


def test_recorded_answers_that_are_named_are_compared() -> None:
    """Also when only some checks are asked for; what is skipped by name is not run all the same."""
    assert smoking.Choice(golden="f", only=("seeds",)).names == ("seeds", "golden")
    assert smoking.Choice(golden="f", quick=True).names[-1] == "golden"
    assert smoking.Choice(golden="f").names == tuple(CHECKS)
    assert "golden" not in smoking.Choice(golden="f", skip=("golden",)).names
    assert smoking.Choice(only=("seeds",)).names == ("seeds",)


def test_the_exit_code_of_a_signal() -> None:
    """As shells have it: 128 and the signal's number."""
    assert smoking.exit_code(KeyboardInterrupt()) == 130
    assert smoking.exit_code(SystemExit(129)) == 129
    assert smoking.exit_code(GeneratorExit()) == 143
