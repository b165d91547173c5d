"""Makes the backend's package importable by the name it has inside Triton."""

from __future__ import annotations

import sys
from pathlib import Path

BACKEND = Path(__file__).parents[3] / "specdeploy" / "cpu" / "backend"

if str(BACKEND) not in sys.path:
    sys.path.append(str(BACKEND))
