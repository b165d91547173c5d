"""One request to another model of the server, and what it answers.

``exec()``, never ``exec(decoupled=True)``, whose response iterator is freed in a way that brings the process down on
Triton before 24.12 (python_backend PR 390). Nor do requests carry the client's trace: ``execute`` has returned by then,
and Triton 2.51 with tracing on dies of one that does. Knows Triton; knows nothing of what is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton_python_backend_utils as pb_utils
from decoder_loop import EngineFault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from decoder_request import Tensor


def ask(
    model: str, tensors: Mapping[str, Tensor], outputs: Sequence[str], *, request_id: str, kind: str = "engine"
) -> dict[str, Tensor]:
    """Ask a model and return the outputs that it gives, by name.

    Args:
        model: Its name.
        tensors: Inputs by name.
        outputs: Names of the outputs that are asked for.
        request_id: By which the model knows the request, and its log names it.
        kind: What the model is, for errors.

    Raises:
        EngineFault: The model is not there, or answered with an error.
    """
    # Named until the response is here: the stub may not free a tensor that is still in use.
    inputs = [pb_utils.Tensor(name, value) for name, value in tensors.items()]
    try:
        response = pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=list(outputs),
            inputs=inputs,
            request_id=request_id,
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
        ).exec()
    except pb_utils.TritonModelException as error:
        raise EngineFault(f"{kind} {model!r} failed: {error}") from error
    if response.has_error():
        raise EngineFault(f"{kind} {model!r} failed: {response.error().message()}")
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
