"""The engine: ``tensorrt_llm.LLM`` and the event loop that it reports on. The only module that imports TensorRT-LLM.

Knows how the LLM API is loaded, asked and shut down, in releases from 1.0 on; knows nothing of Triton.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from typing import TYPE_CHECKING, Any

from decoder_request import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llmapi_acceptance import RequestOutput
    from llmapi_request import LlmRequest


class LoadError(RuntimeError):
    """The engine cannot be loaded; the message is one line."""


class LlmEngine:
    """A loaded engine; to be shut down.

    Args:
        arguments: Of ``tensorrt_llm.LLM``, as ``model.yaml`` has them.

    Raises:
        LoadError: TensorRT-LLM is not there, or does not start with these arguments.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._package = _imported("tensorrt_llm")
        self.version = str(getattr(self._package, "__version__", ""))
        self._llm = _loaded(self._package.LLM, dict(arguments))
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="llm-events", daemon=True)
        self._thread.start()

    def starter(self, request: LlmRequest) -> Callable[[], RequestOutput]:
        """Return a function that hands a request to the engine; it is to be called on the event loop.

        Raises:
            RequestError: ``SamplingParams`` refuses what is asked for.
        """
        try:
            sampling = self._package.SamplingParams(**request.sampling, **self._guided(request))
        except (TypeError, ValueError) as error:
            raise RequestError(f"the LLM API refuses the request: {_one_line(error)}") from None
        prompt = request.decoding.prompt_ids.tolist()
        return lambda: self._llm.generate_async(prompt, sampling_params=sampling, streaming=request.streaming)

    def shutdown(self) -> None:
        """End the engine and the event loop."""
        self._llm.shutdown()
        asyncio.run_coroutine_threadsafe(cancel_others(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _guided(self, request: LlmRequest) -> dict[str, Any]:
        if not request.guide:
            return {}
        return {"guided_decoding": _imported("tensorrt_llm.llmapi").GuidedDecodingParams(**request.guide)}


async def cancel_others() -> None:
    """Cancel what still waits for an aborted request's last word."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _imported(name: str) -> Any:  # noqa: ANN401 - the package carries no types here
    # By name and late: importing it starts CUDA and MPI, and whatever goes wrong there is why a model does not load.
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise LoadError(f"{name} cannot be imported by the server's Python: {_one_line(error)}") from error


def _loaded(llm: Callable[..., Any], arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - the LLM API's own class
    # Releases up to 1.2 take the sections only as objects, which this function of theirs makes out of mappings.
    complete = _imported("tensorrt_llm.llmapi.llm_utils").update_llm_args_with_extra_dict
    try:
        return llm(**complete({}, arguments))
    except Exception as error:
        raise LoadError(f"tensorrt_llm.LLM does not start: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or repr(error)
