"""Checkpoints and heads by the public sizes of real models, without a byte of them, and deployments made from them."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from specdeploy.checkpoint.head import HeadInfo
from specdeploy.config.load import load_config
from specdeploy.config.rules import HEADS, PAIRS
from specdeploy.config.schema import DeployConfig, DraftConfig, ModelConfig, SpeculationConfig, TensorrtLlmConfig
from specdeploy.engine.profile import EngineSpec
from specdeploy.engine.tensorrt_llm import TensorrtLlmProfile
from specdeploy.pipeline.machine import find_gpus
from specdeploy.planning.build import BuildPlan, Sources, plan_build
from tests.unit.checkpoint.folders import info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.checkpoint.info import CheckpointInfo

ROOT: Final = Path(__file__).parents[4]
RELEASES: Final = ("0.17.0.post1", "0.21.0", "1.0.0", "1.2.1")
CHECKPOINTS: Final = "/checkpoints"
CALIBRATION: Final = "/calibration/texts"


class Model(NamedTuple):
    """The sizes of a dense decoder, as its ``config.json`` has them."""

    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    positions: int
    tied: bool
    dtype: str
    parameters: int


_LLAMA: Final = "LlamaForCausalLM"
_QWEN: Final = "Qwen2ForCausalLM"
MODELS: Final = {
    "llama-3.3-70b-instruct": Model(
        _LLAMA, 8192, 80, 64, 8, 128, 28672, 128256, 131072, False, "bfloat16", 70_553_706_496
    ),
    "llama-3.1-8b-instruct": Model(
        _LLAMA, 4096, 32, 32, 8, 128, 14336, 128256, 131072, False, "bfloat16", 8_030_261_248
    ),
    "llama-3.2-1b-instruct": Model(_LLAMA, 2048, 16, 32, 8, 64, 8192, 128256, 131072, True, "bfloat16", 1_235_814_400),
    "qwen2.5-32b-instruct": Model(_QWEN, 5120, 64, 40, 8, 128, 27648, 152064, 32768, False, "bfloat16", 32_763_876_352),
    "qwen2.5-coder-7b-instruct": Model(
        _QWEN, 3584, 28, 28, 4, 128, 18944, 152064, 32768, False, "bfloat16", 7_615_616_512
    ),
    "qwen2.5-0.5b-instruct": Model(_QWEN, 896, 24, 14, 2, 64, 4864, 151936, 32768, True, "bfloat16", 494_032_768),
    "vicuna-7b-v1.3": Model(_LLAMA, 4096, 32, 32, 32, 128, 11008, 32000, 2048, False, "float16", 6_738_415_616),
}
# Kind, base model, width, ids, ids that it proposes, (heads by config.json, heads in the weights), layers, parameters.
_HEADS: Final[Mapping[str, tuple[Any, ...]]] = {
    "medusa-vicuna-7b-v1.3": (
        *("medusa", "lmsys/vicuna-7b-v1.3", 4096, 32000, None, (2, 4), 1),
        4 * (4096 * 4096 + 4096 + 32000 * 4096),
    ),
    "EAGLE-Vicuna-7B-v1.3": (
        *("eagle", None, 4096, 32000, None, (None, None), 1),
        32000 * 4096 + 2 * 4096 * 4096 + 4096 + 4 * 4096 * 4096 + 3 * 4096 * 11008 + 4096,
    ),
    "redrafter-vicuna-7b-v1.3": (
        *("redrafter", None, 4096, 32000, None, (None, None), 2),
        2 * (8192 * 8192 + 8192) + 32000 * 8192 + 2 * 4096 * 4096 + 4096,
    ),
    "EAGLE3-LLaMA3.1-Instruct-8B": (
        *("eagle3", None, 4096, 128256, 32000, (None, None), 1),
        3 * 4096 * 4096 + 2 * 4096 * 4096 + 4096 * (4096 + 2048) * 2 + 3 * 4096 * 14336 + 32000 * 4096,
    ),
}


def model(name: str, /, **changes: Any) -> CheckpointInfo:
    """Return a checkpoint of the sizes of a real model."""
    sizes = MODELS[name]
    values = {
        "path": f"{CHECKPOINTS}/{name}",
        "name": name,
        "architecture": sizes.architecture,
        "dtype": sizes.dtype,
        "vocab_size": sizes.vocab,
        "hidden_size": sizes.hidden,
        "num_layers": sizes.layers,
        "num_heads": sizes.heads,
        "num_kv_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "intermediate_size": sizes.intermediate,
        "max_position_embeddings": sizes.positions,
        "tie_word_embeddings": sizes.tied,
        "parameters": sizes.parameters,
        "weight_bytes": 2 * sizes.parameters,
        "fingerprint": _fingerprint(name),
    }
    return info(**(values | changes))


def head(name: str = "medusa-vicuna-7b-v1.3", /, **changes: Any) -> HeadInfo:
    """Return a head of the sizes of a real one."""
    kind, base, hidden, vocab, draft_vocab, (said, held), layers, parameters = _HEADS[name]
    plain = HeadInfo(
        kind=kind,
        path=f"{CHECKPOINTS}/{name}",
        name=name,
        base_model=base,
        hidden_size=hidden,
        target_hidden_size=hidden,
        vocab_size=vocab,
        draft_vocab_size=draft_vocab,
        num_heads_in_config=said,
        num_heads_in_weights=held,
        num_layers=layers,
        has_fc_bias=True if kind == "eagle" else None,
        dtype="float16",
        parameters=parameters,
        weight_bytes=2 * parameters,
        tensors=(),
        fingerprint=_fingerprint(name),
        stat_fingerprint="s" * 64,
    )
    return dataclasses.replace(plain, **changes)


def recipe(name: str, release: str | None = None, overrides: Mapping[str, str] | None = None) -> DeployConfig:
    """Return a checked-in recipe, for a release of one's choice."""
    changes = {**({} if release is None else {"release": release}), **(overrides or {})}
    return load_config(ROOT / "build" / f"{name}.yaml", changes, {}).config


def sources(config: DeployConfig, folder: str = CHECKPOINTS) -> Sources:
    """Return what a recipe is made from: models of our table, as if they lay in *folder*."""
    target, other = (PurePosixPath(part.checkpoint).name for part in (config.target, config.draft))
    method = config.speculation.method
    return Sources(
        target=model(target, path=f"{folder}/{target}"),
        draft=model(other, path=f"{folder}/{other}") if method in PAIRS else None,
        head=head(other, path=f"{folder}/{other}") if method in HEADS else None,
    )


def profile_for(config: DeployConfig, calibration: str = CALIBRATION) -> TensorrtLlmProfile:
    """Return the profile for the GPUs that a recipe names."""
    calibrated = bool(config.tensorrt_llm.calib_dataset)
    return TensorrtLlmProfile(
        config=config,
        capability=find_gpus(config).capability,
        calibration=calibration if calibrated else "",
        calibration_fingerprint="c" * 64 if calibrated else "",
    )


def plan(config: DeployConfig) -> BuildPlan:
    """Return the plan of a recipe on a machine with the GPUs that it names."""
    return plan_build(config, sources(config), profile_for(config), devices=tuple(map(str, range(config.gpu.count))))


def profile(
    method: str = "draft_target", release: str = "1.2.1", *, settings: TensorrtLlmConfig | None = None, **changes: Any
) -> TensorrtLlmProfile:
    """Return the profile of a deployment that speculates by *method*; *changes* are of its speculation."""
    config = DeployConfig(
        name="pair",
        profile="tensorrt_llm",
        release=release,
        target=ModelConfig(checkpoint="big"),
        draft=DraftConfig(),
        speculation=SpeculationConfig(method=method, **changes),
        tensorrt_llm=settings or TensorrtLlmConfig(),
    )
    return TensorrtLlmProfile(
        config=config, capability=(9, 0), calibration=CALIBRATION, calibration_fingerprint="c" * 64
    )


def spec(**changes: Any) -> EngineSpec:
    """Return a target's engine of a Llama 3.1 8B."""
    checkpoint = changes.pop("checkpoint", model("llama-3.1-8b-instruct"))
    values: dict[str, Any] = {
        "role": "target",
        "name": "big-bf16",
        "precision": "bf16",
        "checkpoint": checkpoint,
        "max_seq_len": 4096,
        "max_batch_size": 8,
    }
    return EngineSpec(**(values | changes))


def codes(findings: Any, severity: str = "error") -> list[str]:
    """Return the codes of the findings of a severity."""
    return [finding.code for finding in findings if finding.severity == severity]


def _fingerprint(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
