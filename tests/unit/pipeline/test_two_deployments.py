"""``specdeploy load --control-http``: what is refused before anybody is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdeploy.cli import run as run_command

CONFIG = """\
name: tiny
target: {checkpoint: target}
draft: {checkpoint: draft}
"""
HERE = ("--http", "127.0.0.1:9", "--grpc", "127.0.0.1:9")
BOTH = ("--control-http", "127.0.0.1:9", "--control-grpc", "127.0.0.1:9")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment that was never built: only its configuration."""
    monkeypatch.chdir(tmp_path)
    Path("specdeploy.yaml").write_text(CONFIG)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (BOTH[:2], "--control-http and --control-grpc go together"),
        (BOTH[2:], "--control-http and --control-grpc go together"),
        ((*BOTH, "--no-compare"), "--no-compare leaves out the server of --control-http"),
        (("--control-http", "there", *BOTH[2:]), "--control-http 'there' is no address"),
        ((*BOTH[:2], "--control-grpc", "http://u:p@h:1"), "--control-grpc "),
        ((*BOTH, "--openai", "http://127.0.0.1:9/v1"), "--openai another kind of server"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2, by name, and without a secret that stood in an address."""
    server = () if "--openai" in options else HERE

    assert run_command(["load", *server, *options]) == 2
    assert said in (told := capsys.readouterr().err)
    assert "u:p" not in told
    assert not Path("reports/load.json").exists()


def test_a_control_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """By its address (4); nothing is measured against nobody."""
    assert run_command(["load", *HERE, "--control-http", "127.0.0.1:7", "--control-grpc", "127.0.0.1:7"]) == 4
    assert "127.0.0.1:7" in capsys.readouterr().err
