"""What differs between releases of the LLM API, as far as a speculating deployment writes it.

Where each row is from: ``1.3.0rc3`` was read, that is, its own classes accepted and refused these spellings when they
were run. The others are derived: up to 1.2 from the dispatch tables of older sources and NVIDIA's documentation, after
1.3.0rc3 from later sources. The pre-release in which the spellings changed is not known better than "after 1.3.0rc3",
about the time of NVIDIA/TensorRT-LLM pull request 11158.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

Provenance: TypeAlias = Literal["read", "derived"]

#: The release whose schema is packed.
SCHEMA_RELEASE: Final = "1.3.0rc3"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)((?:\.\d+)*)(?:rc(\d+))?(?:\.?(?:post|dev)\d+)?")
_LAST_RC_WITH_OLD_SPELLINGS: Final = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlmApiRelease:
    """One row: releases that take the same configuration.

    Args:
        name: Name of the row, such as ``1.2``.
        provenance: Whether the row, and the schema that it is checked against, was read or is derived.
        decoding_types: Our method to the ``decoding_type`` that means it.
        draft_key: The key of ``speculative_config`` that names the draft's or head's folder.
        draft_aliases: Other keys that the release takes for it.
        mtp_length_key: The key that says how many tokens MTP proposes.
        serial_methods: Methods that want ``disable_overlap_scheduler``.
        after_schema: Whether it is younger than the schema, so that it may have keys that are not in there.
    """

    name: str
    provenance: Provenance
    decoding_types: Mapping[str, str]
    draft_key: str
    draft_aliases: tuple[str, ...] = ()
    mtp_length_key: str = "num_nextn_predict_layers"
    serial_methods: frozenset[str] = frozenset()
    after_schema: bool = False


def _old(name: str) -> LlmApiRelease:
    # `Eagle` names no generation: the PyTorch backend knows EAGLE-3 only and has always taken it for that. No dispatch
    # table of these releases that we have seen lists `Eagle3`.
    types = {"draft_target": "DraftTarget", "eagle3": "Eagle", "mtp": "MTP", "ngram": "NGram"}
    return LlmApiRelease(
        name=name,
        provenance="derived",
        decoding_types=types,
        draft_key="speculative_model_dir",
        # A drafter that runs apart from the target could not overlap with the scheduler. Builds that have learned it
        # still take the key, which then costs speed at worst.
        serial_methods=frozenset({"draft_target", "ngram"}),
    )


_READ: Final = LlmApiRelease(
    name=SCHEMA_RELEASE,
    provenance="read",
    decoding_types={"draft_target": "DraftTarget", "eagle3": "Eagle3", "mtp": "MTP", "ngram": "NGram"},
    draft_key="speculative_model",
    draft_aliases=("speculative_model_dir",),
)
_NEW: Final = dataclasses.replace(
    _READ,
    name="1.3",
    provenance="derived",
    # Since it is the discriminator of a union, the class's own spelling counts.
    decoding_types={**_READ.decoding_types, "draft_target": "Draft_Target"},
    after_schema=True,
)
RELEASES: Final[Mapping[str, LlmApiRelease]] = {
    row.name: row
    for row in (
        _old("1.0"),
        _old("1.1"),
        _old("1.2"),
        _READ,
        _NEW,
        # `num_nextn_predict_layers` has become the checkpoint's own number; as a setting it is deprecated.
        dataclasses.replace(_NEW, name="1.4", mtp_length_key="max_draft_len"),
    )
}


def llmapi_release(text: str) -> LlmApiRelease:
    """Return the row of a TensorRT-LLM release such as ``1.2.1`` or ``1.3.0rc15``.

    Raises:
        ConfigError: It is no release, older than 1.0, or one that is not known yet.
    """
    match = _VERSION.fullmatch(text)
    row = RELEASES.get(f"{match[1]}.{match[2]}") if match else None
    if match is None or row is None:
        raise ConfigError(
            f"release: the LLM API of TensorRT-LLM {text!r} is not known",
            hint=f"The profile llmapi takes {', '.join(RELEASES)}, such as 1.2.1 or 1.3.0rc15.",
        )
    is_old_rc = match[4] is not None and int(match[4]) <= _LAST_RC_WITH_OLD_SPELLINGS
    return _READ if row is _NEW and is_old_rc else row
