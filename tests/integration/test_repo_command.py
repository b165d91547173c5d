"""``specdeploy repo`` as its users start it: an image's templates, two repositories, and deployments that are moved."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.deployments import specdeploy, write_deployment
from tests.nvidia_templates import FILL, draft_copy, refill, write_engine, write_templates
from tests.tiny import write_tiny_checkpoint

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

TIMEOUT_S = 60


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``specdeploy repo`` with these arguments."""
    return specdeploy("repo", *arguments, cwd=folder, timeout_s=TIMEOUT_S)


def contents(folder: Path) -> dict[str, str]:
    """Return every file of a folder and its hash."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture
def nvidia(tmp_path: Path) -> Path:
    """A folder with a repository filled in by hand, as ``nvidia``, and its two engines and tokenizer."""
    target = write_engine(tmp_path / "engines" / "target", mode=2, max_draft_len=8)
    draft = write_engine(tmp_path / "engines" / "draft")
    write_tiny_checkpoint(tmp_path / "tokenizer")
    fill = {
        **FILL,
        "engine_dir": str(target),
        "tokenizer_dir": str(tmp_path / "tokenizer"),
        "exclude_input_in_output": "true",
        "skip_special_tokens": "false",
        "max_queue_size": "32",
    }
    folder = write_templates(tmp_path / "nvidia", "1.2.1", fill=fill)
    draft_copy(folder)
    refill(folder, "tensorrt_llm_draft", {"gpt_model_path": str(draft), "kv_cache_free_gpu_mem_fraction": "0.3"})
    return tmp_path


class TestFromImage:
    """``--from-image``."""

    def test_templates_that_are_known(self, tmp_path: Path) -> None:
        """The table says what there is and where each placeholder stands; nothing is written."""
        write_templates(tmp_path / "all_models" / "inflight_batcher_llm", "1.2.1")
        before = contents(tmp_path)

        done = run(tmp_path, "--from-image", "all_models")

        assert done.returncode == 0, done.stderr
        assert "number: triton_max_batch_size" in done.stdout
        assert "no difference from the table of 1.x" in done.stdout
        assert contents(tmp_path) == before

    def test_differences_are_a_report_and_no_failure(self, tmp_path: Path) -> None:
        """An image of another release is shown with what differs, as text and as a document."""
        write_templates(tmp_path / "templates", "1.2.1")

        text = run(tmp_path, "--from-image", "templates", "--release", "0.19.0")
        document = run(tmp_path, "--from-image", "templates", "--release", "0.19.0", "--json")

        assert text.returncode == document.returncode == 0, text.stderr + document.stderr
        assert "min_tokens INT32[1] optional" in text.stdout
        read = json.loads(document.stdout)
        assert read["row"] == "0.19.0"
        assert {"renamed", "added"} <= {one["kind"] for one in read["differences"]}

    def test_a_folder_without_templates(self, tmp_path: Path) -> None:
        """Exit code 2, with what to name instead."""
        (tmp_path / "empty").mkdir()

        for folder in ("empty", "not-there"):
            done = run(tmp_path, "--from-image", folder)
            assert done.returncode == 2
            assert folder in done.stderr or "no inflight_batcher_llm templates" in done.stderr

    def test_its_options_need_it(self, tmp_path: Path) -> None:
        """``--release`` without it is a mistake, not a repository of that release."""
        done = run(tmp_path, "--release", "1.2.1")

        assert done.returncode == 2
        assert "--from-image" in done.stderr


class TestDiff:
    """``repo diff``."""

    def test_exit_codes_are_those_of_diff(self, tmp_path: Path) -> None:
        """0 when both mean the same, 1 when they differ, 2 when one cannot be read."""
        for name in ("a", "b"):
            write_templates(tmp_path / name, "1.2.1", fill=FILL)

        assert run(tmp_path, "diff", "a", "b").returncode == 0

        refill(tmp_path / "b", "tensorrt_llm", {"gpt_model_path": "/elsewhere"})
        done = run(tmp_path, "diff", "a", "b")
        assert done.returncode == 1
        assert done.stdout.splitlines() == [
            "tensorrt_llm",
            "  parameters[gpt_model_path]",
            "    - /engines/target",
            "    + /elsewhere",
        ]

        document = run(tmp_path, "diff", "a", "b", "--json")
        assert document.returncode == 1
        assert json.loads(document.stdout)["changes"] == [
            {
                "model": "tensorrt_llm",
                "field": "parameters[gpt_model_path]",
                "before": "/engines/target",
                "after": "/elsewhere",
                "kind": "changed",
            }
        ]

        write_templates(tmp_path / "open", "1.2.1")
        done = run(tmp_path, "diff", "a", "open")
        assert done.returncode == 2
        assert "open/ensemble/config.pbtxt:3:" in done.stderr
        assert run(tmp_path, "diff", "a", "not-there").returncode == 2


class TestMigrateRepository:
    """``repo migrate`` of a repository."""

    def test_a_pair_becomes_a_deployment(self, nvidia: Path) -> None:
        """A sound repository around the same engines, a configuration that loads, the list; nothing else changes."""
        before = contents(nvidia)

        done = run(nvidia, "migrate", "nvidia", "moved", "--name", "big")

        assert done.returncode == 0, done.stderr
        assert "postprocessing skip_special_tokens = false" in done.stdout
        assert {path: data for path, data in contents(nvidia).items() if not path.startswith("moved/")} == before
        moved = nvidia / "moved"
        config = (moved / "models" / "tensorrt_llm" / "config.pbtxt").read_text(encoding="utf-8")
        assert f'key: "gpt_model_path" value {{ string_value: "{nvidia}/engines/target" }}' in config
        assert 'key: "exclude_input_in_output" value { string_value: "false" }' in config
        assert yaml.safe_load((moved / "specdeploy.yaml").read_text(encoding="utf-8"))["repo"]["max_queue_size"] == 32
        document = json.loads((moved / "migration.json").read_text(encoding="utf-8"))
        assert document["counts"]["lost"] == 1
        assert (moved / "migration.txt").read_text(encoding="utf-8") in done.stdout
        assert specdeploy("lint", "models", cwd=moved, timeout_s=TIMEOUT_S).returncode == 0
        assert specdeploy("config", "show", cwd=moved, timeout_s=TIMEOUT_S).returncode == 0

    def test_what_it_made_it_replaces_and_nothing_else(self, nvidia: Path) -> None:
        """A second run gives the same folder; one with somebody's files in it is refused and left alone."""
        assert run(nvidia, "migrate", "nvidia", "moved").returncode == 0
        first = contents(nvidia / "moved")
        assert run(nvidia, "migrate", "nvidia", "moved").returncode == 0
        assert contents(nvidia / "moved") == first
        (nvidia / "moved" / "engines").mkdir()
        (nvidia / "moved" / "engines" / "built").write_text("hours of work\n")
        refused = run(nvidia, "migrate", "nvidia", "moved")
        assert refused.returncode == 2
        assert "engines/built" in refused.stderr
        assert (nvidia / "moved" / "engines" / "built").is_file()

        (nvidia / "theirs").mkdir()
        (nvidia / "theirs" / "file").write_text("precious\n")
        for destination in ("theirs", "engines", "nvidia", "nvidia/inside", "."):
            before = contents(nvidia)
            done = run(nvidia, "migrate", "nvidia", destination)
            assert done.returncode == 2, destination
            assert contents(nvidia) == before

    def test_a_repository_that_would_not_be_sound_is_not_written(self, nvidia: Path) -> None:
        """An engine that lacks its file: what speaks against it is said, and there is no folder."""
        (nvidia / "engines" / "draft" / "rank0.engine").unlink()

        done = run(nvidia, "migrate", "nvidia", "moved")

        assert done.returncode == 2
        assert "engine." in done.stderr
        assert not (nvidia / "moved").exists()
        assert not [path for path in nvidia.iterdir() if path.name.startswith(".")]

    def test_folders_of_another_machine(self, nvidia: Path) -> None:
        """Paths that are not here are looked up where one says; what is written is what was there."""
        served = {"target": "/srv/engines/target", "draft": "/srv/engines/draft"}
        refill(nvidia / "nvidia", "tensorrt_llm", {"gpt_model_path": served["target"]})
        refill(nvidia / "nvidia", "tensorrt_llm_draft", {"gpt_model_path": served["draft"]})
        refill(nvidia / "nvidia", "preprocessing", {"tokenizer_dir": "/srv/tokenizer"})

        missing = run(nvidia, "migrate", "nvidia", "moved")
        assert missing.returncode == 2
        assert "/srv/engines/target" in missing.stderr
        assert "--engines" in missing.stderr
        missing = run(nvidia, "migrate", "nvidia", "moved", "--engines", "engines")
        assert missing.returncode == 2
        assert "--tokenizer" in missing.stderr

        done = run(nvidia, "migrate", "nvidia", "moved", "--engines", "engines", "--tokenizer", "tokenizer")
        assert done.returncode == 0, done.stderr
        for model, path in (("tensorrt_llm", served["target"]), ("tensorrt_llm_draft", served["draft"])):
            assert path in (nvidia / "moved" / "models" / model / "config.pbtxt").read_text(encoding="utf-8")

    def test_relative_engines_are_found_again(self, nvidia: Path) -> None:
        """A relative path means the same engine, said from where the new repository is."""
        refill(nvidia / "nvidia", "tensorrt_llm", {"gpt_model_path": "engines/target"})

        assert run(nvidia, "migrate", "nvidia", "deep/moved").returncode == 0
        config = (nvidia / "deep" / "moved" / "models" / "tensorrt_llm" / "config.pbtxt").read_text(encoding="utf-8")
        assert '"../../../engines/target"' in config
        assert specdeploy("lint", "deep/moved/models", cwd=nvidia, timeout_s=TIMEOUT_S).returncode == 0

    def test_the_list_as_a_document(self, nvidia: Path) -> None:
        """``--json`` prints what ``migration.json`` has; code is compared with the image's when that is named."""
        write_templates(nvidia / "image", "1.2.1")
        (nvidia / "nvidia" / "tensorrt_llm_bls" / "1" / "model.py").write_text("mine = 1\n")

        done = run(nvidia, "migrate", "nvidia", "moved", "--templates", "image", "--json")

        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document == json.loads((nvidia / "moved" / "migration.json").read_text(encoding="utf-8"))
        code = [one["where"] for one in document["notes"] if one["where"].startswith("code ")]
        assert code == ["code tensorrt_llm_bls/1/model.py"]

    def test_what_is_no_such_repository(self, nvidia: Path) -> None:
        """A folder without models, and one of ours, are refused with a way on."""
        (nvidia / "empty").mkdir()
        assert run(nvidia, "migrate", "empty", "moved").returncode == 2
        assert run(nvidia, "migrate", "not-there", "moved").returncode == 2
        assert run(nvidia, "migrate", "nvidia", "moved").returncode == 0
        again = run(nvidia, "migrate", "moved/models", "again")
        assert again.returncode == 2
        assert "specdeploy.yaml" in again.stderr


CONFIG = """\
name: big
profile: tensorrt_llm
release: "1.2.1"
target:
  checkpoint: checkpoints/big
  kv_fraction: 0.6
draft:
  checkpoint: checkpoints/small
build:
  max_seq_len: 2048
"""


class TestMigrateConfig:
    """``repo migrate`` of a configuration."""

    def test_to_the_llm_api(self, tmp_path: Path) -> None:
        """A new file that loads, with paths that mean the same from where it is; the old one is as it was."""
        (tmp_path / "old").mkdir()
        source = tmp_path / "old" / "specdeploy.yaml"
        source.write_text(CONFIG)

        done = run(tmp_path, "migrate", "old/specdeploy.yaml", "new/specdeploy.yaml")

        assert done.returncode == 0, done.stderr
        assert "request num_draft_tokens" in done.stdout
        assert source.read_text() == CONFIG
        written = yaml.safe_load((tmp_path / "new" / "specdeploy.yaml").read_text(encoding="utf-8"))
        assert written["profile"] == "llmapi"
        assert written["target"] == {"checkpoint": "../old/checkpoints/big"}
        assert written["llmapi"]["args"] == ["kv_cache_config.free_gpu_memory_fraction=0.60"]
        assert written["build"]["max_seq_len"] == 2048
        shown = specdeploy("config", "show", cwd=tmp_path / "new", timeout_s=TIMEOUT_S)
        assert shown.returncode == 0, shown.stderr

    def test_no_file_is_overwritten(self, tmp_path: Path) -> None:
        """Not even one that was written by an earlier run."""
        (tmp_path / "specdeploy.yaml").write_text(CONFIG)
        assert run(tmp_path, "migrate", "specdeploy.yaml", "new.yaml").returncode == 0
        written = (tmp_path / "new.yaml").read_text()

        done = run(tmp_path, "migrate", "specdeploy.yaml", "new.yaml", "--method", "ngram")

        assert done.returncode == 2
        assert "exists already" in done.stderr
        assert (tmp_path / "new.yaml").read_text() == written

    def test_a_method_that_is_no_more(self, tmp_path: Path) -> None:
        """It is refused with the ways out, and one of them works."""
        (tmp_path / "specdeploy.yaml").write_text(f"{CONFIG}speculation:\n  method: medusa\n")

        refused = run(tmp_path, "migrate", "specdeploy.yaml", "new.yaml")
        assert refused.returncode == 2
        assert "--method ngram" in refused.stderr
        assert not (tmp_path / "new.yaml").exists()

        assert run(tmp_path, "migrate", "specdeploy.yaml", "new.yaml", "--method", "ngram").returncode == 0
        written = yaml.safe_load((tmp_path / "new.yaml").read_text(encoding="utf-8"))
        assert written["speculation"]["method"] == "ngram"
        assert not written["draft"]

    def test_options_of_the_other_kind_are_refused(self, tmp_path: Path) -> None:
        """An option that would do nothing is a mistake."""
        (tmp_path / "specdeploy.yaml").write_text(CONFIG)

        done = run(tmp_path, "migrate", "specdeploy.yaml", "new.yaml", "--engines", "engines")

        assert done.returncode == 2
        assert "--engines" in done.stderr

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        """An error that names it, not a bug of ours."""
        (tmp_path / "specdeploy.yaml").write_text(CONFIG)

        done = run(tmp_path, "migrate", "specdeploy.yaml", "specdeploy.yaml/new.yaml")

        assert done.returncode == 2
        assert "cannot be written" in done.stderr


@pytest.mark.cpu
def test_engines_that_are_served_elsewhere(tmp_path: Path) -> None:
    """``--engine-root`` is where the engines will be; the repository names them there."""
    write_deployment(tmp_path)
    assert specdeploy("build", cwd=tmp_path, timeout_s=240).returncode == 0

    done = run(tmp_path, "--engine-root", "/srv/engines")

    assert done.returncode == 0, done.stderr
    for model in ("tensorrt_llm", "tensorrt_llm_draft"):
        assert 'string_value: "/srv/engines/' in (tmp_path / "models" / model / "config.pbtxt").read_text()
