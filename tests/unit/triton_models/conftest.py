"""Puts the models' version folders on the path, as Triton's Python stub does, so that their modules import by name."""

from __future__ import annotations

import sys
from pathlib import Path

MODELS = Path(__file__).parents[3] / "specdeploy" / "triton" / "models"

for model in ("preprocessing", "speculative_decoder"):
    sys.path.append(str(MODELS / model / "1"))
