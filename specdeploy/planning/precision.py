"""What a weight costs in GPU memory at each precision of the configuration.

Sizes of scales: a 16-bit scale for every 128 weights with AWQ (ModelOpt's block size), an 8-bit one for every 16 with
NVFP4. Scales per tensor or per channel are below a thousandth and not counted.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """How the linear layers of an engine are stored.

    Args:
        name: As the configuration spells it.
        bytes_per_weight: Of a linear layer, its scales included.
        group: Weights that share a scale along a row, which shards must hold whole; 1 without groups.
        whole_model: Whether embedding and output layer have this type, too; where not, they stay at 16 bits.
    """

    name: str
    bytes_per_weight: float
    group: int = 1
    whole_model: bool = False


_PRECISIONS: Final[Mapping[str, Precision]] = {
    precision.name: precision
    for precision in (
        Precision(name="fp32", bytes_per_weight=4.0, whole_model=True),
        Precision(name="fp16", bytes_per_weight=2.0, whole_model=True),
        Precision(name="bf16", bytes_per_weight=2.0, whole_model=True),
        Precision(name="int8", bytes_per_weight=1.0),
        Precision(name="int4", bytes_per_weight=0.5),
        # FP8 matrix products need dimensions that are multiples of 16.
        Precision(name="fp8", bytes_per_weight=1.0, group=16),
        Precision(name="int8_sq", bytes_per_weight=1.0),
        Precision(name="int8_wo", bytes_per_weight=1.0),
        Precision(name="int4_wo", bytes_per_weight=0.5),
        Precision(name="int4_awq", bytes_per_weight=0.5 + 2 / 128, group=128),
        Precision(name="w4a8_awq", bytes_per_weight=0.5 + 2 / 128, group=128),
        Precision(name="nvfp4", bytes_per_weight=0.5 + 1 / 16, group=16),
    )
}


def precision(name: str) -> Precision:
    """Return what a precision costs.

    Raises:
        ConfigError: There is none of that name; ``auto`` must have been resolved before.
    """
    if name not in _PRECISIONS:
        near = difflib.get_close_matches(name, _PRECISIONS, n=1)
        raise ConfigError(f"there is no precision {name!r}", hint=f"Did you mean {near[0]}?" if near else "")
    return _PRECISIONS[name]
