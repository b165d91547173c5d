"""A whole deployment without sockets: a toy language model behind the fake Triton, which a test can break at will."""

from __future__ import annotations

import dataclasses
import itertools
import json
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
    json_reply,
    metadata_of,
    response,
    tensors_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOORS = ("ensemble", "tensorrt_llm_bls")
DRAFT = "tensorrt_llm_draft"
TARGET = "tensorrt_llm"
DECODER = "speculative_decoder"
MODELS = (*DOORS, "preprocessing", DECODER, TARGET, DRAFT)
DRAFTS = 3
MAX_SEQ_LEN = 64
WORDS = (" red", " green", " blue", " дом", " река", " lamp", " code", ",", " the", " of")
EXPECT = Expectations(
    models=MODELS, num_draft_tokens=DRAFTS, max_seq_len=MAX_SEQ_LEN, request_timeout_s=0.5, check_timeout_s=10.0
)
DECODER_INPUTS = {
    "input_ids": "INT32",
    "input_lengths": "INT32",
    "request_output_len": "INT32",
    "end_id": "INT32",
    "stream": "BOOL",
}
METRICS = (
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
)
_ROUND_S = 0.001
_BEFORE_CANCEL = 3
_CANCEL_TIMEOUT_S = 5.0
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
        self.accepts_over_http: set[str] = set()
        self.refused: list[str] = []
        self.refusal_text: Callable[[str], str] = lambda text: text
        self.change: Callable[[list[Chunk], Context], list[Chunk]] = lambda chunks, context: chunks
        self.draft_requests = 0
        self.counts_drafts: Callable[[GenerateRequest], bool] = lambda request: request.num_draft_tokens != 0
        self.moving_counter = False
        self.http_error_as_200 = False
        self.versions = ["1"]
        self.held_back = False
        self.prefill_s = 0.0
        self.accepts_all = False
        self.goes_on_when_cancelled = False
        self.target_requests = 0
        self.door_requests = 0
        self.counts_requests = True
        self.metrics: Callable[[list[str]], list[str]] = lambda lines: lines
        self.now_s = 0.0
        self._lock = threading.Lock()

    def client(self) -> TritonClient:
        """Connect; the client's clock is this deployment's, on which a round takes a millisecond."""
        return _Client(self)

    def metrics_text(self) -> str:
        """Return the metrics page."""
        lines = [f'{name}{{model="{model}",version="1"}} {self._metric(model)}' for name in METRICS for model in MODELS]
        return "\n".join(["# HELP nv_inference_request_success", "nv_cpu_utilization 1", *self.metrics(lines)])

    def _metric(self, model: str) -> int:
        return self.door_requests if model in DOORS else 7

    # What the models do

    def answer(self, request: GenerateRequest, model: str, wire: str, *, main_thread: bool) -> list[Chunk]:
        """Decode: one chunk for each round, or a single one."""
        self.door_requests += self.counts_requests
        rounds = self._rounds(request)
        chunks = rounds if request.stream else [join_chunks(rounds)]
        context = Context(request=request, model=model, wire=wire, main_thread=main_thread)
        return self.change(chunks, context)

    def refusal(self, model: str, values: dict[str, Any], accepts: set[str]) -> str:
        """Return why a request is refused; nothing when it is fine."""
        length = values.get("max_tokens")
        prompt = values.get("text_input", "")
        words = len(str(prompt).split())
        one = not isinstance(length, list) and not isinstance(prompt, list)
        rules = {
            "shape": (not one or "flat" in values, "unexpected shape for input 'max_tokens'. Expected [-1,1]"),
            "model": (model not in DOORS, f"Request for unknown model: '{model}' is not found"),
            "type": (not isinstance(length, int), "Unable to parse 'data': max_tokens is no integer"),
            "missing": ("text_input" not in values, "text_input is missing"),
            "zero": (length == 0, "max_tokens must be at least 1, got 0"),
            "empty": ("text_input" in values and not words, "the prompt is empty"),
            "long": (
                isinstance(length, int) and words <= MAX_SEQ_LEN < words + length,
                f"prompt and max_tokens are more than {MAX_SEQ_LEN} tokens",
            ),
            "longer": (words > MAX_SEQ_LEN, f"the prompt is longer than {MAX_SEQ_LEN} tokens"),
        }
        for rule, (applies, text) in rules.items():
            if applies and rule not in accepts:
                self._note_refusal(rule)
                return self.refusal_text(text)
        return ""

    def _note_refusal(self, rule: str) -> None:
        self.refused.append(rule)
        if self.silent(rule):
            raise TimeoutError

    def _rounds(self, request: GenerateRequest) -> list[Chunk]:
        drafts = DRAFTS if request.num_draft_tokens is None else request.num_draft_tokens
        ids, reason = _tokens(request)
        text = _cut("".join(WORDS[i] for i in ids), request.stop_words)
        rounds = list(_groups(len(ids), drafts, request.prompt, accepts_all=self.accepts_all))
        steps = [accepted for accepted, drafted, _ in rounds if drafted]
        if self.counts_drafts(request):
            with self._lock:
                self.draft_requests += len(steps)
        return list(_chunks(ids, text, rounds, request, reason=reason, bypassed=drafts == 0))

    def _paced(self, pieces: list[Any]) -> Iterator[Any]:
        """Let a round's time pass before each piece, or all of it before the first; that of the prefill before all."""
        self.now_s += self.prefill_s
        for number, piece in enumerate(pieces):
            self.now_s += _ROUND_S * (len(pieces) * (number == 0) if self.held_back else 1)
            yield piece

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
        inputs = DECODER_INPUTS if model == DECODER else self.inputs
        return json_reply({**metadata_of(model, inputs, self.outputs), "versions": self.versions})

    def _statistics(self, model: str) -> dict[str, Any]:
        if self.moving_counter:
            self.draft_requests += 1
        count = {DRAFT: self.draft_requests, TARGET: self.target_requests}.get(model, 0)
        return {"name": model, "inference_stats": {"success": {"count": count}, "fail": {"count": 0}}}

    def _post(self, model: str, body: Any, *, stream: bool) -> FakeReply:
        try:
            refusal = self.refusal(model, body, self.accepts | self.accepts_over_http)
        except TimeoutError:
            raise RequestFailed("timeout", "no answer") from None
        if refusal:
            return json_reply({"error": refusal}, 400)
        if self.http_error_as_200:
            return json_reply({"error": "generate expects model to produce exactly 1 response"})
        request = GenerateRequest.from_json(_filled(body))
        chunks = self.answer(request, model, "http", main_thread=_in_main_thread())
        replies = [_plain(chunk) for chunk in chunks]
        events = (f"data: {json.dumps(reply)}\n\n".encode() for reply in self._paced(replies))
        if stream:
            return FakeReply(200, events)
        self.now_s += self.prefill_s
        return json_reply(replies[0])

    # gRPC

    def respond(self, message: Any, gone: threading.Event, *, main_thread: bool) -> Iterator[Any] | None:
        """Answer a gRPC message; None never answers."""
        tensors = tensors_of(message)
        values = {tensor.name: _value(tensor) for tensor in tensors}
        if message.model_name == DECODER:
            return self._decode(message.id, values, gone)
        if any(tensor.data.ndim == 1 for tensor in tensors):
            values["flat"] = True
        try:
            refusal = self.refusal(message.model_name, values, self.accepts)
        except TimeoutError:
            return None
        if refusal:
            return iter([error_response(message.id, refusal)])
        request = GenerateRequest.from_json(_filled(values))
        chunks = self.answer(request, message.model_name, "grpc", main_thread=main_thread)
        return self._paced(_responses(message.id, chunks))

    def _decode(self, key: str, values: dict[str, Any], gone: threading.Event) -> Iterator[Any]:
        """Answer the decoder's own request round by round; after some, wait until the client has hung up."""
        request = GenerateRequest(prompt=str(values["input_ids"]), max_tokens=values["request_output_len"])
        for number, answer in enumerate(_responses(key, self._rounds(request))):
            if number >= _BEFORE_CANCEL and gone.wait(_CANCEL_TIMEOUT_S) and not self.goes_on_when_cancelled:
                return
            self.target_requests += 1
            yield answer


class _Client(TritonClient):
    """A client of the deployment; the metrics page is the one thing that it does not fetch by its transport."""

    def __init__(self, deployment: FakeDeployment) -> None:
        super().__init__(
            "fake",
            "fake",
            transport=FakeTransport(deployment._handle),
            channel=_ThreadAwareChannel(deployment),
            timeout_s=0.5,
            monotonic=lambda: deployment.now_s,
        )
        self._deployment = deployment

    def metrics_text(self, *, timeout_s: float | None = None) -> str:
        """Return the metrics page."""
        return self._deployment.metrics_text()


class _Call(FakeCall):
    """Tells the deployment when the client has hung up."""

    def __init__(self, requests: Iterator[Any], answer: Callable[[Any], Any], gone: threading.Event) -> None:
        self._gone = gone
        super().__init__(requests, answer)

    def cancel(self) -> None:
        """End the call."""
        self._gone.set()
        super().cancel()


class _ThreadAwareChannel(FakeChannel):
    """Tells the deployment whether a call was opened by the main thread; responses are made in another."""

    def __init__(self, deployment: FakeDeployment) -> None:
        super().__init__(lambda message: None)
        self._deployment = deployment

    def open(self, requests: Iterator[Any]) -> FakeCall:
        """Start a call."""
        if self._deployment.dead:
            raise RequestFailed("connection", "connection refused")
        main_thread, gone = _in_main_thread(), threading.Event()
        self.calls.append(
            _Call(requests, lambda message: self._deployment.respond(message, gone, main_thread=main_thread), gone)
        )
        return self.calls[-1]


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _responses(key: str, chunks: list[Chunk]) -> list[Any]:
    end = len(chunks) - 1
    return [response(key, _tensors(chunk), final=index == end) for index, chunk in enumerate(chunks)]


def _tokens(request: GenerateRequest) -> tuple[list[int], str]:
    """Return the ids of the answer and why it ends."""
    ids: list[int] = []
    while len(ids) < request.max_tokens:
        ids.append(_next_token(request, ids))
        if ids[-1] == request.extra.get("end_id"):
            return ids, "end_id"
        if any(word in "".join(WORDS[i] for i in ids) for word in request.stop_words):
            return ids, "stop_word"
    return ids, "length"


def _next_token(request: GenerateRequest, ids: list[int]) -> int:
    """Return the most likely token that is allowed."""
    # So small a nucleus leaves one candidate, whatever the seed.
    chance = not request.greedy and (request.top_p is None or request.top_p > 1e-3)
    salt = f"{request.seed} {request.temperature}" if chance else ""
    first = zlib.crc32(f"{request.prompt} {salt} {len(ids)}".encode())
    banned = request.extra.get("bad_words", ())
    early = len(ids) < int(str(request.extra.get("min_tokens", 0)))
    before = WORDS[ids[-1]] if ids else ""
    for step in range(len(WORDS)):
        token = (first + step) % len(WORDS)
        ends = early and token == request.extra.get("end_id")
        if not ends and not {WORDS[token], before + WORDS[token]} & set(banned):  # type: ignore[call-overload]
            return token
    raise AssertionError("every token is banned")


def _cut(text: str, stop_words: tuple[str, ...]) -> str:
    found = [text.index(word) for word in stop_words if word in text]
    return text[: min(found)] if found else text


def _groups(length: int, drafts: int, prompt: str, *, accepts_all: bool) -> Iterator[tuple[int, int, int]]:
    """Yield accepted and drafted tokens and the size of each round."""
    done = 0
    for number in itertools.count():
        if done >= length:
            return
        drafted = max(min(drafts, length - done - 1), 0)
        accepted = drafted if accepts_all else zlib.crc32(f"{prompt} {number}".encode()) % (drafted + 1)
        done += accepted + 1
        yield accepted, drafted, accepted + 1


def _chunks(
    ids: list[int],
    text: str,
    rounds: list[tuple[int, int, int]],
    request: GenerateRequest,
    *,
    reason: str,
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
            finish_reason=reason if last else "",
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
    return value[0] if len(value) == 1 and tensor.name not in {"stop_words", "bad_words", "input_ids"} else value


def _filled(values: dict[str, Any]) -> dict[str, Any]:
    """Put something where a fault let a wrong request through."""
    length, prompt = values.get("max_tokens"), values.get("text_input")
    usable = length if isinstance(length, int) and length > 0 else 1
    kept = {name: value for name, value in values.items() if name != "flat"}
    return {**kept, "text_input": prompt if isinstance(prompt, str) else "", "max_tokens": usable}
