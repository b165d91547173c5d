"""Repositories that nobody made on purpose, or somebody did: lint ends, soon, and says what it could not read."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from specdeploy.findings import Finding
from specdeploy.triton import sources
from specdeploy.triton.lint import CHECKS, _found, lint_repository
from specdeploy.triton.lint.engine_dir import EngineDirectory
from specdeploy.triton.lint.loaded import load
from specdeploy.triton.lint.unread import Unread
from specdeploy.triton.sources import engine_listing, read_repository
from tests import broken_repositories as broken
from tests.unit.triton.repositories import engine_facts, repository_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from specdeploy.triton.lint.loaded import Repository

FIRST = "first/config.pbtxt"
TARGET = "tensorrt_llm/config.pbtxt"
TIMEOUT_S = 120


@pytest.fixture(name="repository")
def _repository(tmp_path: Path) -> Path:
    return broken.plain(tmp_path / "models")


def lint(root: Path) -> list[Finding]:
    """Lint a repository on disk with its engines."""
    return list(lint_repository(read_repository(root), engine_listing(root)))


def codes(findings: list[Finding]) -> set[str]:
    """Return severities and codes."""
    return {f"{finding.severity} {finding.code}" for finding in findings}


def in_time(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Lint in a process of its own, which is ended when it takes too long or too much memory."""
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)); "
        "from specdeploy.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "lint", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_what_is_no_file_is_said_and_not_opened(repository: Path) -> None:
    """A pipe, links in circles and a link to nothing, such as an editor's lock, neither hang lint nor stop it."""
    folder = repository / "first" / "1"
    os.mkfifo(folder / "pipe")
    for name, goal in (("a", ".."), ("b", ".."), ("self", "."), (".#model.py", "somebody@nowhere.1"), ("knot", "knot")):
        (folder / name).symlink_to(goal)
    done = in_time(repository, "--json")
    found = json.loads(done.stdout)["findings"]

    assert done.returncode == 2, done.stderr
    assert {(finding["severity"], finding["code"]) for finding in found} == {
        ("info", "repo.unread"),  # the pipe and the circles
        ("error", "repo.unread"),  # Triton refuses a model with a link to nothing
    }
    for name in ("pipe", "a/", "b/", "self/", ".#model.py", "knot"):
        assert any(f"first/1/{name}" in finding["message"] for finding in found)


def test_models_may_share_a_folder_by_links(repository: Path) -> None:
    """A link to a folder beside it is followed, however often; only a link back is not."""
    broken.remove("second/1")(repository)
    (repository / "second" / "1").symlink_to("../first/1")

    assert lint(repository) == []
    assert "second/1/model.py" in read_repository(repository)


def test_links_that_multiply_come_to_an_end(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty folders with two links each to the next are a million million paths; lint looks into some."""
    monkeypatch.setattr(sources._entries, "__kwdefaults__", {"deep": True, "limit": 500})
    for number in range(40):
        folder = repository / "second" / f"d{number}"
        folder.mkdir()
        (folder / "x").symlink_to(f"../d{number + 1}")
        (folder / "y").symlink_to(f"../d{number + 1}")

    assert codes(lint(repository)) >= {"warning repo.unread"}


def test_a_configuration_that_leads_nowhere_is_an_error(repository: Path) -> None:
    """What Triton cannot read, either, is as good as missing, and the message says why."""
    broken.remove(FIRST)(repository)
    (repository / FIRST).symlink_to("nowhere")
    broken.move("second/1/model.py", "second/1/other.py")(repository)
    (repository / "second" / "1" / "model.py").symlink_to("nowhere")
    found = {finding.code: finding.message for finding in lint(repository)}

    assert found["repo.config-missing"] == f"{FIRST} is a link to nothing"
    assert found["python.missing"].endswith("1/model.py, which is a link to nothing")


def test_a_file_that_is_too_large_to_read_has_its_size(repository: Path) -> None:
    """The data of a warm-up request may be large; it is there, and long enough."""
    warmup = broken._WARMUP.format(key="X", kind="TYPE_INT32", data='input_data_file: "big"')
    broken.append(FIRST, warmup)(repository)
    broken.write("first/warmup/big", "")(repository)
    with (repository / "first" / "warmup" / "big").open("wb") as file:
        file.truncate(sources.MAX_READ_BYTES + 1)

    assert lint(repository) == []


def test_large_files_are_compared_by_size() -> None:
    """A tokenizer over the limit is there; whether a listed file was edited is not known, unless its size differs."""
    tree = repository_tree()
    path = "preprocessing/1/tokenizer/tokenizer.json"
    listed = json.loads(tree["specdeploy.json"])["files"][path]["size_bytes"]

    def found(size: int) -> set[str]:
        return codes(list(lint_repository({**tree, path: Unread("is over 64 MiB", size=size)})))

    assert found(listed) == set()
    assert found(listed + 1) == {"warning repo.file-changed"}


def test_an_engine_is_looked_at_no_deeper_than_it_is(tmp_path: Path) -> None:
    """A path to half the machine is listed at its first level, broken links or not, and one of our store wholly."""
    root = tmp_path / "big"
    (root / "lib" / "deep").mkdir(parents=True)
    (root / "lib" / "deep" / "file").touch()
    (root / "gone").symlink_to("nowhere")
    (root / "config.json").write_text("{}")
    seen = engine_listing(tmp_path)("big")
    assert seen is not None
    assert dict(seen.sizes) == {"config.json": 2}

    (root / "manifest.json").write_text("{}")
    seen = engine_listing(tmp_path)("big")
    assert seen is not None
    assert set(seen.sizes) == {"config.json", "manifest.json", "lib/deep/file"}


@pytest.mark.parametrize("path", ["x" * 5001, "a\0b", "\udcff"])
def test_a_path_that_no_file_system_takes_is_no_directory(tmp_path: Path, path: str) -> None:
    """It comes from a configuration, where anything may stand."""
    assert engine_listing(tmp_path)(path) is None


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("vocab.txt", "a" * 2_000_000),
        ("vocab.txt", "a://" * 500_000),
        ("vocab.txt", "hf_" * 600_000),
        ("vocab.txt", "-----BEGIN " * 200_000),
        ("vocab.txt", "a://b:" + "c" * 2_000_000),
        ("other.py", "x = 1\n" * 100_000),
    ],
)
def test_the_time_is_in_proportion_to_the_text(repository: Path, file: str, text: str) -> None:
    """No pattern takes the square of a file's length: megabytes of one letter are done in moments."""
    broken.write(f"first/1/{file}", text)(repository)

    assert in_time(repository).returncode == 0


def test_a_configuration_full_of_quotes_and_dollars_ends(repository: Path) -> None:
    """Placeholders are found in one pass, whatever is not closed."""
    broken.append(FIRST, "\\" * 300_000 + '"${' * 300_000)(repository)

    assert in_time(repository).returncode == 2


def test_an_engine_of_any_number_of_ranks_is_only_counted(tmp_path: Path) -> None:
    """A damaged config.json may say any number; its ranks are not written out."""
    root = broken.templates(tmp_path / "models")
    broken.rebuilt("target", mode=2, max_draft_len=5, world_size=99_999_999_999)(root)
    done = in_time(root, "--json")

    assert done.returncode == 2, done.stderr
    assert "engine.ranks" in done.stdout
    assert "lint.check-failed" not in done.stdout


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("participant_ids", "error engine.ids"),
        ("lookahead_window_size", "error parameter.number"),
        ("max_tokens_in_paged_kv_cache", "error parameter.number"),
    ],
)
def test_numbers_that_nothing_can_hold_are_none(tmp_path: Path, key: str, code: str) -> None:
    """Python would not even convert 5,000 digits."""
    root = broken.templates(tmp_path / "models")
    for name in ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"):
        broken.parameter(TARGET, name, "7")(root)
    broken.parameter(TARGET, key, "7" * 5000)(root)
    found = codes(lint(root))

    assert code in found
    assert "warning lint.check-failed" not in found


@pytest.mark.parametrize("key", ["num_draft_tokens", "max_draft_tokens", "max_inflight"])
def test_the_decoder_takes_no_such_numbers_either(key: str) -> None:
    """An error of the parameter, and no more."""
    tree = repository_tree()
    tree["speculative_decoder/config.pbtxt"] += (
        f'parameters {{ key: "{key}" value {{ string_value: "{"9" * 5000}" }} }}\n'.encode()
    )
    found = codes(list(lint_repository(tree)))

    assert "error decoder.parameter" in found
    assert "warning lint.check-failed" not in found


def test_a_manifest_of_any_shape_is_survived() -> None:
    """Lists where names belong, numbers where objects belong."""
    tree = repository_tree()
    directory = EngineDirectory(sizes={"manifest.json": 2}, documents={"manifest.json": b"{}"})
    for document in (
        {"engines": {"target": {"model": []}, "draft": []}, "files": {"a": 1}},
        {"engines": [], "files": {"../..": {}}, "defaults": {"use_draft_logits": True}, "release": []},
        {"engines": {"target": {"vocab_size": []}, "draft": {"vocab_size": {}}}, "defaults": {"max_seq_len": "x"}},
    ):
        tree["specdeploy.json"] = json.dumps(document).encode()

        assert "warning lint.check-failed" not in codes(list(lint_repository(tree, lambda _: directory)))


def test_a_check_that_fails_is_a_finding_and_the_others_go_on() -> None:
    """A mistake of ours never ends a lint, and says whose mistake it is."""

    def check(repository: Repository) -> Iterator[Finding]:
        yield Finding(severity="info", code="a.b", message=str(len(repository.models)))
        raise ZeroDivisionError("by nothing")

    first, second = _found(check, load({}, None))

    assert first.code == "a.b"
    assert (second.severity, second.code) == ("warning", "lint.check-failed")
    assert "check ended with ZeroDivisionError: by nothing; this is a bug of specdeploy" in second.message


def _mutated(tree: dict[str, bytes], chance: random.Random) -> dict[str, bytes]:
    """Return the tree with a few bytes of one or two files changed, cut, doubled or put in from elsewhere."""
    tree = dict(tree)
    for path in chance.choices(sorted(tree), k=chance.randint(1, 2)):
        data = bytearray(tree[path])
        for _ in range(chance.randint(1, 4)):
            start = chance.randrange(len(data) + 1)
            end = min(len(data), start + chance.randint(0, 30))
            data[start:end] = chance.choice(
                [
                    b"",
                    bytes([chance.randrange(256)]),
                    bytes(data[start:end]) * 2,
                    chance.choice(
                        [b'"', b"{", b"}", b"[", b"${x}", b"\\xff", b"-1", b"9" * 5000, b"(" * 3000, b"null"]
                    ),
                ]
            )
        tree[path] = bytes(data)
    return tree


@pytest.mark.parametrize("seed", range(4))
def test_no_change_of_bytes_makes_a_check_fail(tmp_path: Path, seed: int) -> None:
    """Good repositories with bytes changed: findings or none, and never a failure of ours; the same ones each time."""
    chance = random.Random(seed)
    templates = read_repository(broken.templates(tmp_path / "models"))
    engine = (tmp_path / "engines" / "target" / "config.json").read_bytes()
    both = {"target": engine_facts("target"), "draft": engine_facts("draft")}
    for number in range(12):
        tree = dict(templates if number % 2 else repository_tree(**both))
        document = _mutated({"config.json": engine}, chance)["config.json"]
        directory = EngineDirectory(
            sizes={"config.json": 9, "rank0.engine": 9}, documents={"config.json": document, "manifest.json": document}
        )
        mutated = _mutated(tree, chance)
        found = lint_repository(mutated, lambda _, directory=directory: directory)  # type: ignore[misc]

        assert [f.message for f in found if f.code == "lint.check-failed"] == []


def test_every_check_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a check raises."""

    def check(repository: Repository) -> Iterator[Finding]:
        raise MemoryError(str(repository.manifest))

    monkeypatch.setattr("specdeploy.triton.lint.CHECKS", (check, *CHECKS))

    assert [f.code for f in lint_repository({})] == ["lint.check-failed", "repo.no-models"]
