"""What bounds the speed-up of the demo's pair: the cost of drafting and of verifying, against one target step.

The speed-up that a mean acceptance length E allows is E / (k c + v), with k drafts a round, c the cost of one draft
step and v the cost of verifying k + 1 tokens, both in units of one target step (Leviathan et al. 2023, section 3.3).
"""

from __future__ import annotations

import os
import time
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime_genai as og

from specdeploy.config.load import load_config
from specdeploy.pipeline import engines

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT = 128
REPEATS = 20


class Stepper:
    """One engine with a filled KV cache; a step appends tokens and takes them back."""

    def __init__(self, engine: Path) -> None:
        self._model = og.Model(str(engine))
        parameters = og.GeneratorParams(self._model)
        parameters.set_search_options(max_length=CONTEXT + 64)
        self._generator = og.Generator(self._model, parameters)
        self._generator.append_tokens(np.arange(1000, 1000 + CONTEXT, dtype=np.int32))

    def seconds(self, tokens: int) -> float:
        """Return the seconds of one forward pass over *tokens* new tokens."""
        started = time.perf_counter()
        self._generator.append_tokens(np.arange(2000, 2000 + tokens, dtype=np.int32))
        self._generator.get_output("logits")
        taken = time.perf_counter() - started
        self._generator.rewind_to(CONTEXT)
        return taken


def rows(recipe: Path) -> list[tuple[str, float]]:
    """Return the cost ratios of the recipe's engines, measured in turns."""
    loaded = load_config(recipe, overrides={}, env=os.environ)
    built = engines.build(loaded, on_event=lambda _event: None)
    drafts = loaded.config.speculation.num_draft_tokens
    target, draft = map(Stepper, built.paths)
    taken: dict[str, list[float]] = {"step": [], "verify": [], "draft": []}
    for _ in range(REPEATS):
        taken["step"].append(target.seconds(1))
        taken["verify"].append(target.seconds(drafts + 1))
        taken["draft"].append(draft.seconds(1))
    middle = {name: median(values) for name, values in taken.items()}
    c, v = middle["draft"] / middle["step"], middle["verify"] / middle["step"]
    return [
        ("c: draft step / target step", c),
        (f"v: verify {drafts + 1} tokens / target step", v),
        (f"ceiling: speed-up if every draft were accepted, k = {drafts}", (drafts + 1) / (drafts * c + v)),
    ]
