"""What differs between the releases that are played: flags, folders, defaults, pins.

Where a fact is not known for every release, the border that is drawn here is derived, and its comment says from what.
"""

from __future__ import annotations

from typing import Final

CORE_FAMILIES: Final = ("llama", "qwen", "gemma", "gpt", "phi")
CONTRIB_FAMILIES: Final = ("falcon",)
HEAD_FAMILIES: Final = ("medusa", "eagle", "redrafter")  # never moved

# First release (major, minor) of an era, and the release whose flag file stands for the era. 0.17 and 0.18 are derived
# from 0.16: the defaults of paged and FP8 context FMHA and of tokens_per_block changed somewhere between 0.16 and 0.21,
# and the border at 0.19 is a guess in the middle.
_FLAG_ERAS: Final = (
    ((1, 2), "1.2.1"),
    ((1, 0), "1.0.0"),
    ((0, 19), "0.21.0"),
    ((0, 16), "0.16.0.dev2024121000"),
)
# From the dependencies that each release publishes; 0.17 publishes none and takes 0.16's (derived).
_MODELOPT: Final = (
    ((1, 1), "0.37.0"),
    ((1, 0), "0.33.0"),
    ((0, 21), "0.31.0"),
    ((0, 20), "0.29.0"),
    ((0, 19), "0.27.0"),
    ((0, 18), "0.25.0"),
    ((0, 16), "0.17.0"),
)


def number(release: str) -> tuple[int, int]:
    """Return ``(major, minor)`` of a release such as ``0.17.0.post1``."""
    major, minor = release.split(".")[:2]
    return int(major), int(minor)


def flags_release(release: str) -> str:
    """Return the release whose flag file ``release`` uses; ``ValueError`` for one that has no engine flow here."""
    if number(release) >= (1, 3):
        raise ValueError(f"release {release} is not played; the last one is 1.2.x")
    return _of_era(_FLAG_ERAS, release)


def modelopt_version(release: str) -> str:
    """Return the version of ModelOpt that the release pins."""
    return _of_era(_MODELOPT, release)


def family_folder(release: str, family: str) -> str:
    """Return where the examples tree of a release keeps the converter of ``family``, relative to the tree."""
    if family in HEAD_FAMILIES or number(release) < (0, 20):
        return family
    return f"models/{'core' if family in CORE_FAMILIES else 'contrib'}/{family}"


def has_auto_parallel(release: str) -> bool:
    """Whether the auto-parallel flags and their block in the engine's configuration exist (until 1.1)."""
    return number(release) < (1, 2)


def has_pydantic_build_config(release: str) -> bool:
    """Whether ``--build_config`` is validated by pydantic (1.2) rather than read key by key."""
    return number(release) >= (1, 2)


def infers_cluster_first(release: str) -> bool:
    """Whether the first thing that asks for a GPU is the auto-parallel cluster, which ``--cluster_key`` can bypass.

    Measured on 0.16; that it holds for 0.17 and 0.18 is derived. Later ones ask when they validate the plugins.
    """
    return number(release) < (0, 19)


def driver_version(release: str) -> str:
    """Return a driver that the release runs on: CUDA 13.1 from 1.2 on, 13.0 for 1.1, CUDA 12 before."""
    if number(release) >= (1, 2):
        return "590.44.01"
    return "580.95.05" if number(release) >= (1, 1) else "575.57.08"


def joins_converted(release: str) -> bool:
    """Whether the ReDrafter converter takes a converted base model (from 1.0 on, by that release's notes)."""
    return number(release) >= (1, 0)


def _of_era(eras: tuple[tuple[tuple[int, int], str], ...], release: str) -> str:
    for first, value in eras:
        if number(release) >= first:
            return value
    raise ValueError(f"release {release} is not played; the first one is 0.16")
