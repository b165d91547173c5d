"""A small deployment's repository, as tests of the repository, the linter and the server need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdeploy.config.schema import BuildConfig, DeployConfig, ModelConfig
from specdeploy.engine.profile import EngineManifest
from specdeploy.triton.repository import build_repository

if TYPE_CHECKING:
    from collections.abc import Mapping

ENGINE_PATHS = {"target": "../engines/aaaa", "draft": "../engines/bbbb"}
TOKENIZER = {"tokenizer.json": b'{"model": {}}', "tokenizer_config.json": b"{}"}
MODEL = b"class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
SOURCES = {
    "preprocessing/1/model.py": MODEL,
    "speculative_decoder/1/model.py": MODEL,
    "speculative_decoder/1/loop.py": b"STEPS = 1\n",
}
COMPLETE_ENGINE = frozenset({"genai_config.json", "model.onnx", "model.onnx.data"})


def deploy_config(*, release: str = "1.2.1", **overrides: Any) -> DeployConfig:
    """Return a deployment of two tiny models."""
    values: dict[str, Any] = {
        "name": "tiny",
        "target": ModelConfig(checkpoint="target"),
        "draft": ModelConfig(checkpoint="draft", precision="int8"),
        "build": BuildConfig(max_seq_len=128, max_batch_size=3),
        "release": release,
    }
    return DeployConfig(**(values | overrides))


def engine_manifest(name: str, **overrides: Any) -> EngineManifest:
    """Return the manifest of an engine called *name*."""
    values: dict[str, Any] = {
        "key": name[0] * 64,
        "profile": "cpu",
        "name": name,
        "precision": "fp32",
        "checkpoint_name": "tiny",
        "checkpoint_fingerprint": "f" * 64,
        "vocab_size": 300,
        "max_seq_len": 512,
        "num_layers": 2,
        "num_kv_heads": 2,
        "head_dim": 16,
        "eos_token_ids": (2, 7),
        "files": (),
        "argv": (),
        "tool_versions": {},
        "created": "2026-01-31T09:30:00+00:00",
        "duration_s": 1.0,
        "size_bytes": 1,
    }
    return EngineManifest(**(values | overrides))


def repository_tree(
    config: DeployConfig | None = None,
    *,
    target: EngineManifest | None = None,
    draft: EngineManifest | None = None,
    sources: Mapping[str, bytes] = SOURCES,
    engine_paths: Mapping[str, str] = ENGINE_PATHS,
    tokenizer: Mapping[str, bytes] = TOKENIZER,
) -> dict[str, bytes]:
    """Return the whole repository of a tiny deployment."""
    return dict(
        build_repository(
            config or deploy_config(),
            target or engine_manifest("target"),
            draft or engine_manifest("draft"),
            engine_paths=engine_paths,
            tokenizer_files=tokenizer,
            sources=sources,
        )
    )
