"""``SamplingParams`` and ``GuidedDecodingParams``: fields and checks, without what they become in C++."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    """One guide."""

    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """The fields of 1.0 to 1.4; any other is a TypeError, as there."""

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: Any = None
    bad_token_ids: list[int] | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: Any = None
    lookahead_config: Any = None
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        """Check, and complete what follows from other fields."""
        self.pad_id = self.end_id if self.pad_id is None else self.pad_id
        self.best_of = self.best_of or self.n
        if self.best_of > 1 and self.greedy:
            raise ValueError(f"Greedy decoding does not allow multiple returns, got best_of={self.best_of}")
        if self.guided_decoding is not None:
            guides = sum(bool(getattr(self.guided_decoding, field.name)) for field in fields(GuidedDecodingParams))
            if guides > 1:
                raise ValueError(f"Only one guide can be used for a request, but got {guides}.")

    @property
    def greedy(self) -> bool:
        """The most likely token is taken: nothing is said of sampling, or what is said leaves one token."""
        asked = (self.temperature, self.top_p, self.top_k)
        return asked == (None, None, None) or self.top_k == 1 or self.top_p == 0.0 or self.temperature == 0
