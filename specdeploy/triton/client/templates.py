"""The client of NVIDIA's own templates, asked as our front door is asked.

Where theirs differ (``inflight_batcher_llm``, releases 0.16 to 1.2.1):

* ``tensorrt_llm_bls`` speculates only when ``num_draft_tokens`` is sent, and then refuses to stream; ours takes the
  deployment's number when it is left out.
* The answer begins with the prompt, unless ``exclude_input_in_output`` is sent. With drafts it must not be sent: the
  decoder then loses them.
* A server whose models are not decoupled does not stream; its whole answer is one piece.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.triton.client.triton import TritonClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.triton.protocol import Chunk, GenerateRequest

_DRAFTS: Final = "num_draft_tokens"
_EXCLUDE: Final = "exclude_input_in_output"


class TemplatesClient(TritonClient):
    """Talks to a deployment of NVIDIA's templates.

    Args:
        http_url: As in ``TritonClient``.

        grpc_url: As in ``TritonClient``.

        num_draft_tokens: Drafts per round of requests that leave it open.

        streams: Whether the front door can answer in pieces; otherwise a streamed answer is its whole one.

        more: Further arguments of ``TritonClient``.
    """

    def __init__(self, http_url: str, grpc_url: str, *, num_draft_tokens: int, streams: bool, **more: Any) -> None:  # noqa: ANN401 - as in TritonClient
        super().__init__(http_url, grpc_url, **more)
        self._drafts = num_draft_tokens
        self._streams = streams

    def generate_http(
        self, request: GenerateRequest, *, model: str | None = None, timeout_s: float | None = None
    ) -> Chunk:
        """Return the whole answer over HTTP, without the prompt; see ``TritonClient``."""
        asked = self._asked(request, model, timeout_s, stream=False)
        return _without_prompt(request, super().generate_http(asked, model=model, timeout_s=timeout_s))

    def generate_grpc(
        self, request: GenerateRequest, *, model: str | None = None, timeout_s: float | None = None
    ) -> Chunk:
        """Return the whole answer over gRPC, without the prompt; see ``TritonClient``."""
        asked = self._asked(request, model, timeout_s, stream=False)
        return _without_prompt(request, super().generate_grpc(asked, model=model, timeout_s=timeout_s))

    def stream_http(
        self, request: GenerateRequest, *, model: str | None = None, timeout_s: float | None = None
    ) -> Iterator[Chunk]:
        """Return the pieces of an answer over HTTP; see ``TritonClient``."""
        if not self._streams:
            return iter([self.generate_http(request, model=model, timeout_s=timeout_s)])
        asked = self._asked(request, model, timeout_s, stream=True)
        return super().stream_http(asked, model=model, timeout_s=timeout_s)

    def stream_grpc(
        self, request: GenerateRequest, *, model: str | None = None, timeout_s: float | None = None
    ) -> Iterator[Chunk]:
        """Return the pieces of an answer over gRPC; see ``TritonClient``."""
        if not self._streams:
            return iter([self.generate_grpc(request, model=model, timeout_s=timeout_s)])
        asked = self._asked(request, model, timeout_s, stream=True)
        return super().stream_grpc(asked, model=model, timeout_s=timeout_s)

    def _asked(
        self, request: GenerateRequest, model: str | None, timeout_s: float | None, *, stream: bool
    ) -> GenerateRequest:
        """Return the request as the templates understand it."""
        inputs = self._inputs(model, timeout_s)
        drafts = request.num_draft_tokens
        if _DRAFTS in inputs and drafts is None and not stream:
            drafts = self._drafts
        extra = dict(request.extra)
        if _EXCLUDE in inputs and (stream or _DRAFTS not in inputs):
            extra.setdefault(_EXCLUDE, True)
        return dataclasses.replace(request, num_draft_tokens=drafts, extra=extra)


def _without_prompt(request: GenerateRequest, answer: Chunk) -> Chunk:
    """Cut the prompt off an answer that begins with it."""
    return dataclasses.replace(answer, text=answer.text.removeprefix(request.prompt))
