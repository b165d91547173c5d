"""A whole deployment without sockets: a toy language model behind the fake Triton, which a test can break at will."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import zlib
from typing import TYPE_CHECKING, Any

from specdeploy.smoke import Expectations
from specdeploy.triton.client import RequestFailed, TritonClient
from specdeploy.triton.protocol import (
    CHUNK_OUTPUTS,
    FRONT_DOOR_INPUTS,
    Chunk,
    GenerateRequest,
    Tensor,
    join_chunks,
    make_tensor,
)
from tests.unit.triton.fake_triton import (
    FakeCall,
    FakeChannel,
    FakeReply,
    FakeTransport,
    error_response,
    event_reply,
    json_reply,
    metadata_of,
    response,
    tensors_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOORS = ("ensemble", "tensorrt_llm_bls")
DRAFT = "tensorrt_llm_draft"
MODELS = (*DOORS, "preprocessing", "speculative_decoder", "tensorrt_llm", DRAFT)
DRAFTS = 3
MAX_SEQ_LEN = 64
WORDS = (" red", " green", " blue", " дом", " река", " lamp", " code", ",", " the", " of")
EXPECT = Expectations(
    models=MODELS, num_draft_tokens=DRAFTS, max_seq_len=MAX_SEQ_LEN, request_timeout_s=0.5, check_timeout_s=10.0
)
_OUTPUT_OF_FIELD = {"text": "text_output", "ids": "output_ids", "histogram": "spec_decode_acceptance_histogram"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """What a fault may look at: the request, by which door and wire it came, and whether from the main thread."""

    request: GenerateRequest
    model: str
    wire: str
    main_thread: bool


class FakeDeployment:
    """Answers as a sound deployment does, until a test changes one of its attributes."""

    def __init__(self) -> None:
        self.live = True
        self.ready = True
        self.dead = False
        self.not_ready: set[str] = set()
        self.inputs = dict(FRONT_DOOR_INPUTS)
        self.outputs = dict(CHUNK_OUTPUTS)
        self.silent: Callable[[str], bool] = lambda rule: False
        self.accepts: set[str] = set()
        self.refused: list[str] = []
        self.refusal_text: Callable[[str], str] = lambda text: text
        self.change: Callable[[list[Chunk], Context], list[Chunk]] = lambda chunks, context: chunks
        self.draft_requests = 0
        self.counts_drafts: Callable[[GenerateRequest], bool] = lambda request: request.num_draft_tokens != 0
        self.moving_counter = False
        self.http_error_as_200 = False
        self._lock = threading.Lock()

    def client(self) -> TritonClient:
        """Connect."""
        return TritonClient(
            "fake", "fake", transport=FakeTransport(self._handle), channel=_ThreadAwareChannel(self), timeout_s=0.5
        )

    # What the models do

    def answer(self, request: GenerateRequest, model: str, wire: str, *, main_thread: bool) -> list[Chunk]:
        """Decode: one chunk for each round, or a single one."""
        rounds = self._rounds(request)
        chunks = rounds if request.stream else [join_chunks(rounds)]
        context = Context(request=request, model=model, wire=wire, main_thread=main_thread)
        return self.change(chunks, context)

    def refusal(self, model: str, values: dict[str, Any]) -> str:
        """Return why a request is refused; nothing when it is fine."""
        length = values.get("max_tokens")
        rules = {
            "model": (model not in DOORS, f"Request for unknown model: '{model}' is not found"),
            "type": (not isinstance(length, int), "Unable to parse 'data': max_tokens is no integer"),
            "missing": ("text_input" not in values, "text_input is missing"),
            "zero": (length == 0, "max_tokens must be at least 1, got 0"),
            "long": (
                len(str(values.get("text_input", "")).split()) > MAX_SEQ_LEN,
                f"the prompt is longer than {MAX_SEQ_LEN} tokens",
            ),
        }
        for rule, (applies, text) in rules.items():
            if applies and rule not in self.accepts:
                self._note_refusal(rule)
                return self.refusal_text(text)
        return ""

    def _note_refusal(self, rule: str) -> None:
        self.refused.append(rule)
        if self.silent(rule):
            raise TimeoutError

    def _rounds(self, request: GenerateRequest) -> list[Chunk]:
        drafts = DRAFTS if request.num_draft_tokens is None else request.num_draft_tokens
        ids, length = _tokens(request)
        text = _cut("".join(WORDS[i] for i in ids[:length]), request.stop_words)
        rounds = list(_groups(length, drafts, request.prompt))
        steps = [accepted for accepted, drafted, _ in rounds if drafted]
        if self.counts_drafts(request):
            with self._lock:
                self.draft_requests += len(steps)
        return list(_chunks(ids, text, rounds, request, stopped=length < request.max_tokens, bypassed=drafts == 0))

    # HTTP

    def _handle(self, method: str, path: str, body: Any) -> FakeReply:
        if self.dead:
            raise RequestFailed("connection", "connection refused")
        if method == "POST":
            return self._post(path.split("/")[3], body, stream=path.endswith("_stream"))
        if path == "/v2":
            return json_reply({"name": "triton", "version": "2.51.0"})
        if path.startswith("/v2/health"):
            return FakeReply(200 if getattr(self, path.rsplit("/", 1)[1]) else 400, [])
        return self._about(path.split("/")[3], path.split("/")[4:])

    def _about(self, model: str, rest: list[str]) -> FakeReply:
        if rest == ["ready"]:
            return FakeReply(400 if model in self.not_ready else 200, [])
        if rest == ["stats"]:
            return json_reply({"model_stats": [self._statistics(model)]})
        if model not in MODELS:
            return json_reply({"error": f"Request for unknown model: '{model}' is not found"}, 404)
        return json_reply(metadata_of(model, self.inputs, self.outputs))

    def _statistics(self, model: str) -> dict[str, Any]:
        if self.moving_counter:
            self.draft_requests += 1
        count = self.draft_requests if model == DRAFT else 0
        return {"name": model, "inference_stats": {"success": {"count": count}, "fail": {"count": 0}}}

    def _post(self, model: str, body: Any, *, stream: bool) -> FakeReply:
        try:
            refusal = self.refusal(model, body)
        except TimeoutError:
            raise RequestFailed("timeout", "no answer") from None
        if refusal:
            return json_reply({"error": refusal}, 400)
        if self.http_error_as_200:
            return json_reply({"error": "generate expects model to produce exactly 1 response"})
        request = GenerateRequest.from_json(_filled(body))
        chunks = self.answer(request, model, "http", main_thread=_in_main_thread())
        replies = [_plain(chunk) for chunk in chunks]
        return event_reply(replies) if stream else json_reply(replies[0])

    # gRPC

    def respond(self, message: Any, *, main_thread: bool) -> list[Any] | None:
        """Answer a gRPC message; None never answers."""
        tensors = tensors_of(message)
        values = {tensor.name: _value(tensor) for tensor in tensors}
        try:
            refusal = self.refusal(message.model_name, values)
        except TimeoutError:
            return None
        if refusal:
            return [error_response(message.id, refusal)]
        request = GenerateRequest.from_json(_filled(values))
        chunks = self.answer(request, message.model_name, "grpc", main_thread=main_thread)
        end = len(chunks) - 1
        return [response(message.id, _tensors(chunk), final=index == end) for index, chunk in enumerate(chunks)]


class _ThreadAwareChannel(FakeChannel):
    """Tells the deployment whether a call was opened by the main thread; responses are made in another."""

    def __init__(self, deployment: FakeDeployment) -> None:
        super().__init__(lambda message: None)
        self._deployment = deployment

    def open(self, requests: Iterator[Any]) -> FakeCall:
        """Start a call."""
        if self._deployment.dead:
            raise RequestFailed("connection", "connection refused")
        main_thread = _in_main_thread()
        self.calls.append(
            FakeCall(requests, lambda message: self._deployment.respond(message, main_thread=main_thread))
        )
        return self.calls[-1]


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _tokens(request: GenerateRequest) -> tuple[list[int], int]:
    """Return the ids of the answer as long as max_tokens allows, and how many of them a stop word leaves."""
    salt = "" if request.greedy else f"{request.seed} {request.temperature}"
    ids = [zlib.crc32(f"{request.prompt} {salt} {i}".encode()) % len(WORDS) for i in range(request.max_tokens)]
    for length in range(1, len(ids) + 1):
        if any(word in "".join(WORDS[i] for i in ids[:length]) for word in request.stop_words):
            return ids, length
    return ids, len(ids)


def _cut(text: str, stop_words: tuple[str, ...]) -> str:
    found = [text.index(word) for word in stop_words if word in text]
    return text[: min(found)] if found else text


def _groups(length: int, drafts: int, prompt: str) -> Iterator[tuple[int, int, int]]:
    """Yield accepted and drafted tokens and the size of each round."""
    done = 0
    for number in itertools.count():
        if done >= length:
            return
        drafted = max(min(drafts, length - done - 1), 0)
        accepted = zlib.crc32(f"{prompt} {number}".encode()) % (drafted + 1)
        done += accepted + 1
        yield accepted, drafted, accepted + 1


def _chunks(
    ids: list[int],
    text: str,
    rounds: list[tuple[int, int, int]],
    request: GenerateRequest,
    *,
    stopped: bool,
    bypassed: bool,
) -> Iterator[Chunk]:
    """Yield a chunk for each round, with the statistics so far."""
    histogram = [0] * 9
    accepted_so_far = drafted_so_far = done = shown = 0
    for number, (accepted, drafted, size) in enumerate(rounds):
        histogram[accepted] += bool(drafted)
        accepted_so_far += accepted
        drafted_so_far += drafted
        new = ids[done : done + size]
        done += size
        written = min(len("".join(WORDS[i] for i in ids[:done])), len(text))
        last = number == len(rounds) - 1
        yield Chunk(
            text=text[shown:written],
            ids=tuple(new),
            finish_reason=("stop_word" if stopped else "length") if last else "",
            bypass_reason="requested" if bypassed else "",
            acceptance_rate=accepted_so_far / drafted_so_far if drafted_so_far else 0.0,
            num_spec_steps=sum(histogram),
            total_draft_tokens=drafted_so_far,
            total_accepted_draft_tokens=accepted_so_far,
            histogram=tuple(histogram),
            num_input_tokens=len(request.prompt.split()),
            num_output_tokens=done,
        )
        shown = written


def _plain(chunk: Chunk) -> dict[str, Any]:
    """Write a chunk as the JSON of HTTP generate."""
    fields = {name: getattr(chunk, name) for name in (f.name for f in dataclasses.fields(chunk))}
    values = {_OUTPUT_OF_FIELD.get(n, n): v for n, v in fields.items() if n not in {"final", "received_s"}}
    return {
        name: value[0] if isinstance(value, tuple) and len(value) == 1 else value
        for name, value in values.items()
        if value is not None
    }


def _tensors(chunk: Chunk) -> list[Tensor]:
    return [make_tensor(name, CHUNK_OUTPUTS[name], value) for name, value in _plain(chunk).items()]


def _value(tensor: Tensor) -> Any:
    value = tensor.data.reshape(-1).tolist()
    value = [item.decode() if isinstance(item, bytes) else item for item in value]
    return value[0] if len(value) == 1 and tensor.name != "stop_words" else value


def _filled(values: dict[str, Any]) -> dict[str, Any]:
    """Put something where a fault let a wrong request through."""
    length = values.get("max_tokens")
    usable = length if isinstance(length, int) and length > 0 else 1
    return {"text_input": "", **values, "max_tokens": usable}
