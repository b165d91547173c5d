"""The smoke test on a terminal and in a workflow's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdeploy.cli import _events
from specdeploy.cli.smoke import _show
from specdeploy.report.text import smoke_table
from specdeploy.smoke import CheckResult, SmokeReport

if TYPE_CHECKING:
    import pytest

PASS = CheckResult(name="metadata", status="pass", duration_s=0.25, reason="10 inputs")
UNDECIDED = CheckResult(
    name="lossless-sampled", status="undecided", duration_s=2.0, reason="too few samples", hint="raise smoke.samples"
)


def difference(position: int) -> dict[str, Any]:
    """Return a difference as the comparisons keep it."""
    return {"prompt": "code", "num_draft_tokens": 7, "position": position, "expected": [1], "seen": [2], "margin": None}


def test_what_did_not_pass_is_told_in_full_with_its_cure() -> None:
    """The table keeps one line for each check; below it the whole reason, differences and what to do next."""
    reason = "it differs " * 20
    check = CheckResult(
        name="lossless-greedy",
        status="fail",
        duration_s=3.0,
        reason=reason,
        hint="Keep speculation off.",
        details={"differences": [difference(position) for position in range(6)]},
    )

    lines = smoke_table(SmokeReport(checks=(PASS, check, UNDECIDED)).as_dict()).splitlines()

    table, told = lines[:5], lines[5:]
    assert max(map(len, table)) < 150
    assert "lossless-greedy" in table[3]
    assert table[3].endswith("...")
    assert told == [
        f"FAIL lossless-greedy: {reason.strip()}",
        *(f"  - prompt code, num_draft_tokens 7, position {n}, expected [1], seen [2]" for n in range(4)),
        "  and 2 more; --json has all",
        "  -> Keep speculation off.",
        "UNDECIDED lossless-sampled: too few samples",
        "  -> raise smoke.samples",
        "smoke: 1 passed, 1 failed, 0 skipped, 1 undecided",
    ]


def test_a_run_that_was_interrupted_says_so() -> None:
    """Nobody takes a part for the whole."""
    text = smoke_table(SmokeReport(checks=(PASS,), interrupted=130).as_dict())

    assert text.endswith("smoke: 1 passed, 0 failed, 0 skipped, interrupted: this report is partial")


def test_a_servers_words_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences and line ends of what a server said are shown and not obeyed."""
    check = CheckResult(name="seeds", status="fail", duration_s=0.1, reason="a\x1b[2J\nb\r\x00c")

    text = smoke_table(SmokeReport(checks=(check,)).as_dict())
    _events.check_line(check)

    for shown in (text, capsys.readouterr().err):
        assert "a\\x1b[2J b \\x00c" in shown
        assert "\x1b[2J" not in shown


def test_github_gets_an_annotation_for_what_is_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """Failures are errors, undecided checks warnings; passes and skips make no noise; text is escaped."""
    fail = CheckResult(name="seeds", status="fail", duration_s=0.1, reason="100 % ignored\nagain", hint="look")

    _show(SmokeReport(checks=(PASS, fail, UNDECIDED)).as_dict(), "github")

    assert capsys.readouterr().out.splitlines() == [
        "::error title=smoke.seeds::100 %25 ignored%0Aagain%0Alook",
        "::warning title=smoke.lossless-sampled::too few samples%0Araise smoke.samples",
        "smoke: 1 passed, 1 failed, 0 skipped, 1 undecided",
    ]


def test_github_hears_of_a_run_that_did_not_come_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A lost server and a signal are errors of their own, since skipped checks say nothing there."""
    _show(SmokeReport(checks=(), server_lost="connection refused").as_dict(), "github")
    _show(SmokeReport(checks=(), interrupted=143).as_dict(), "github")

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "::error title=smoke.server-lost::connection refused"
    assert lines[2].startswith("::error title=smoke.interrupted::")
