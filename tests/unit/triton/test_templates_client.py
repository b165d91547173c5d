"""The client of NVIDIA's templates: what is sent to each of their front doors, and what is made of the answer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.triton.client.templates import TemplatesClient
from specdeploy.triton.protocol import FRONT_DOOR_INPUTS, GenerateRequest, make_tensor
from tests.unit.triton.fake_triton import (
    FakeChannel,
    FakeTransport,
    event_reply,
    json_reply,
    metadata_of,
    response,
    tensors_of,
)

if TYPE_CHECKING:
    from tests.unit.triton.fake_triton import FakeReply

ENSEMBLE = {
    name: kind for name, kind in FRONT_DOOR_INPUTS.items() if name not in {"num_draft_tokens", "use_draft_logits"}
}
DECODER = dict(FRONT_DOOR_INPUTS)
REQUEST = GenerateRequest(prompt="one two", max_tokens=4)
ANSWER = "one two three four"


class FakeTemplates:
    """A front door that echoes the prompt, as theirs do, and remembers what it was sent."""

    def __init__(self, inputs: dict[str, str], *, streams: bool) -> None:
        self.inputs = inputs
        self.sent: dict[str, Any] = {}
        self.path = ""
        self.client = TemplatesClient(
            "fake",
            "fake",
            num_draft_tokens=5,
            streams=streams,
            transport=FakeTransport(self._over_http),
            channel=FakeChannel(self._over_grpc),
        )

    def ask(self, way: str, request: GenerateRequest = REQUEST) -> str:
        """Ask by one of four ways and return the text."""
        answer = getattr(self.client, way)(request, timeout_s=10)
        return answer.text if way.startswith("generate") else "".join(chunk.text for chunk in answer)

    def _over_http(self, method: str, path: str, body: Any) -> FakeReply:
        if method == "GET":
            return json_reply(metadata_of("ensemble", self.inputs, {"text_output": "BYTES"}))
        self.sent, self.path = body, path
        if path.endswith("_stream"):
            return event_reply([{"text_output": " three"}, {"text_output": " four"}])
        return json_reply({"text_output": ANSWER})

    def _over_grpc(self, message: Any) -> list[Any]:
        self.sent = {tensor.name: tensor.data.reshape(-1).tolist()[0] for tensor in tensors_of(message)}
        return [response(message.id, [make_tensor("text_output", "BYTES", ANSWER)], final=True)]


WHOLE = ("generate_http", "generate_grpc")
STREAMED = ("stream_http", "stream_grpc")


@pytest.mark.parametrize("way", WHOLE)
class TestWhole:
    """Whole answers, over HTTP and gRPC."""

    def test_the_decoder_speculates_unless_told_otherwise(self, way: str) -> None:
        """A request that leaves the drafts open gets the deployment's number; theirs would not speculate at all."""
        door = FakeTemplates(DECODER, streams=False)
        door.ask(way)
        assert door.sent["num_draft_tokens"] == 5
        assert door.sent["stream"] is False

    @pytest.mark.parametrize("drafts", [0, 2])
    def test_a_number_that_is_given_is_sent(self, way: str, drafts: int) -> None:
        """0 asks for the target alone."""
        door = FakeTemplates(DECODER, streams=False)
        door.ask(way, dataclasses.replace(REQUEST, num_draft_tokens=drafts))
        assert door.sent["num_draft_tokens"] == drafts

    def test_the_decoder_is_not_told_to_leave_the_prompt_out(self, way: str) -> None:
        """With that it would lose its drafts; the prompt is cut off here instead."""
        door = FakeTemplates(DECODER, streams=False)
        assert door.ask(way) == " three four"
        assert "exclude_input_in_output" not in door.sent

    def test_the_ensemble_is_told_to_leave_the_prompt_out(self, way: str) -> None:
        """It has no drafts to send, and leaves the prompt out when it is told to."""
        door = FakeTemplates(ENSEMBLE, streams=False)
        door.ask(way)
        assert door.sent["exclude_input_in_output"] is True
        assert "num_draft_tokens" not in door.sent


@pytest.mark.parametrize("way", STREAMED)
class TestStreamed:
    """Streamed answers, over HTTP and gRPC."""

    def test_a_door_that_does_not_stream_answers_in_one_piece(self, way: str) -> None:
        """It is not asked to stream, which it would refuse."""
        door = FakeTemplates(DECODER, streams=False)
        assert door.ask(way) == " three four"
        assert door.sent["stream"] is False
        assert door.sent["num_draft_tokens"] == 5

    def test_a_door_that_streams_is_asked_without_drafts(self, way: str) -> None:
        """Their decoder refuses to stream and to speculate at the same time."""
        door = FakeTemplates(DECODER, streams=True)
        door.ask(way)
        assert door.sent["stream"] is True
        assert "num_draft_tokens" not in door.sent
        assert door.sent["exclude_input_in_output"] is True
