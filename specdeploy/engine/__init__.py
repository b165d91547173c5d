"""Engines: the profiles that say how one is made, the store that keeps them, the executor that makes them.

``PROFILES`` is the whole registry: a profile is an entry here and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.engine.cpu import CpuProfile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.engine.profile import EngineProfile

PROFILES: Final[Mapping[str, EngineProfile]] = {"cpu": CpuProfile()}
