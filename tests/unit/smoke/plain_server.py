"""A server that speaks no Triton: text over HTTP, and perhaps token ids; it refuses what it has no field for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self, cast

from specdeploy.errors import ConfigError
from specdeploy.smoke import capabilities
from specdeploy.triton.protocol import Chunk
from tests.unit.smoke.deployment import EXPECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.triton.client import TritonClient
    from specdeploy.triton.protocol import GenerateRequest
    from tests.unit.smoke.deployment import FakeDeployment

#: What is expected of it.
PLAIN = dataclasses.replace(
    EXPECT,
    models=("some-model",),
    front_door="ensemble",
    second_door=None,
    draft_model=None,
    fixed_by="the server",
    metrics=False,
    capabilities=frozenset(),
)


def plain_client(able: frozenset[str]) -> Callable[[FakeDeployment], TritonClient]:
    """Return what connects to a deployment as to a server with these capabilities only."""
    return lambda deployment: cast("TritonClient", _PlainClient(deployment.client(), able))


class _PlainClient:
    """The calls that a client without Triton has; any other is an ``AttributeError``."""

    def __init__(self, client: TritonClient, able: frozenset[str]) -> None:
        self._client = client
        self._able = able

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def live(self, **options: Any) -> bool:
        """Whether it answers."""
        return self._client.live(**options)

    def ready(self, **options: Any) -> bool:
        """Whether it takes requests."""
        return self._client.ready(**options)

    def model_ready(self, name: str, **options: Any) -> bool:
        """Whether a model is there."""
        return True

    def server(self, **options: Any) -> dict[str, Any]:
        """Who it is."""
        return {"name": "plain", "version": "1"}

    def generate_http(self, request: GenerateRequest, **options: Any) -> Chunk:
        """Return the whole answer."""
        return self._bare(self._client.generate_http(_checked(request), **options), last=True)

    def post_generate(self, body: dict[str, object], **options: Any) -> Chunk:
        """Send fields as they are."""
        return self._bare(self._client.post_generate(body, **options), last=True)

    def stream_http(self, request: GenerateRequest, **options: Any) -> Iterator[Chunk]:
        """Return the pieces of the answer."""
        return (self._bare(chunk, last=False) for chunk in self._client.stream_http(_checked(request), **options))

    def _bare(self, chunk: Chunk, *, last: bool) -> Chunk:
        """Leave out what the server does not say; a whole answer has its end and its length."""
        return Chunk(
            text=chunk.text,
            ids=chunk.ids if capabilities.IDS in self._able else (),
            finish_reason=chunk.finish_reason if last or capabilities.STREAM_END in self._able else "",
            num_input_tokens=chunk.num_input_tokens if last else None,
            num_output_tokens=chunk.num_output_tokens if last else None,
            received_s=chunk.received_s,
        )


def _checked(request: GenerateRequest) -> GenerateRequest:
    if request.num_draft_tokens is not None or request.extra:
        raise ConfigError(f"the server has no field for {request.extra or 'num_draft_tokens'}")
    return request
