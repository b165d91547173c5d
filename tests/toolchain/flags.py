"""The command line of ``trtllm-build``, made from the flag file of the release's era."""

from __future__ import annotations

import argparse
import enum
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

PLUGIN_GROUP = "Plugin config arguments"


class KVCacheType(enum.Enum):
    """The values of ``--kv_cache_type``."""

    CONTINUOUS = "continuous"
    PAGED = "paged"
    DISABLED = "disabled"


_TYPES = {"int": int, "str": str, "KVCacheType": KVCacheType, None: None}


def load_flags(path: Path) -> list[dict[str, Any]]:
    """Return the flags of a flag file."""
    flags: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["flags"]
    return flags


def build_parser(flags: list[dict[str, Any]]) -> argparse.ArgumentParser:
    """Return the parser: flags, aliases, choices, numbers, types and defaults as listed, abbreviations allowed.

    Flags that the file marks as not verified on both sides of the release are accepted.
    """
    parser = argparse.ArgumentParser(prog="trtllm-build")
    groups: dict[str, Any] = {"options": parser}
    for flag in flags:
        name = flag["group"]
        if name not in groups:
            groups[name] = parser.add_argument_group(name)
        groups[name].add_argument(flag["flag"], *flag["aliases"], **_options(flag))
    return parser


def _options(flag: dict[str, Any]) -> dict[str, Any]:
    # argparse knows its own object, not an equal string.
    default = argparse.SUPPRESS if flag["default"] == argparse.SUPPRESS else flag["default"]
    options: dict[str, Any] = {"dest": flag["dest"], "default": default}
    if flag["action"] == "StoreTrue":
        return options | {"action": "store_true"}
    for name in ("choices", "nargs"):
        if flag[name] is not None:
            options[name] = flag[name]
    return options | {"type": _TYPES[flag["type"]]}
