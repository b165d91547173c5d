"""Whether the packages that a program needs are installed; found, never imported."""

from __future__ import annotations

import importlib.util

from specdeploy.errors import ToolMissing


def require_packages(purpose: str, *packages: str) -> None:
    """Raise when a package of the ``cpu`` extra is not installed.

    Raises:
        ToolMissing: Names what is missing and how to install it.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ToolMissing(f"{purpose} needs {', '.join(missing)}", hint="pip install 'specdeploy[cpu]'")
