"""What ``model.yaml`` says: the arguments of ``tensorrt_llm.LLM`` and, in ``triton_config``, those of Triton's model.

Triton's ``llmapi`` model reads the file, takes ``triton_config`` out and gives the rest to ``LLM``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import yaml

from specdeploy.engine.llmapi.arguments import Arguments, KeyPath, Own, lay_over, read_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.checkpoint.head import HeadInfo
    from specdeploy.checkpoint.info import CheckpointInfo
    from specdeploy.config.schema import DeployConfig
    from specdeploy.engine.llmapi.releases import LlmApiRelease
    from specdeploy.engine.profile import EngineSpec

#: Our precision to torch's name of it, for weights that are served as they are stored.
DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_HEADER: Final = """\
# Written by specdeploy for the LLM API of TensorRT-LLM {release}; change specdeploy.yaml, not this file.
# Arguments of tensorrt_llm.LLM, and triton_config for Triton's model.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelDocument:
    """One ``model.yaml`` before it is text.

    Args:
        content: What it says, the user's arguments included.
        own: The keys that follow from other keys of ``specdeploy.yaml``, set or not.
        arguments: The user's arguments.
        draft: The draft or head that it names, None when there is none.
        draft_key: Where its folder stands.
    """

    content: Mapping[str, Any]
    own: Mapping[KeyPath, Own]
    arguments: Arguments
    draft: CheckpointInfo | HeadInfo | None
    draft_key: KeyPath

    def identity(self, target: CheckpointInfo) -> dict[str, Any]:
        """Return the content and fingerprints; it names folders, so that a moved checkpoint is another one."""
        drafts = {} if self.draft is None else {"draft": self.draft.fingerprint}
        return {**self.content, "fingerprints": {"model": target.fingerprint, **drafts}}


def model_document(config: DeployConfig, spec: EngineSpec, release: LlmApiRelease) -> ModelDocument:
    """Return what ``model.yaml`` says for one engine; never raises, whatever the configuration says."""
    arguments = read_arguments(config.llmapi.args)
    content = _plain(
        {
            "model": spec.checkpoint.path,
            "backend": "pytorch",
            "tensor_parallel_size": spec.tp_size,
            "pipeline_parallel_size": spec.pp_size,
            "moe_expert_parallel_size": spec.ep_size,
            "dtype": _dtype(spec),
            "max_batch_size": spec.max_batch_size,
            "max_seq_len": spec.max_seq_len,
            "max_num_tokens": config.tensorrt_llm.max_num_tokens,
            "disable_overlap_scheduler": config.speculation.method in release.serial_methods or None,
            "kv_cache_config": {
                "enable_block_reuse": True,
                "dtype": None if spec.kv_cache == "auto" else spec.kv_cache,
            },
            "speculative_config": _speculation(config, spec, release),
            # The LLM API batches by itself. Without `decoupled`, Triton could not stream.
            "triton_config": {"max_batch_size": 0, "decoupled": True},
        }
    )
    own = _own(content, spec, release)
    return ModelDocument(
        content=lay_over(content, arguments, own),
        own=own,
        arguments=arguments,
        draft=_draft(spec, config.speculation.method),
        draft_key=("speculative_config", release.draft_key),
    )


def to_text(content: Mapping[str, Any], release: LlmApiRelease) -> str:
    """Return the file's text."""
    body = yaml.safe_dump(content, sort_keys=False, default_flow_style=False, width=1_000_000)
    return _HEADER.format(release=release.name) + body


def _dtype(spec: EngineSpec) -> str | None:
    """Return torch's name of the precision, None when it is the checkpoint's own, which ``auto`` finds."""
    wanted = DTYPES.get(spec.precision, spec.precision)
    return None if wanted == spec.checkpoint.dtype else wanted


def _speculation(config: DeployConfig, spec: EngineSpec, release: LlmApiRelease) -> dict[str, Any] | None:
    wanted = config.speculation
    if wanted.method not in release.decoding_types:
        return None
    section: dict[str, Any] = {"decoding_type": release.decoding_types[wanted.method]}
    if wanted.method == "mtp":
        section[release.mtp_length_key] = wanted.num_draft_tokens
    else:
        section["max_draft_len"] = wanted.num_draft_tokens
    if wanted.method == "ngram":
        section["max_matching_ngram_size"] = wanted.ngram_size
    draft = _draft(spec, wanted.method)
    return section if draft is None else {**section, release.draft_key: draft.path}


def _draft(spec: EngineSpec, method: str) -> CheckpointInfo | HeadInfo | None:
    if method == "draft_target":
        return spec.draft
    return spec.head if method == "eagle3" else None


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content without the keys that are None: those keep TensorRT-LLM's default."""
    return {
        key: _plain(value) if isinstance(value, dict) else value for key, value in content.items() if value is not None
    }


def _own(content: Mapping[str, Any], spec: EngineSpec, release: LlmApiRelease) -> dict[KeyPath, Own]:
    keys: dict[KeyPath, str] = {
        ("model",): "target.checkpoint",
        ("backend",): "",
        ("tensor_parallel_size",): "target.tp_size",
        ("pipeline_parallel_size",): "target.pp_size",
        ("moe_expert_parallel_size",): "target.ep_size",
        ("dtype",): "target.precision",
        ("max_batch_size",): "build.max_batch_size",
        ("max_seq_len",): "build.max_seq_len",
        ("max_num_tokens",): "tensorrt_llm.max_num_tokens",
        ("kv_cache_config", "dtype"): "target.kv_cache",
        ("speculative_config", "decoding_type"): "speculation.method",
        ("speculative_config", "max_draft_len"): "speculation.num_draft_tokens",
        ("speculative_config", "num_nextn_predict_layers"): "speculation.num_draft_tokens",
        ("speculative_config", "max_matching_ngram_size"): "speculation.ngram_size",
        ("speculative_config", "speculative_model"): "draft.checkpoint",
        ("speculative_config", "speculative_model_dir"): "draft.checkpoint",
        ("triton_config", "max_batch_size"): "",
    }
    own = {path: Own(key=key, accepted=_at(content, path) or _implied(path, spec)) for path, key in keys.items()}
    # An alias names the same folder.
    folder = own["speculative_config", release.draft_key]
    return own | {("speculative_config", alias): folder for alias in release.draft_aliases}


def _implied(path: KeyPath, spec: EngineSpec) -> tuple[Any, ...]:
    """Return what a key that is left out means, so that saying it is no contradiction."""
    return {("dtype",): ("auto", spec.checkpoint.dtype), ("kv_cache_config", "dtype"): ("auto",)}.get(path, ())


def _at(content: Any, path: KeyPath) -> tuple[Any, ...]:  # noqa: ANN401  # plain data
    for key in path:
        if key not in content:
            return ()
        content = content[key]
    return (content,)
