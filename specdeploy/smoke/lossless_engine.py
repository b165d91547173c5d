"""Asks the engine model of the target directly: which two tokens are the best after these ids?

The front door cannot be asked, because it takes text, and text does not say which tokens it came from. The prompt's ids
are those that the ``preprocessing`` model makes of it, as for every request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdeploy.smoke.margins import top_two
from specdeploy.triton.client import RequestFailed
from specdeploy.triton.protocol import make_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdeploy.smoke.margins import TopTwo
    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Tensor

    Outputs = dict[str, NDArray[Any]]

_PREPROCESSING: Final = "preprocessing"


class NoLogits(Exception):
    """The engine does not say; the message is why."""


class TargetLogits:
    """The target's own opinion of the next token, one request of one token each.

    Args:
        probe: Its client reaches the engine.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._prompts: dict[str, tuple[int, ...]] = {}

    def after(self, prompt: str, ids: Sequence[int]) -> TopTwo:
        """Return the two best tokens after a prompt and the first tokens of its answer.

        Raises:
            NoLogits: The engine was not built to give logits, or cannot be asked.
        """
        try:
            best = top_two(self._logits((*self._ids_of(prompt), *ids)))
        except RequestFailed as error:
            raise NoLogits(error.said) from error
        if best is None:
            raise NoLogits("what it answers as logits are none: was the engine built to gather them?")
        return best

    def _ids_of(self, prompt: str) -> tuple[int, ...]:
        if prompt not in self._prompts:
            query = (make_tensor("QUERY", "BYTES", prompt), make_tensor("REQUEST_OUTPUT_LEN", "INT32", 1))
            outputs = self._infer(_PREPROCESSING, query)
            self._prompts[prompt] = tuple(_wanted(outputs, "INPUT_ID").reshape(-1).tolist())
        return self._prompts[prompt]

    def _logits(self, ids: tuple[int, ...]) -> NDArray[Any]:
        tensors = (
            make_tensor("input_ids", "INT32", ids),
            make_tensor("input_lengths", "INT32", len(ids)),
            make_tensor("request_output_len", "INT32", 1),
            make_tensor("return_generation_logits", "BOOL", value=True),
        )
        logits = _wanted(self._infer(self._probe.expect.target_model, tensors), "generation_logits")
        return np.asarray(logits.reshape(-1, logits.shape[-1])[0])

    def _infer(self, model: str, tensors: Sequence[Tensor]) -> Outputs:
        return self._probe.client.infer(model, tensors, timeout_s=self._probe.timeout_s)


def _wanted(outputs: Outputs, name: str) -> NDArray[Any]:
    value = outputs.get(name)
    if value is None or not value.size:
        raise NoLogits(f"it answers without {name}; it has {', '.join(outputs) or 'nothing'}")
    return np.asarray(value)
