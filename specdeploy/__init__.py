"""specdeploy: put a draft-target pair into production on Triton, prove it, measure it, gate it.

The library's use cases are in :mod:`specdeploy.pipeline`; importing this package does nothing else.
"""

from __future__ import annotations

from typing import Final

__all__ = ["__version__"]

__version__: Final = "0.1.0"
