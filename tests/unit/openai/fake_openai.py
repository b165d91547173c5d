"""An OpenAI-compatible server without sockets: a toy that continues any prompt, which a test can change at will."""

from __future__ import annotations

import dataclasses
import itertools
import json
import zlib
from typing import TYPE_CHECKING, Any

from specdeploy.openai import Dialect, OpenAIClient, ServerAddress
from tests.unit.triton.fake_triton import FakeReply, FakeTransport, json_reply

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL = "toy"
LONGEST = 64
WORDS = (" red", " green", " blue", " lamp", " дом", ",", " the", " of")
ADDRESS = ServerAddress(host="127.0.0.1:1", tls=False)


@dataclasses.dataclass(kw_only=True)
class FakeOpenAI:
    """Answers as vLLM does, until a test switches something off.

    Args:
        completions: Whether ``/v1/completions`` is there.
        strict: Whether fields that OpenAI does not know are refused.
        usage: Whether ``stream_options`` is known, and answers say how many tokens they have.
        ids: Whether ``return_token_ids`` is heeded.
        counts: Whether answers tell what was drafted and accepted.
        health: Status of ``/health``.
        key: The key that must be sent; empty asks for none.
        about: Further fields of the model in ``/v1/models``.
    """

    completions: bool = True
    strict: bool = False
    usage: bool = True
    ids: bool = True
    counts: bool = True
    health: int = 200
    key: str = ""
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.transport = FakeTransport(self.handle)

    def client(self, dialect: Dialect | None = None) -> OpenAIClient:
        """Connect. The client's clock moves on at each look, so that the pieces of a stream come evenly."""
        clock = itertools.count().__next__
        return OpenAIClient(ADDRESS, model=MODEL, dialect=dialect, transport=self.transport, monotonic=clock)

    def handle(self, method: str, path: str, body: Any) -> FakeReply:
        """Answer a request."""
        if path == "/health":
            return FakeReply(self.health, [])
        if path == "/metrics":
            return FakeReply(200, [b"requests 1\n"])
        if path == "/v1/models":
            return json_reply({"object": "list", "data": [{"id": MODEL, "owned_by": "toys", **self.about}]})
        if method != "POST" or (path == "/v1/completions" and not self.completions):
            return json_reply({"detail": "Not Found"}, 404)
        refusal = self._refusal(body)
        if refusal:
            return json_reply({"error": {"message": refusal, "type": "BadRequestError", "code": 400}}, 400)
        answers = self._answers(body, chat=path.endswith("chat/completions"))
        return stream_reply(answers) if body["stream"] else json_reply(_whole(answers))

    def _refusal(self, body: Any) -> str:
        for field, known in (("return_token_ids", not self.strict), ("stream_options", self.usage)):
            if field in body and not known:
                return f"{field}: Extra inputs are not permitted"
        if body["model"] != MODEL:
            return f"The model `{body['model']}` does not exist."
        if "prompt" not in body and "messages" not in body:
            return "prompt: Field required"
        if not isinstance(body.get("max_tokens"), int):
            return "max_tokens: Input should be a valid integer"
        if body["max_tokens"] < 1:
            return f"max_tokens must be at least 1, got {body['max_tokens']}."
        too_long = len(str(body.get("prompt", "")).split()) > LONGEST
        return f"This model's maximum context length is {LONGEST} tokens." if too_long else ""

    def _answers(self, body: Any, *, chat: bool) -> list[dict[str, Any]]:
        """Return one event for each two tokens, and one for the counts."""
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        salt = f"{body.get('seed')} {body['temperature']}" if body.get("temperature") else ""
        ids = [zlib.crc32(f"{prompt}{salt}{i}".encode()) % len(WORDS) for i in range(body["max_tokens"])]
        ids, text, word = _stopped(ids, body.get("stop", []))
        pieces = [ids[i : i + 2] for i in range(0, len(ids), 2)]
        events = []
        for piece in pieces:
            shown = text[: len("".join(WORDS[i] for i in piece))]
            text = text[len(shown) :]
            events.append(self._event(piece, shown, body, chat=chat))
        events[-1]["choices"][0] |= {"finish_reason": "stop" if word else "length", "stop_reason": word}
        usage = {"usage": {"prompt_tokens": len(prompt.split()), "completion_tokens": len(ids)}} if self.usage else {}
        return [*events, {"choices": [], **usage, **self._metrics(len(pieces))}]

    def _event(self, ids: list[int], text: str, body: Any, *, chat: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
        if self.ids and body.get("return_token_ids"):
            choice["token_ids"] = ids
        return {"choices": [{"index": 0, **choice, "finish_reason": None, "stop_reason": None}]}

    def _metrics(self, rounds: int) -> dict[str, Any]:
        if not self.counts:
            return {}
        told = {
            "num_spec_steps": rounds,
            "num_draft_tokens": 2 * rounds,
            "num_accepted_draft_tokens": rounds,
            "acceptance_histogram": [0, rounds, 0],
        }
        return {"metrics": {"speculative_decoding": told}}


def stream_reply(events: list[Any], *, end: bytes = b"data: [DONE]\n\n") -> FakeReply:
    """Answer with one server-sent event for each value, and *end*."""
    return FakeReply(200, [*(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events), end])


def _stopped(ids: list[int], words: list[str]) -> tuple[list[int], str, str | None]:
    """Return the ids until a stop word is complete, the text in front of it, and the word."""
    for length in range(1, len(ids) + 1):
        text = "".join(WORDS[i] for i in ids[:length])
        for word in words:
            if word in text:
                return ids[:length], text[: text.index(word)], word
    return ids, "".join(WORDS[i] for i in ids), None


def _whole(events: list[dict[str, Any]]) -> dict[str, Any]:
    choices = [event["choices"][0] for event in events[:-1]]
    joined = {
        **choices[-1],
        "token_ids": [token for choice in choices for token in choice.get("token_ids", [])],
    }
    if "delta" in choices[0]:
        joined["message"] = {"content": "".join(choice["delta"]["content"] for choice in choices)}
        del joined["delta"]
    else:
        joined["text"] = "".join(choice["text"] for choice in choices)
    return {**events[-1], "choices": [joined]}
