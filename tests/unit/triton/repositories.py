"""A small deployment's repository, as tests of the repository, the linter and the server need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdeploy.config.schema import BuildConfig, DeployConfig, ModelConfig
from specdeploy.triton.repository import EngineFacts, build_repository

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


def engine_facts(name: str, **overrides: Any) -> EngineFacts:
    """Return what is known of an engine called *name*."""
    values: dict[str, Any] = {
        "key": name[0] * 64,
        "profile": "cpu",
        "name": name,
        "precision": "fp32",
        "checkpoint": "tiny",
        "vocab_size": 300,
        "max_seq_len": 512,
        "eos_token_ids": (2, 7),
        "size_bytes": 1,
    }
    return EngineFacts(**(values | overrides))


def repository_tree(
    config: DeployConfig | None = None,
    *,
    target: EngineFacts | None = None,
    draft: EngineFacts | None = None,
    sources: Mapping[str, bytes] = SOURCES,
    engine_paths: Mapping[str, str] = ENGINE_PATHS,
    tokenizer: Mapping[str, bytes] = TOKENIZER,
) -> dict[str, bytes]:
    """Return the whole repository of a tiny deployment."""
    return dict(
        build_repository(
            config or deploy_config(),
            {"target": target or engine_facts("target"), "draft": draft or engine_facts("draft")},
            engine_paths=engine_paths,
            tokenizer_files=tokenizer,
            sources=sources,
        )
    )
