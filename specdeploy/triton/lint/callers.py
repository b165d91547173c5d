"""Models that call others by name: our decoder, and NVIDIA's ``tensorrt_llm_bls``.

A name in a parameter is looked up at the first request only, so it is looked up here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint.loaded import (
    ENGINE_BACKEND,
    Model,
    Repository,
    error,
    info,
    set_parameters,
    warning,
    whole_number,
)
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.findings import Finding
    from specdeploy.triton.pbtxt import ModelConfig

TARGET_KEY: Final = "tensorrt_llm_model_name"
DRAFT_KEY: Final = "tensorrt_llm_draft_model_name"
_KEYS: Final = (TARGET_KEY, DRAFT_KEY)
_NAMING: Final = (*_KEYS, "multimodal_encoders_name", "preprocessing_model_name")
# Tensors that a caller hands from one engine to the other, or from an engine to the client: types must agree.
_PASSED_ON: Final = ("context_logits", "generation_logits", "draft_logits", "prompt_embedding_table")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Caller:
    """A model that calls engines.

    Args:
        model: The model.
        config: Its configuration.
        parameters: Those of its parameters that are set.
    """

    model: Model
    config: ModelConfig
    parameters: Mapping[str, str]

    @property
    def target(self) -> str:
        """Name of the model that it takes for the target; empty when none is named."""
        return self.parameters.get(TARGET_KEY, "")

    @property
    def draft(self) -> str:
        """Name of the model that it takes for the draft; empty when none is named."""
        return self.parameters.get(DRAFT_KEY, "")

    @property
    def sends_drafts(self) -> bool:
        """Whether the target gets draft tokens, from a draft or from the text so far."""
        return bool(self.draft) or (self.ours and "ngram_size" in self.parameters)

    @property
    def drafts(self) -> int | None:
        """Most tokens that it drafts at a time, as far as its parameters say."""
        values = [whole_number(self.parameters.get(key)) for key in ("num_draft_tokens", "max_draft_tokens")]
        return max((value for value in values if value is not None), default=None)

    @property
    def sends_logits(self) -> bool:
        """Whether the draft's logits go to the target unless a request says otherwise."""
        return self.parameters.get("use_draft_logits", "").lower() == "true"

    @property
    def ours(self) -> bool:
        """Whether it is our decoder; somebody else's model may have its name, but not this parameter."""
        return self.model.directory == names.DECODER and "num_draft_tokens" in self.parameters

    def at(self, key: str) -> str:
        """Return where *key* is set."""
        return self.model.at(f'"{key}"')


def callers(repository: Repository) -> tuple[Caller, ...]:
    """Return the models that name engines, except engines themselves, and our decoder, which may hold its own."""
    found = [
        Caller(model=repository.models[name], config=config, parameters=set_parameters(config))
        for name, config in repository.configs().items()
        if config.backend != ENGINE_BACKEND
    ]
    return tuple(caller for caller in found if caller.ours or any(key in caller.parameters for key in _KEYS))


def references(repository: Repository) -> Iterator[Finding]:
    """Models that parameters name exist: a caller finds out only at its first request."""
    for caller in callers(repository):
        for key in _NAMING:
            value = caller.parameters.get(key, "")
            if value and value not in repository.models:
                yield error(
                    "bls.unknown-model",
                    f"{key} is {value!r}, which is not in the repository",
                    where=caller.at(key),
                    hint=f"one of {', '.join(sorted(repository.models))}",
                )
        if caller.draft and caller.draft == caller.target:
            yield warning(
                "bls.draft-is-target",
                f"target and draft are both {caller.draft!r}: drafting costs what it saves",
                where=caller.at(DRAFT_KEY),
                hint="name the small model as the draft",
            )


def passed_tensors(repository: Repository) -> Iterator[Finding]:
    """Tensors that a caller passes on have one type in the caller and in both engines."""
    for caller in callers(repository):
        for name in _PASSED_ON:
            types = dict(_types(repository, caller, name))
            if len(set(types.values())) > 1:
                listed = ", ".join(f"{kind} in {model}" for model, kind in types.items())
                yield error(
                    "bls.type-differs",
                    f"{name} is {listed}",
                    where=caller.model.where,
                    hint="fill the same type in everywhere (logits_datatype, prompt_embedding_table_data_type)",
                )


def rounds(repository: Repository) -> Iterator[Finding]:
    """NVIDIA's caller decodes one request at a time for each instance, and never streams while it drafts."""
    for caller in callers(repository):
        if not caller.draft or caller.ours:
            continue
        if caller.config.decoupled:
            yield info(
                "bls.decoupled",
                f"{caller.model.directory} is decoupled: requests that stream are refused when they draft",
                where=caller.model.at("decoupled"),
                hint="decoupled: false, unless clients stream without drafts",
            )
        instances = sum(group.count for group in caller.config.instance_group)
        if instances == 1:
            yield info(
                "bls.instances",
                f"{caller.model.directory} has one instance, and so decodes one request at a time",
                where=caller.model.at("instance_group"),
                hint="as many instances as requests are to be decoded at once (bls_instance_count)",
            )


def _types(repository: Repository, caller: Caller, name: str) -> Iterator[tuple[str, str]]:
    """Yield model and type of a tensor; the draft's generation_logits are the target's draft_logits."""
    places = [caller.model.directory, caller.target]
    if name != "prompt_embedding_table":
        places.append(caller.draft)
    for place in places:
        model = repository.models.get(place)
        config = model.config if model is not None else None
        # The caller hands what the draft generates to the target as draft_logits.
        sought = "generation_logits" if name == "draft_logits" and place == caller.draft else name
        for tensor in (*config.inputs, *config.outputs) if config is not None else ():
            if tensor.name == sought:
                yield place, tensor.data_type
