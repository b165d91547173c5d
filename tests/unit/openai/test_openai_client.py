"""The client of OpenAI-compatible servers: what it sends, what it makes of answers, and how it fails."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.errors import ConfigError
from specdeploy.openai import Dialect, OpenAIClient, ServerAddress, ask_dialect
from specdeploy.openai.redact import Redactor
from specdeploy.triton.client import RequestFailed
from specdeploy.triton.protocol import GenerateRequest, join_chunks
from tests.unit.openai.fake_openai import ADDRESS, MODEL, FakeOpenAI, stream_reply
from tests.unit.triton.fake_triton import FakeReply, FakeTransport, json_reply

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST = GenerateRequest(prompt="one two", max_tokens=5)


def answering(*replies: FakeReply) -> OpenAIClient:
    """Return a client whose requests get these replies, in turn."""
    left = iter(replies)
    return OpenAIClient(ADDRESS, model=MODEL, transport=FakeTransport(lambda *_: next(left)))


def event(text: str = "", **choice: Any) -> dict[str, Any]:
    """Return one event of a completion stream."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": None, **choice}]}


class TestAddress:
    """How a URL is read."""

    @pytest.mark.parametrize(
        ("url", "host", "tls", "api"),
        [
            ("http://127.0.0.1:8000", "127.0.0.1:8000", False, "/v1"),
            ("http://h:8000/v1/", "h:8000", False, "/v1"),
            ("https://h/some/where/v1", "h:443", True, "/some/where/v1"),
            ("http://[::1]:5", "[::1]:5", False, "/v1"),
            ("http://h", "h:80", False, "/v1"),
        ],
    )
    def test_urls(self, url: str, host: str, tls: bool, api: str) -> None:
        """A URL is read with or without /v1, a port, a path in front of it, and TLS."""
        address = ServerAddress.parse(url)
        assert (address.host, address.tls, address.api) == (host, tls, api)

    @pytest.mark.parametrize(
        "url",
        [
            *("h:8000", "ftp://h", "http://", "http://h:port", "http://h?x=1", ""),
            *("http://[::1/v1", "http://a..b/v1", "http://h/é/v1", "http://h/a b/v1", "http://h/v1#x"),
        ],
    )
    def test_other_things_are_refused(self, url: str) -> None:
        """What is no URL of a server is refused with an example."""
        with pytest.raises(ConfigError, match="no address") as failed:
            ServerAddress.parse(url)
        assert "http://" in failed.value.hint

    def test_a_password_is_not_repeated(self) -> None:
        """A URL with a password in it is refused without showing it."""
        with pytest.raises(ConfigError) as failed:
            ServerAddress.parse("https://me:secret@h/v1")
        assert "secret" not in f"{failed.value} {failed.value.hint}"

    @pytest.mark.parametrize(
        "url",
        [
            *("me:secret@127.0.0.1:8000/v1", "http:/me:secret@127.0.0.1:8000/v1", "http://me:sec?ret@secret@[h"),
            *("http://h/v1?api_key=secret", "http://h:x/v1#secret", "//secret@h"),
        ],
    )
    def test_no_secret_of_a_malformed_url_is_repeated(self, url: str) -> None:
        """What may be a password or a key is left out wherever the URL is shown, however malformed it is."""
        with pytest.raises(ConfigError) as failed:
            ServerAddress.parse(url)
        assert "sec" not in f"{failed.value} {failed.value.hint}"


class TestRedactor:
    """The key in what a server says."""

    @pytest.mark.parametrize(
        ("key", "said", "shown"),
        [
            ("sk-0123456789", "bad key: sk-0123456789!", "bad key: ***!"),
            ("sk-0123456789", "got Bearer sk-0123456789", "got Bearer ***"),
            ("sk-0123456789", "got 'bearer sk-other', sorry", "got 'bearer ***', sorry"),
            ("sk-0123456789", 'b\'{"message": "sk-01234\'', 'b\'{"message": "***\''),
            ('sk-"quoted"/slash', 'bad: sk-\\"quoted\\"/slash', "bad: ***"),
            ("sk-0123/4567", "bad: sk-0123\\/4567", "bad: ***"),
            ("no", "nothing: no such key, no", "nothing: *** such key, ***"),
            (None, "nothing to hide", "nothing to hide"),
        ],
    )
    def test_texts(self, key: str | None, said: str, shown: str) -> None:
        """It is left out as a whole, as JSON spells it, where it is cut off; a short one only as a word."""
        assert Redactor(key).text(said) == shown

    @pytest.mark.parametrize(
        "call",
        [
            lambda client: client.models(),
            lambda client: client.server(),
            lambda client: client.generate_http(REQUEST),
            lambda client: client.post_generate({}),
            lambda client: list(client.stream_http(REQUEST)),
        ],
    )
    @pytest.mark.parametrize("status", [200, 401])
    def test_every_failure_of_the_client(self, call: Callable[[OpenAIClient], object], status: int) -> None:
        """A server that repeats the header in its error does not bring the key into a message."""
        body = {"error": {"message": "Incorrect key: Bearer sk-0123456789"}}
        reply = stream_reply([body]) if status == 200 else json_reply(body, status)
        transport = FakeTransport(lambda *_: reply)
        client = OpenAIClient(ADDRESS, model=MODEL, api_key="sk-0123456789", transport=transport)
        with pytest.raises(RequestFailed, match=r"Bearer \*\*\*") as failed:
            call(client)
        assert "sk-0123456789" not in f"{failed.value!r} {failed.value.message} {failed.value.said}"


class TestTooLong:
    """Answers without end."""

    def test_a_body(self) -> None:
        """A body longer than any answer is given up, and not kept."""
        endless = FakeReply(200, itertools.repeat(b" " * 2**20))
        with answering(endless) as client, pytest.raises(RequestFailed, match="longer than 64 MiB") as failed:
            client.models()
        assert failed.value.label == "protocol"
        assert endless.closed

    def test_a_stream(self) -> None:
        """Events of any number are given up, too."""
        piece = b"data: " + json.dumps(event("x" * 2**20)).encode() + b"\n\n"
        chunks = answering(FakeReply(200, itertools.repeat(piece))).stream_http(REQUEST)
        with pytest.raises(RequestFailed, match="the answer is longer than 64 MiB"):
            list(chunks)

    def test_many_events(self) -> None:
        """So are small events of which there are more than an answer has tokens."""
        piece = (b"data: " + json.dumps({"choices": []}).encode() + b"\n\n") * 10_000
        chunks = answering(FakeReply(200, itertools.repeat(piece))).stream_http(REQUEST)
        with pytest.raises(RequestFailed, match="more than 100,000 events") as failed:
            list(chunks)
        assert failed.value.label == "protocol"

    @pytest.mark.parametrize("piece", [b"x" * 2**20, b"data: x\n" * 2**17])
    def test_an_event(self, piece: bytes) -> None:
        """One event that never ends is given up before that, in one line or in many."""
        chunks = answering(FakeReply(200, itertools.repeat(piece))).stream_http(REQUEST)
        with pytest.raises(RequestFailed, match="an event is longer than 16 MiB"):
            list(chunks)


class TestSent:
    """What goes out for a request."""

    def sent(self, request: GenerateRequest, dialect: Dialect | None = None, *, stream: bool = False) -> Any:
        """Return the body that is sent for a request."""
        server = FakeOpenAI()
        client = server.client(dialect)
        if stream:
            list(client.stream_http(request))
        else:
            client.generate_http(request)
        return server.transport.sent[-1][2]

    def test_greedy(self) -> None:
        """A greedy request sends temperature 0 and no other sampling parameter."""
        request = dataclasses.replace(REQUEST, top_k=5, top_p=0.5, seed=1)
        assert self.sent(request, Dialect(ids=False)) == {
            "model": MODEL,
            "prompt": "one two",
            "max_tokens": 5,
            "temperature": 0,
            "stream": False,
        }

    def test_sampled(self) -> None:
        """A sampled request sends what it was given, and stop words as `stop`."""
        request = dataclasses.replace(REQUEST, temperature=1.5, top_k=50, top_p=0.9, seed=7, stop_words=("a", "b"))
        body = self.sent(request)
        wanted = {"temperature": 1.5, "top_k": 50, "top_p": 0.9, "seed": 7, "stop": ["a", "b"]}
        assert wanted.items() <= body.items()

    def test_what_is_not_set_is_not_sent(self) -> None:
        """Left out stays left out: a null would be refused by some servers."""
        body = self.sent(dataclasses.replace(REQUEST, temperature=1.0))
        assert not {"top_k", "top_p", "seed", "stop"} & body.keys()

    def test_streaming(self) -> None:
        """A stream asks for the usage at its end, where the server takes that; a whole answer never does."""
        assert self.sent(REQUEST, stream=True)["stream_options"] == {"include_usage": True}
        assert "stream_options" not in self.sent(REQUEST, Dialect(usage=False), stream=True)
        assert "stream_options" not in self.sent(REQUEST)

    def test_chat(self) -> None:
        """Where only chat is served, the prompt is the message of a user."""
        body = self.sent(REQUEST, Dialect(chat=True))
        assert body["messages"] == [{"role": "user", "content": "one two"}]
        assert "prompt" not in body

    def test_drafts_cannot_be_asked_for(self) -> None:
        """A number of drafts is refused before anything is sent: the server would ignore it."""
        server = FakeOpenAI()
        with pytest.raises(ConfigError, match="num_draft_tokens"):
            server.client().generate_http(dataclasses.replace(REQUEST, num_draft_tokens=0))
        assert server.transport.sent == []

    def test_other_inputs_cannot_be_asked_for(self) -> None:
        """An input that OpenAI's API has no field for is refused by name; one that it has goes out."""
        with pytest.raises(ConfigError, match="bad_words"):
            FakeOpenAI().client().generate_http(dataclasses.replace(REQUEST, extra={"bad_words": ["x"]}))
        body = self.sent(dataclasses.replace(REQUEST, extra={"presence_penalty": 0.5}))
        assert body["presence_penalty"] == 0.5

    def test_wrong_fields_go_out_as_they_are(self) -> None:
        """`post_generate` translates names and nothing else, so that a refusal is the server's own."""
        server = FakeOpenAI()
        with pytest.raises(RequestFailed, match="valid integer") as failed:
            server.client().post_generate({"text_input": "x", "max_tokens": "three"})
        assert failed.value.label == "invalid_argument"
        sent = server.transport.sent[-1][2]
        assert (sent["prompt"], sent["max_tokens"]) == ("x", "three")

    def test_every_call_has_the_deadline(self) -> None:
        """The deadline of a call reaches the transport; the client's own holds where none is given."""
        server = FakeOpenAI()
        client = server.client()
        client.generate_http(REQUEST, timeout_s=3)
        list(client.stream_http(REQUEST, timeout_s=4))
        client.server()
        assert server.transport.timeouts == [3, 4, 60.0]


class TestAnswers:
    """What is made of an answer."""

    @pytest.mark.parametrize("chat", [False, True])
    def test_stream_equals_whole(self, chat: bool) -> None:
        """The pieces joined are the whole answer: text, ids, reason and all counts; only the last is final."""
        client = FakeOpenAI().client(Dialect(chat=chat))
        whole, pieces = client.generate_http(REQUEST), list(client.stream_http(REQUEST))
        assert len(pieces) == 3
        assert [piece.final for piece in pieces] == [False, False, True]
        assert [piece.finish_reason for piece in pieces] == ["", "", "length"]
        assert dataclasses.replace(join_chunks(pieces), received_s=None) == dataclasses.replace(whole, received_s=None)
        assert (whole.num_input_tokens, whole.num_output_tokens, len(whole.ids)) == (2, 5, 5)
        counts = (whole.num_spec_steps, whole.total_draft_tokens, whole.total_accepted_draft_tokens, whole.histogram)
        assert counts == (3, 6, 3, (0, 3, 0))
        assert whole.acceptance_rate == 0.5

    def test_absent_is_not_zero(self) -> None:
        """What the server does not tell is None, or no ids."""
        answer = answering(json_reply({"choices": [{"text": "x", "finish_reason": "length"}]})).generate_http(REQUEST)
        assert (answer.ids, answer.histogram) == ((), ())
        assert answer.num_output_tokens is answer.total_draft_tokens is answer.acceptance_rate is None

    def test_counts_of_llama_cpp(self) -> None:
        """llama.cpp's `timings` tell drafted and accepted tokens, and no number of rounds."""
        reply = {
            "choices": [{"text": "x", "finish_reason": "length"}],
            "timings": {"draft_n": 8, "draft_n_accepted": 6},
        }
        answer = answering(json_reply(reply)).generate_http(REQUEST)
        assert (answer.total_draft_tokens, answer.total_accepted_draft_tokens) == (8, 6)
        assert answer.num_spec_steps is None
        assert answer.acceptance_rate == 0.75

    @pytest.mark.parametrize(
        ("choice", "stop_words", "reason"),
        [
            ({"finish_reason": "length"}, (), "length"),
            ({"finish_reason": "stop"}, (), "end_id"),
            ({"finish_reason": "stop"}, ("x",), "stop_word"),
            ({"finish_reason": "stop", "stop_reason": "x"}, ("x",), "stop_word"),
            ({"finish_reason": "stop", "stop_reason": None}, ("x",), "end_id"),
            ({"finish_reason": "stop", "stop_reason": 2}, ("x",), "end_id"),
            ({"finish_reason": None}, (), ""),
        ],
    )
    def test_why_it_ended(self, choice: dict[str, Any], stop_words: tuple[str, ...], reason: str) -> None:
        """OpenAI's `stop` is a stop word or the end token: by vLLM's `stop_reason`, else by what was asked for."""
        request = dataclasses.replace(REQUEST, stop_words=stop_words)
        answer = answering(json_reply({"choices": [{"text": "", **choice}]})).generate_http(request)
        assert answer.finish_reason == reason

    def test_events_that_tell_nothing_are_passed_over(self) -> None:
        """The role of a chat and an empty piece are no chunk, so that the first chunk is the first text."""
        role = {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        client = answering(stream_reply([role, event(""), event("a"), event("", finish_reason="stop")]))
        assert [chunk.text for chunk in client.stream_http(REQUEST)] == ["a", ""]

    def test_every_reason_is_shown(self) -> None:
        """A server that says twice that it has ended is not mended: both pieces come, for the check to find."""
        client = answering(stream_reply([event("a", finish_reason="length"), event("b", finish_reason="length")]))
        assert [chunk.finish_reason for chunk in client.stream_http(REQUEST)] == ["length", "length"]

    @pytest.mark.parametrize(
        "answer",
        [
            {"choices": "x"},
            {"id": 1},
            {"choices": [{"text": 1}]},
            {"choices": [{"text": "x", "token_ids": ["1"]}]},
            {"choices": [{"text": "x", "finish_reason": 1}]},
            {"choices": [{"text": "x"}, {"text": "y"}]},
            {"choices": [{"text": "x"}], "usage": {"prompt_tokens": "2"}},
            {"choices": [{"text": "x"}], "usage": {"completion_tokens": 10**400}},
            {"choices": [{"text": "x"}], "usage": {"completion_tokens": 2**31}},
            {"choices": [{"text": "x"}], "timings": {"draft_n": 2**62, "draft_n_accepted": 0}},
            {"choices": [{"text": "x"}], "timings": {"draft_n": -(2**31), "draft_n_accepted": 0}},
            {"choices": [{"text": "x"}], "metrics": {"speculative_decoding": {"acceptance_histogram": [2**31]}}},
            {"choices": [{"text": "x"}], "metrics": {"speculative_decoding": {"acceptance_histogram": [1] * 5000}}},
            {"choices": [{"text": "x", "token_ids": [2**31]}]},
            [1],
        ],
    )
    def test_what_is_not_the_protocol(self, answer: object) -> None:
        """An answer of another shape fails as `protocol`, with a part of it, and never as a bug of ours."""
        with pytest.raises(RequestFailed) as failed:
            answering(json_reply(answer)).generate_http(REQUEST)
        assert failed.value.label == "protocol"


class TestErrors:
    """How each failure is told."""

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ({"error": {"message": "bad prompt", "type": "BadRequestError", "code": 400}}, "bad prompt"),
            ({"error": {"message": "", "type": "internal_server_error"}}, "internal_server_error"),
            ({"error": "bad prompt"}, "bad prompt"),
            ({"object": "error", "message": "bad prompt", "code": 400}, "bad prompt"),
            ({"detail": "bad prompt"}, "bad prompt"),
            ({"detail": [{"loc": ["body", "prompt"], "msg": "bad", "type": "missing"}]}, "body.prompt: bad"),
        ],
    )
    def test_each_shape_of_an_error_is_read(self, body: object, said: str) -> None:
        """Whatever shape a server gives its error, its words and its status are told."""
        with pytest.raises(RequestFailed) as failed:
            answering(json_reply(body, 400)).generate_http(REQUEST)
        assert (failed.value.said, failed.value.status, failed.value.label) == (said, 400, "invalid_argument")

    @pytest.mark.parametrize(
        ("status", "label"),
        [
            (401, "invalid_argument"),
            (404, "invalid_argument"),
            (429, "unavailable"),
            (500, "internal"),
            (302, "protocol"),
        ],
    )
    def test_statuses(self, status: int, label: str) -> None:
        """A status gives the label; a redirect is not followed, as it would carry the key elsewhere."""
        with pytest.raises(RequestFailed) as failed:
            answering(FakeReply(status, [b"no"])).generate_http(REQUEST)
        assert failed.value.label == label

    def test_an_error_within_a_200(self) -> None:
        """An error in an answer with status 200 is a failure."""
        with pytest.raises(RequestFailed, match="boom") as failed:
            answering(json_reply({"error": {"message": "boom"}})).generate_http(REQUEST)
        assert failed.value.label == "model_error"

    def test_an_error_within_a_stream(self) -> None:
        """An error event ends the stream with a failure, after the pieces that came before it."""
        chunks = answering(stream_reply([event("a"), {"error": {"message": "boom"}}])).stream_http(REQUEST)
        assert next(chunks).text == "a"
        with pytest.raises(RequestFailed, match="boom"):
            next(chunks)

    def test_an_error_as_plain_body_at_the_end_of_a_stream(self) -> None:
        """Some servers write a bare object into a stream that has begun; it is an error, too."""
        reply = stream_reply([event("a")], end=b'{"error": {"message": "boom"}}')
        with pytest.raises(RequestFailed, match="boom"):
            list(answering(reply).stream_http(REQUEST))

    @pytest.mark.parametrize(
        ("events", "end", "label"),
        [
            ([event("a", finish_reason="length")], b"", "stream_ended_early"),
            ([event("a")], b"", "stream_ended_early"),
            ([], b"", "empty_stream"),
            ([event("a")], b"data: [DO", "connection"),
        ],
    )
    def test_a_stream_without_its_end(self, events: list[dict[str, Any]], end: bytes, label: str) -> None:
        """A stream that ends before [DONE] is a failure, however complete it looks; within an event it broke off."""
        reply = stream_reply(events, end=end)
        with pytest.raises(RequestFailed) as failed:
            list(answering(reply).stream_http(REQUEST))
        assert failed.value.label == label
        assert reply.closed

    def test_an_event_after_the_end(self) -> None:
        """Nothing may follow [DONE]."""
        end = b"data: [DONE]\n\ndata: " + json.dumps(event("late")).encode() + b"\n\n"
        with pytest.raises(RequestFailed, match="follows"):
            list(answering(stream_reply([event("a")], end=end)).stream_http(REQUEST))

    def test_a_refused_stream(self) -> None:
        """A stream that is refused before it begins fails with the server's words and status."""
        with pytest.raises(RequestFailed, match="too long") as failed:
            list(answering(json_reply({"error": {"message": "too long"}}, 400)).stream_http(REQUEST))
        assert failed.value.status == 400

    def test_leaving_a_stream_ends_the_exchange(self) -> None:
        """Closing the iterator closes the connection, which is how such a server learns of it."""
        reply = stream_reply([event("a"), event("b")])
        chunks = answering(reply).stream_http(REQUEST)
        next(chunks)
        chunks.close()  # type: ignore[attr-defined]
        assert reply.closed


class TestHealth:
    """Whether it is up, and what it is."""

    def test_ready_by_health(self) -> None:
        """`/health` decides where it is there."""
        assert FakeOpenAI().client().ready()
        assert not FakeOpenAI(health=503).client().ready()

    def test_ready_without_health(self) -> None:
        """A server without that page is ready when it lists its models."""
        assert FakeOpenAI(health=404).client().ready()

    def test_not_there(self) -> None:
        """A server that cannot be reached is neither live nor ready, and `server` says why."""

        def refuse(*_: object) -> FakeReply:
            raise RequestFailed("connection", "refused")

        client = OpenAIClient(ADDRESS, model=MODEL, transport=FakeTransport(refuse))
        assert not client.live()
        assert not client.ready()
        assert not client.model_ready(MODEL)
        with pytest.raises(RequestFailed, match="refused"):
            client.server()

    def test_about(self) -> None:
        """The owner and the models are told as `/v1/models` has them."""
        client = FakeOpenAI().client()
        assert client.server() == {"name": "toys", "models": [MODEL]}
        assert client.model_ready(MODEL)
        assert not client.model_ready("other")
        assert client.metrics_text() == "requests 1\n"

    def test_no_models(self) -> None:
        """A page that lists no models fails as `protocol`."""
        with pytest.raises(RequestFailed, match="lists no models"):
            answering(json_reply({"data": [{"name": "x"}]})).models()


class TestDialect:
    """What a server is found to offer."""

    def asked(self, server: FakeOpenAI) -> Dialect:
        """Ask a server what it offers."""
        return ask_dialect(server.client)

    def test_all(self) -> None:
        """A server that offers everything is asked once."""
        server = FakeOpenAI()
        assert self.asked(server) == Dialect(counts=True)
        assert len(server.transport.sent) == 1

    def test_ids_that_are_ignored(self) -> None:
        """A server that ignores `return_token_ids` is not asked for them again."""
        assert self.asked(FakeOpenAI(ids=False, counts=False)) == Dialect(ids=False)

    def test_strict(self) -> None:
        """A server that refuses what it does not know is asked without it, and still for what is OpenAI's own."""
        assert self.asked(FakeOpenAI(strict=True)) == Dialect(ids=False, counts=True)
        older = FakeOpenAI(strict=True, usage=False)
        assert self.asked(older) == Dialect(usage=False, ids=False, counts=True, totals=False)

    def test_chat_only(self) -> None:
        """Where completions are absent, chat is used; what is not there is asked once."""
        server = FakeOpenAI(completions=False, strict=True)
        assert self.asked(server) == Dialect(chat=True, ids=False, counts=True)
        assert len(server.transport.sent) == 3

    def test_a_server_that_fails(self) -> None:
        """Any other failure than a refusal is told at once."""
        transport = FakeTransport(lambda *_: json_reply({"error": {"message": "out of memory"}}, 500))
        with pytest.raises(RequestFailed, match="out of memory"):
            ask_dialect(lambda d: OpenAIClient(ADDRESS, model=MODEL, dialect=d, transport=transport))
        assert len(transport.sent) == 1

    def test_a_model_that_is_not_there(self) -> None:
        """When everything is refused, the reason for the first request is told, not that there is no chat."""
        server = FakeOpenAI()
        with pytest.raises(RequestFailed, match="does not exist"):
            ask_dialect(lambda d: OpenAIClient(ADDRESS, model="other", dialect=d, transport=server.transport))
