"""What the command line asks of a smoke test, as values."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Self
from xml.etree import ElementTree as ET

import pytest

from specdeploy.config.load import load_config
from specdeploy.errors import ConfigError, EnvironmentFault, ServerFault
from specdeploy.pipeline import smoking
from specdeploy.pipeline.smoke_results import Place, other_place, require_writable
from specdeploy.smoke import CHECKS, Check
from specdeploy.smoke.probe import Broken
from specdeploy.smoke.targets import Target
from specdeploy.triton.client import RequestFailed
from tests.unit.smoke.deployment import EXPECT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from specdeploy.config.load import LoadedConfig

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
    assert smoking.Choice(only=("seeds",), quick=True).names == ("seeds",)
    assert smoking.Choice(golden="f").names == tuple(CHECKS)
    assert "golden" not in smoking.Choice(golden="f", skip=("golden",)).names
    assert smoking.Choice(only=("seeds",)).names == ("seeds",)


def test_the_exit_code_of_a_signal() -> None:
    """As shells have it: 128 and the signal's number."""
    assert smoking.exit_code(KeyboardInterrupt()) == 130
    assert smoking.exit_code(SystemExit(129)) == 129
    assert smoking.exit_code(GeneratorExit()) == 143


@pytest.fixture(name="loaded")
def _loaded(tmp_path: Path) -> LoadedConfig:
    """A configuration, in a folder of its own."""
    (tmp_path / "specdeploy.yaml").write_text(CONFIG)
    return load_config(tmp_path / "specdeploy.yaml", overrides={}, env={})


class Client:
    """Is there, and can be asked for nothing but its name."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """Do nothing."""

    def server(self, *, timeout_s: float) -> dict[str, Any]:
        """Say that it is there."""
        return {"name": "toy", "timeout_s": timeout_s}


TARGET = Target(client_factory=Client, expectations=EXPECT)  # type: ignore[arg-type]
CHOICE = smoking.Choice(only=("server-ready", "seeds"))


def place_in(loaded: LoadedConfig) -> Place:
    """Return where the results of another server are kept, JUnit beside them."""
    return other_place(loaded, kind="openai", url="http://h/v1", junit=loaded.base_dir / "junit.xml")


def kept_in(loaded: LoadedConfig) -> tuple[dict[str, Any], list[str | None]]:
    """Return the document, and the types of the errors in the XML."""
    document = json.loads((loaded.base_dir / "reports" / "smoke-openai.json").read_text())
    return document, [error.get("type") for error in ET.parse(loaded.base_dir / "junit.xml").iter("error")]


@contextlib.contextmanager
def seeking(error: BaseException) -> Iterator[smoking.Subject]:
    """Find no server."""
    raise error
    yield  # type: ignore[unreachable]  # what makes it a generator


def test_a_server_that_cannot_be_asked_leaves_its_results(loaded: LoadedConfig) -> None:
    """Green results of an earlier run are not left there: nothing was checked, the server was lost (4), and why."""
    told: list[tuple[str, str]] = []
    watcher = smoking.Watcher(on_problem=lambda *problem: told.append(problem))

    report = smoking.conduct(loaded, seeking(ServerFault("none", hint="serve")), CHOICE, place_in(loaded), watcher)

    document, errors = kept_in(loaded)
    assert report.exit_code == document["exit_code"] == 4
    assert [check["status"] for check in document["checks"]] == ["fail", "skip"]
    assert (document["server_lost"], document["deployment"]["url"]) == ("none", "http://h/v1")
    assert errors == ["server-lost"]
    assert told == [("none", "serve")]


def test_a_signal_before_the_run_leaves_its_results(loaded: LoadedConfig) -> None:
    """The results say that it was interrupted, and no check began."""
    with pytest.raises(KeyboardInterrupt):
        smoking.conduct(loaded, seeking(KeyboardInterrupt()), CHOICE, place_in(loaded), smoking.Watcher())

    document, errors = kept_in(loaded)
    assert (document["interrupted"], document["exit_code"], document["server_lost"]) == (True, 130, "")
    assert [check["status"] for check in document["checks"]] == ["skip", "skip"]
    assert errors == ["interrupted"]


def test_what_the_user_has_to_mend_writes_nothing(loaded: LoadedConfig, tmp_path: Path) -> None:
    """Neither a wrong option nor a folder that cannot be written to replaces the results of an earlier run."""
    (tmp_path / "junit.xml").write_text("earlier")
    blocked = Place(identity={}, results=tmp_path / "specdeploy.yaml" / "x.json", junit=tmp_path / "junit.xml")

    for error, choice, place in (
        ("which model", CHOICE, place_in(loaded)),
        ("no smoke check", smoking.Choice(only=("sneeds",)), place_in(loaded)),
        ("--prompts", smoking.Choice(prompts="code"), place_in(loaded)),
        ("report.path", CHOICE, blocked),
    ):
        with pytest.raises(ConfigError, match=error):
            smoking.conduct(loaded, seeking(ConfigError("which model")), choice, place, smoking.Watcher())

    assert (tmp_path / "junit.xml").read_text() == "earlier"
    assert not list(tmp_path.glob("reports/*"))


@pytest.mark.parametrize("name", ["", "file/x", "pipe"])
def test_what_cannot_be_written_is_known_before(tmp_path: Path, name: str) -> None:
    """A folder, a path through a file and what is no file are refused by the option's name; nothing is left there."""
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ConfigError, match=r"--junit: .* cannot be written"):
        require_writable(tmp_path / name, "--junit")
    require_writable(tmp_path / "new" / "file", "--junit")

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "new", "pipe"]


@pytest.mark.parametrize("asked", ["pass", "fail"])
def test_what_cannot_be_written_later_does_not_hide_the_verdict(
    loaded: LoadedConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """The other file is written and the outcome shown; only a pass, which nobody could prove, is no pass."""

    def judge(_probe: object) -> str:
        # As a disk that is full: what could be written before cannot any more.
        (tmp_path / "reports" / "smoke-openai.json").mkdir()
        if asked == "fail":
            raise Broken("wrong")
        return "right"

    monkeypatch.setitem(CHECKS, "server-ready", Check(judge))  # type: ignore[arg-type]
    shown: list[object] = []
    problems: list[str] = []
    watcher = smoking.Watcher(on_document=shown.append, on_problem=lambda what, _: problems.append(what))
    sought = contextlib.nullcontext(smoking.other(loaded, lambda _: TARGET, place_in(loaded)))
    choice = smoking.Choice(only=("server-ready",))

    def conduct() -> int:
        return smoking.conduct(loaded, sought, choice, place_in(loaded), watcher).exit_code

    if asked == "pass":
        with pytest.raises(EnvironmentFault, match="every check passed, and the results could not be written"):
            conduct()
    else:
        assert conduct() == 1

    assert len(shown) == 1
    assert ET.parse(tmp_path / "junit.xml").getroot().get("failures") == str(int(asked == "fail"))
    assert problems == [f"report.path: {tmp_path / 'reports' / 'smoke-openai.json'} cannot be written: Is a directory"]


def test_signals_do_not_keep_the_results_from_being_written(
    loaded: LoadedConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many come, and whenever: the first ends the run, and both files are whole."""

    def judge(_probe: object) -> str:
        for _ in range(5):
            signal.raise_signal(signal.SIGINT)
        assert released.wait(60)
        return "never"

    monkeypatch.setitem(CHECKS, "server-ready", Check(judge))  # type: ignore[arg-type]
    written = Place.write

    def write(place: Place, document: dict[str, Any]) -> tuple[str, ...]:
        signal.raise_signal(signal.SIGINT)
        return written(place, document)

    monkeypatch.setattr(Place, "write", write)
    released = threading.Event()
    subject = smoking.other(loaded, lambda _: TARGET, place_in(loaded))

    with pytest.raises(KeyboardInterrupt):
        smoking.conduct(loaded, contextlib.nullcontext(subject), CHOICE, place_in(loaded), smoking.Watcher())
    released.set()

    document, errors = kept_in(loaded)
    assert (document["interrupted"], document["exit_code"]) == (True, 130)
    assert [check["status"] for check in document["checks"]] == ["undecided", "skip"]
    assert "interrupted" in errors


def test_asking_what_a_server_is_counts(loaded: LoadedConfig) -> None:
    """With --quick it has all of the time there is and no more, and what it took is gone for the run."""
    limits: list[float] = []

    def ask(limit_s: float) -> Target:
        limits.append(limit_s)
        return TARGET

    quick = smoking.other(loaded, ask, place_in(loaded), quick=True)
    smoking.other(loaded, ask, place_in(loaded))

    assert limits == [7.0, 120.0]
    assert quick.asked_s > 0
    assert quick.place.identity["name"] == "ensemble"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RequestFailed("timeout", "h:1 did not answer in time"), "too slow for --quick, which has 7 s for all"),
        (RequestFailed("connection", "refused"), "connection: refused$"),
        (AttributeError("'list' object has no attribute 'get'"), "is not understood: AttributeError"),
        (RecursionError("maximum recursion depth exceeded"), "is not understood: RecursionError"),
    ],
)
def test_a_server_that_does_not_say_what_it_is(loaded: LoadedConfig, error: Exception, said: str) -> None:
    """Whatever comes instead is the server's fault (4), and a slow one is called slow."""

    def ask(_limit_s: float) -> Target:
        raise error

    with pytest.raises(ServerFault, match=said):
        smoking.other(loaded, ask, place_in(loaded), quick=True)


def test_paths_of_the_command_line_are_where_the_user_is(
    loaded: LoadedConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the configuration are relative to its folder."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    configured = load_config(tmp_path / "specdeploy.yaml", overrides={"smoke.golden": "g.json"}, env={})

    def refused(loaded: LoadedConfig, choice: smoking.Choice) -> str:
        with pytest.raises(ConfigError) as caught:
            smoking.conduct(loaded, seeking(ServerFault("none")), choice, place_in(loaded), smoking.Watcher())
        return caught.value.message

    assert str(tmp_path / "elsewhere" / "g.json") in refused(loaded, smoking.Choice(golden="g.json"))
    assert str(tmp_path / "g.json") in refused(configured, smoking.Choice())
