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

    def shape(self) -> tuple[int, ...]:
        """Return its shape."""
        return self._array.shape


class TritonError:
    """The kinds of errors."""

    INVALID_ARG, INTERNAL = 1, 2

    def __new__(cls, message: str, _code: int = INTERNAL) -> str:
        """Return the message."""
        return message


class InferenceResponse:
    """An answer, or what went wrong."""

    def __init__(self, output_tensors: list[Tensor] | None = None, error: str = "") -> None:
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors or ()}
        self._error = error

    def has_error(self) -> bool:
        """Say whether something went wrong."""
        return bool(self._error)

    def error(self) -> types.SimpleNamespace:
        """Return what."""
        return types.SimpleNamespace(message=lambda: self._error)

    def output_tensors(self) -> list[Tensor]:
        """Return the outputs."""
        return [Tensor(name, array) for name, array in self.outputs.items()]


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
            return InferenceResponse(error=str(error))
        wanted = [name for name in self.options["requested_output_names"] if name in outputs]
        return InferenceResponse([Tensor(name, outputs[name]) for name in wanted])


METRICS: dict[tuple[str, ...], float] = {}
"""Name and label values of a metric -> its value; of a histogram the sum."""


class MetricFamily:
    """A family of metrics, which refuses what Triton refuses: two metrics of one name and labels."""

    COUNTER, GAUGE, HISTOGRAM = range(3)

    def __init__(self, *, name: str, description: str, kind: int) -> None:
        assert description
        self.name, self.kind = name, kind

    def Metric(self, *, labels: Mapping[str, str], buckets: list[float] | None = None) -> Metric:  # noqa: N802 - Triton's
        """Return a metric."""
        assert (buckets is not None) == (self.kind == self.HISTOGRAM)
        return Metric((self.name, *labels.values()), self.kind)


class Metric:
    """One metric."""

    def __init__(self, key: tuple[str, ...], kind: int) -> None:
        assert key not in METRICS
        self._key, self._kind = key, kind
        METRICS[key] = 0.0

    def increment(self, value: float) -> None:
        """Add to a counter."""
        assert self._kind == MetricFamily.COUNTER
        METRICS[self._key] += value

    def set(self, value: float) -> None:
        """Set a gauge."""
        assert self._kind == MetricFamily.GAUGE
        METRICS[self._key] = value

    def observe(self, value: float) -> None:
        """Add an observation to a histogram."""
        assert self._kind == MetricFamily.HISTOGRAM
        METRICS[self._key] += value


def install() -> None:
    """Put the stub where the decoder imports Triton's module from, and forget what an earlier test did."""
    module = types.ModuleType("triton_python_backend_utils")
    module.Tensor, module.InferenceRequest = Tensor, InferenceRequest
    module.TritonModelException = TritonModelException
    module.PreferredMemory = lambda *_: None
    module.TRITONSERVER_MEMORY_CPU = 0
    sys.modules[module.__name__] = module
    module.InferenceResponse = InferenceResponse
    module.TritonError = TritonError
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    module.MetricFamily = MetricFamily
    module.Logger = types.SimpleNamespace(log_info=lambda _: None)
    METRICS.clear()
    MODELS.clear()
    REQUESTS.clear()
