"""As much of Triton's Python backend as the decoder's engines call, with functions in the models' place."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    Model = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]

MODELS: dict[str, Model] = {}
"""Model name -> what it answers to its input tensors; one that is not here is not loaded."""

REQUESTS: list[InferenceRequest] = []
"""Every request that was made, in order."""


class TritonModelException(Exception):
    """What Triton raises for a model that is not there."""


class Tensor:
    """A named array."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        """Return the name."""
        return self._name

    def as_numpy(self) -> np.ndarray:
        """Return the array."""
        return self._array


class InferenceResponse:
    """An answer, or what went wrong."""

    def __init__(self, outputs: Mapping[str, np.ndarray] | None, error: str = "") -> None:
        self._outputs, self._error = outputs or {}, error

    def has_error(self) -> bool:
        """Say whether something went wrong."""
        return bool(self._error)

    def error(self) -> types.SimpleNamespace:
        """Return what."""
        return types.SimpleNamespace(message=lambda: self._error)

    def output_tensors(self) -> list[Tensor]:
        """Return the outputs."""
        return [Tensor(name, array) for name, array in self._outputs.items()]


class InferenceRequest:
    """A request to a model; keeps everything that it was made with."""

    def __init__(self, *, model_name: str, inputs: list[Tensor], **options) -> None:
        self.model_name, self.options = model_name, options
        self.inputs = {tensor.name(): tensor.as_numpy() for tensor in inputs}

    def exec(self) -> InferenceResponse:
        """Ask the model."""
        REQUESTS.append(self)
        if self.model_name not in MODELS:
            raise TritonModelException(f"Model {self.model_name} is not ready.")
        try:
            outputs = MODELS[self.model_name](self.inputs)
        except ValueError as error:
            return InferenceResponse(None, str(error))
        return InferenceResponse({name: outputs[name] for name in self.options["requested_output_names"]})


def install() -> None:
    """Put the stub where the decoder imports Triton's module from, and forget what an earlier test did."""
    module = types.ModuleType("triton_python_backend_utils")
    module.Tensor, module.InferenceRequest = Tensor, InferenceRequest
    module.TritonModelException = TritonModelException
    module.PreferredMemory = lambda *_: None
    module.TRITONSERVER_MEMORY_CPU = 0
    sys.modules[module.__name__] = module
    MODELS.clear()
    REQUESTS.clear()
