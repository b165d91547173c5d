"""From the mappings of a YAML document to the objects that ``LLM`` takes."""

from __future__ import annotations

import dataclasses
from typing import Any

_DECODING_TYPES = ("DraftTarget", "Eagle", "MTP", "NGram")


@dataclasses.dataclass(kw_only=True)
class DecodingConfig:
    """How the engine speculates."""

    decoding_type: str
    max_draft_len: int
    speculative_model_dir: str | None = None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DecodingConfig:
        """Make one of a mapping; an unknown key is an error."""
        if data.get("decoding_type") not in _DECODING_TYPES:
            raise ValueError(f"Invalid decoding type: {data.get('decoding_type')}")
        try:
            return cls(**data)
        except TypeError as error:
            raise ValueError(
                f"1 validation error for DecodingConfig\n  Extra inputs are not permitted: {error}"
            ) from None


def update_llm_args_with_extra_dict(
    llm_args: dict[str, Any], llm_args_dict: dict[str, Any], extra_llm_api_options: str | None = None
) -> dict[str, Any]:
    """Make the sections that are objects, and lay the second mapping over the first."""
    del extra_llm_api_options
    if "speculative_config" in llm_args_dict:
        llm_args_dict["speculative_config"] = DecodingConfig.from_dict(llm_args_dict["speculative_config"])
    return llm_args | llm_args_dict
