"""Whether the packages that a conversion needs are installed; found, never imported."""

from __future__ import annotations

import importlib.util
from typing import Final

from specdeploy.errors import ToolMissing

# Not `nvidia-modelopt[hf]`: the extra asks for other versions of transformers.
INSTALL: Final = "pip install torch nvidia-modelopt==0.37.0 transformers==4.56.2 accelerate"
# Import name to the name it is installed by.
_NEEDED: Final = {
    "torch": "torch",
    "modelopt": "nvidia-modelopt",
    "transformers": "transformers",
    "safetensors": "safetensors",
    "accelerate": "accelerate",
}


def is_installed(name: str) -> bool:
    """Return whether ``name`` can be imported."""
    return importlib.util.find_spec(name) is not None


def require_packages() -> None:
    """Raise when something is not installed.

    Raises:
        ToolMissing: Names all that is missing and how to install it.
    """
    missing = [package for name, package in _NEEDED.items() if not is_installed(name)]
    if missing:
        raise ToolMissing(f"converting a checkpoint needs {', '.join(missing)}", hint=INSTALL)
