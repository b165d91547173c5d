"""``specdeploy engines``: a store with two engines, one of them later damaged, one no longer used."""

from __future__ import annotations

import fcntl
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.deployments import specdeploy
from tests.tiny import perturb_checkpoint, write_tiny_checkpoint
from tests.toolchain import install_toolchain

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """\
name: tiny
profile: tensorrt_llm
target: {{checkpoint: target}}
draft: {{checkpoint: draft}}
gpu: {{name: "9.0", count: 2, memory_gb: 80}}
build: {{max_seq_len: 256}}
tensorrt_llm: {{examples_dir: {examples}}}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A deployment whose engines are in the store."""
    root = tmp_path_factory.mktemp("engines")
    write_tiny_checkpoint(root / "target", seed=1)
    perturb_checkpoint(root / "target", root / "draft", 0.02)
    toolchain = install_toolchain(root / "toolchain", "1.2.1", gpus=2)
    (root / "specdeploy.yaml").write_text(CONFIG.format(examples=toolchain.examples))
    done = specdeploy("build", cwd=root, env=dict(toolchain.env))
    assert done.returncode == 0, done.stderr
    return root


def engines(root: Path, *arguments: str, code: int = 0) -> str:
    """Return what a subcommand prints; it must end with *code*."""
    done = specdeploy("engines", *arguments, cwd=root)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + (done.stderr if code else "")


def listed(root: Path) -> list[dict]:
    """Return the documents of all engines."""
    return json.loads(engines(root, "list", "--json"))["engines"]


def test_the_list_says_what_each_engine_is_used_as(built):
    """By name, release and role."""
    text = engines(built, "list")

    assert [engine["roles"] for engine in listed(built)].count(["target"]) == 1
    assert "target-fp16" in text
    assert "1.2.1" in text


def test_engines_are_listed_where_the_checkpoints_are_not(built, tmp_path):
    """As on the machine that serves them."""
    (tmp_path / "specdeploy.yaml").write_text(
        f"name: x\ntarget: {{checkpoint: gone}}\ndraft: {{checkpoint: gone}}\nbuild: {{engines_dir: {built}/engines}}\n"
    )

    assert [engine["roles"] for engine in listed(tmp_path)] == [None, None]


@pytest.mark.parametrize("how", ["role", "name", "key"])
def test_an_engine_is_shown_by_role_name_or_key(built, how):
    """Whatever is at hand."""
    target = next(engine for engine in listed(built) if engine["roles"] == ["target"])
    word = {"role": "target", "name": "target-fp16", "key": target["key"][:10]}[how]

    assert json.loads(engines(built, "show", word, "--json"))["key"] == target["key"]


def test_the_manifest_is_shown_to_people(built):
    """With the command lines that made it."""
    text = engines(built, "show", "target")

    assert "draft_target" in text
    assert "trtllm-build --checkpoint_dir '{previous}'" in text


def test_a_wrong_key_gets_the_nearest(built):
    """And exit code 2."""
    assert "Did you mean target-fp16?" in engines(built, "show", "target-fp8", code=2)


def test_an_engine_is_exported_whole_or_not_at_all(built, tmp_path):
    """As a directory or as an archive; an existing name is refused."""
    engines(built, "export", "target", str(tmp_path / "copy"))
    engines(built, "export", "draft", str(tmp_path / "draft.tar"))

    assert (tmp_path / "copy" / "manifest.json").is_file()
    assert (tmp_path / "copy" / "rank0.engine").is_file()
    with tarfile.open(tmp_path / "draft.tar") as archive:
        assert set(archive.getnames()) >= {"draft-fp16/manifest.json", "draft-fp16/rank0.engine"}
    assert "exists" in engines(built, "export", "target", str(tmp_path / "copy"), code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "draft.tar"]


def test_prune_removes_what_is_not_used_and_nothing_that_is_at_work(built):
    """Left-overs always, engines only when asked to, and neither while a builder holds its lock."""
    store = built / "engines"
    target = next(engine for engine in listed(built) if engine["roles"] == ["target"])
    busy, idle = store / f".staging-{'1' * 16}-1", store / f".staging-{'2' * 16}-1"
    kept = store / ".steps" / ("3" * 16)
    for path in (busy, idle, kept):
        path.mkdir(parents=True)
        (path / "part").write_bytes(b"x" * 1000)
    with (store / ".locks" / f"{'1' * 16}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "would remove 2 directories" in engines(built, "prune", "--dry-run")
        assert idle.is_dir()
        assert "removed 2 directories, 2.0 kB" in engines(built, "prune")
    assert busy.is_dir()
    assert not idle.exists()
    assert not kept.exists()
    assert len(listed(built)) == 2

    changed = ("--set", "draft.checkpoint=target")
    assert "nothing was removed" in engines(built, "prune", "--unused", *changed)
    assert len(listed(built)) == 2
    kept_too = engines(built, "prune", "--unused", "--yes", *changed, "--keep", str(built / "specdeploy.yaml"))
    assert kept_too.endswith("removed 1 directories, 1.0 kB\n")
    assert not busy.exists()

    engines(built, "prune", "--unused", "--yes", *changed)

    assert [engine["key"] for engine in listed(built)] == [target["key"]]


@pytest.mark.parametrize(
    ("doubt", "said"),
    [("target.extra_build_args=--gather_contxt_logits", "flags.unknown"), ("gpu.name=auto", "gpu.unknown")],
)
def test_nothing_is_pruned_while_it_is_not_known_what_is_used(built, doubt, said):
    """A slip in the configuration, or a login node without GPUs, must not cost an engine."""
    before = [engine["key"] for engine in listed(built)]

    assert said in engines(built, "prune", "--unused", "--yes", "--set", doubt, code=2)

    assert [engine["key"] for engine in listed(built)] == before


def test_a_removed_engine_is_gone_and_can_be_built_again(built):
    """As the cure for a damaged one says."""
    key = listed(built)[0]["key"]

    assert f"removed {built / 'engines' / key[:16]}" in engines(built, "remove", key[:12])
    assert "there is no engine" in engines(built, "remove", key[:12], code=2)
    toolchain = dict(install_toolchain(built / "toolchain", "1.2.1", gpus=2).env)
    assert specdeploy("build", cwd=built, env=toolchain).returncode == 0
    assert key in [engine["key"] for engine in listed(built)]


def test_damage_is_found_and_named(built):
    """A changed size at once, a changed byte by reading all; exit code 4."""
    target = next(engine for engine in listed(built) if engine["roles"] == ["target"])
    file = built / "engines" / target["key"][:16] / "rank0.engine"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    assert "0 problems" in engines(built, "verify")
    assert "rank0.engine was changed" in engines(built, "verify", "--full", code=4)
    file.write_bytes(data[:-1])
    assert "has " in engines(built, "verify", code=4)
    assert "engine.size-differs" in engines(built, "verify", "--json", code=4)
