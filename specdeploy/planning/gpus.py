"""What common GPUs have: memory and compute capability, found by name.

Memory is what nvidia-smi reports as ``memory.total``, in MiB, which is less than the round number on the box where ECC
takes its share. A name that does not tell the size (a plain ``A100``) leaves the memory unknown.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

_MIB: Final = 1024**2
# The first pattern that is found in the name counts; None where the name does not tell how large it is.
_GPUS: Final[tuple[tuple[str, int | None, str], ...]] = (
    (r"gb300", 284208, "10.3"),
    (r"b300", 275040, "10.3"),
    (r"gb200", 189471, "10.0"),
    (r"b200", 183359, "10.0"),
    (r"gh200.*(144|141)", 146831, "9.0"),
    (r"gh200", 97871, "9.0"),
    (r"h200", 143771, "9.0"),
    (r"h100.*(nvl|94)", 95830, "9.0"),
    (r"h[18]00", 81559, "9.0"),
    (r"h20", 97871, "9.0"),
    (r"a[18]00.*80", 81920, "8.0"),
    (r"a100.*40", 40960, "8.0"),
    (r"a[18]00", None, "8.0"),
    (r"rtx.?pro.?6000", 97887, "12.0"),
    (r"rtx.?6000.*ada", 49140, "8.9"),
    (r"a6000", 49140, "8.6"),
    (r"l40s?", 46068, "8.9"),
    (r"l20", 46068, "8.9"),
    (r"l4", 23034, "8.9"),
    (r"a40", 46068, "8.6"),
    (r"a30", 24576, "8.0"),
    (r"a10g?", 23028, "8.6"),
    (r"(rtx)?5090", 32607, "12.0"),
    (r"(rtx)?4090", 24564, "8.9"),
    (r"(rtx)?3090", 24576, "8.6"),
    (r"t4", 15360, "7.5"),
    (r"v100.*32", 32768, "7.0"),
    (r"v100", 16384, "7.0"),
)
KNOWN: Final = "B200, H200, H100-80GB, H100-NVL, A100-80GB, A100-40GB, L40S, L4, A10, RTX 4090"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One kind of GPU.

    Args:
        name: As it was given.
        memory_bytes: All of its memory; None when it is not known, which leaves everything about it unchecked.
        compute_capability: Such as ``9.0``; None when it is not known.
    """

    name: str
    memory_bytes: int | None = None
    compute_capability: str | None = None

    def at_least(self, capability: float) -> bool | None:
        """Say whether its compute capability is at least this; None when it is not known."""
        return None if self.compute_capability is None else float(self.compute_capability) >= capability


def gpu_spec(name: str, *, memory_bytes: int | None = None, compute_capability: str | None = None) -> GpuSpec:
    """Return a GPU by its name, such as ``NVIDIA H100 80GB HBM3`` or ``L40S``; what is given goes before the table."""
    plain = name.lower().replace("_", " ")
    # Whole words only: an H1000 is no H100.
    whole = ((re.search(rf"(?<![a-z0-9]){pattern}(?![0-9])", plain), mib, sm) for pattern, mib, sm in _GPUS)
    found = next(((mib, sm) for match, mib, sm in whole if match), None)
    mib, capability = found or (None, None)
    return GpuSpec(
        name=name,
        memory_bytes=memory_bytes if memory_bytes is not None else (mib * _MIB if mib is not None else None),
        compute_capability=compute_capability or capability,
    )
