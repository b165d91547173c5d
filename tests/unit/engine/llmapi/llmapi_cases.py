"""Configurations and engines that the tests of the `llmapi` profile start from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.checkpoint.head import HeadInfo
from specdeploy.checkpoint.info import CheckpointInfo, TensorInfo
from specdeploy.config.schema import DeployConfig, DraftConfig, LlmApiConfig, ModelConfig, SpeculationConfig
from specdeploy.engine.llmapi import LlmApiProfile
from specdeploy.engine.profile import EngineSpec
from tests.unit.checkpoint.folders import info

if TYPE_CHECKING:
    from collections.abc import Sequence

METHODS = ("draft_target", "eagle3", "mtp", "ngram")


def profile(method: str = "draft_target", release: str = "1.2.1", args: Sequence[str] = (), **speculation: Any):
    """Return the profile of a deployment that speculates by *method*."""
    return LlmApiProfile(
        DeployConfig(
            name="pair",
            profile="llmapi",
            release=release,
            target=ModelConfig(checkpoint="big"),
            draft=DraftConfig(),
            speculation=SpeculationConfig(method=method, **speculation),
            llmapi=LlmApiConfig(args=tuple(args)),
        )
    )


def configured(made: LlmApiProfile, **sections: Any) -> LlmApiProfile:
    """Return the profile with other sections of its configuration."""
    return LlmApiProfile(dataclasses.replace(made.config, **sections))


def target(**changes: Any) -> CheckpointInfo:
    """Return a target of 32 heads and 8 KV heads, of the sizes of Llama-3.1-8B."""
    sizes = {"num_layers": 32, "num_heads": 32, "num_kv_heads": 8, "hidden_size": 4096, "head_dim": 128}
    return info(**({"path": "/models/big", "dtype": "bfloat16"} | sizes | changes))


def deepseek(**changes: Any) -> CheckpointInfo:
    """Return a checkpoint with one layer for multi-token prediction behind its 61 layers."""
    layers = tuple(
        TensorInfo(name=f"model.layers.{n}.eh_proj.weight", dtype="BF16", shape=(1,), nbytes=2, file="a")
        for n in (0, 61)
    )
    sizes = {"num_layers": 61, "num_heads": 128, "num_kv_heads": 128}
    return target(**({"architecture": "DeepseekV3ForCausalLM", "tensors": layers} | sizes | changes))


def draft(**changes: Any) -> CheckpointInfo:
    """Return a small checkpoint."""
    values = {"path": "/models/small", "name": "small", "dtype": "bfloat16", "num_heads": 32, "num_kv_heads": 8}
    return info(**(values | {"fingerprint": "d" * 64} | changes))


def head(**changes: Any) -> HeadInfo:
    """Return an EAGLE-3 head for the target."""
    values: dict[str, Any] = {
        "kind": "eagle3",
        "path": "/models/head",
        "name": "head",
        "base_model": None,
        "hidden_size": 4096,
        "target_hidden_size": 4096,
        "vocab_size": 6,
        "draft_vocab_size": None,
        "num_heads_in_config": None,
        "num_heads_in_weights": None,
        "num_layers": 1,
        "has_fc_bias": False,
        "dtype": "bfloat16",
        "parameters": 1,
        "weight_bytes": 2,
        "tensors": (),
        "fingerprint": "e" * 64,
        "stat_fingerprint": "s" * 64,
    }
    return HeadInfo(**(values | changes))


def spec(method: str = "draft_target", **changes: Any) -> EngineSpec:
    """Return the engine that a deployment by *method* wants."""
    values: dict[str, Any] = {
        "role": "target",
        "name": "big-bf16",
        "precision": "bf16",
        "checkpoint": deepseek() if method == "mtp" else target(),
        "max_seq_len": 4096,
        "max_batch_size": 8,
        "draft": draft() if method == "draft_target" else None,
        "head": head() if method == "eagle3" else None,
    }
    return EngineSpec(**(values | changes))


def text(made: LlmApiProfile, engine: EngineSpec) -> str:
    """Return the file that the profile's step writes."""
    (step,) = made.steps(engine)
    return step.writes["model.yaml"]


def found(made: LlmApiProfile, engine: EngineSpec) -> list[tuple[str, str]]:
    """Return severity and code of what the check finds, but for where the schema is from."""
    findings = [(finding.severity, finding.code) for finding in made.check(engine)]
    return [finding for finding in findings if finding[1] != "llmapi.derived-schema"]
