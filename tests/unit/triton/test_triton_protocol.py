"""The wire format: what is encoded comes back, what is wrong is refused, and nothing is misread."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.errors import ConfigError
from specdeploy.triton.protocol import (
    CHUNK_OUTPUTS,
    FRONT_DOOR_INPUTS,
    NUMPY_TYPES,
    Chunk,
    EventSplitter,
    GenerateRequest,
    MalformedResponse,
    decode_chunk,
    join_chunks,
    make_tensor,
    pack_bytes,
    read_metadata,
    read_statistics,
    unpack_bytes,
    unpack_tensor,
)
from tests.unit.triton.fake_triton import metadata_of

int32 = st.integers(0, 2**31 - 1)
texts = st.text(max_size=20)
fp32 = st.floats(0, 100, width=32)
sampling = st.fixed_dictionaries(
    {
        "temperature": st.floats(0.125, 2, width=32),
        "top_k": st.none() | int32,
        "top_p": st.none() | fp32,
    }
)
extras = st.fixed_dictionaries(
    {},
    optional={
        "min_tokens": int32,
        "bad_words": st.lists(texts, min_size=2, max_size=3),
        "repetition_penalty": fp32,
        "return_log_probs": st.booleans(),
        "guided_decoding_guide": texts,
    },
)
requests = st.builds(
    lambda fields, **rest: GenerateRequest(**fields, **rest),
    st.just({}) | sampling,
    prompt=texts,
    max_tokens=int32,
    num_draft_tokens=st.none() | int32,
    seed=st.none() | st.integers(0, 2**64 - 1),
    stop_words=st.lists(texts, max_size=3).map(tuple),
    stream=st.booleans(),
    extra=extras,
)
chunks = st.builds(
    Chunk,
    text=texts,
    ids=st.lists(int32, max_size=5).map(tuple),
    finish_reason=st.sampled_from(["", "length", "stop_word"]),
    bypass_reason=st.sampled_from(["", "requested"]),
    acceptance_rate=st.none() | st.floats(0, 1, width=32),
    num_spec_steps=st.none() | int32,
    total_draft_tokens=st.none() | int32,
    total_accepted_draft_tokens=st.none() | int32,
    histogram=st.lists(int32, max_size=4).map(tuple),
    num_input_tokens=st.none() | int32,
    num_output_tokens=st.none() | int32,
)
_OUTPUT_OF_FIELD = {"text": "text_output", "ids": "output_ids", "histogram": "spec_decode_acceptance_histogram"}


def _outputs(chunk: Chunk) -> dict[str, object]:
    """Return a chunk's outputs as plain values, those that it has."""
    fields = {
        f.name: getattr(chunk, f.name) for f in dataclasses.fields(chunk) if f.name not in {"final", "received_s"}
    }
    return {_OUTPUT_OF_FIELD.get(name, name): value for name, value in fields.items() if value is not None}


class TestRequest:
    """Requests and their two encodings."""

    @given(requests)
    def test_survives_the_way_through_tensors(self, request: GenerateRequest) -> None:
        """A request that is encoded as raw tensors and decoded again is the same request."""
        tensors = [
            dataclasses.replace(t, data=unpack_tensor(t.name, t.datatype, t.data.shape, t.raw()))
            for t in request.to_tensors()
        ]

        assert request == GenerateRequest.from_tensors(tensors)

    @given(requests)
    def test_survives_the_way_through_json(self, request: GenerateRequest) -> None:
        """A request that is written as JSON and read again is the same request."""
        assert request == GenerateRequest.from_json(json.loads(json.dumps(request.to_json())))

    @given(requests)
    def test_every_tensor_has_a_batch_of_one_and_its_type(self, request: GenerateRequest) -> None:
        """Every tensor is [1, n] and of the type that the model declares."""
        for tensor in request.to_tensors():
            assert tensor.data.ndim == 2
            assert tensor.data.shape[0] == 1
            assert FRONT_DOOR_INPUTS[tensor.name] == tensor.datatype
            assert NUMPY_TYPES[tensor.datatype] == tensor.data.dtype

    def test_greedy_sends_no_sampling_input(self) -> None:
        """At temperature 0 top_k and top_p are left out, so that NVIDIA's default, the likeliest token, holds."""
        request = GenerateRequest(prompt="a", max_tokens=1, top_k=50, top_p=0.9)

        assert {"text_input", "max_tokens", "stream"} == {tensor.name for tensor in request.to_tensors()}

    def test_what_is_left_out_is_not_sent(self) -> None:
        """A number of drafts that nobody chose is left to the deployment; 0 is a choice."""
        request = GenerateRequest(prompt="a", max_tokens=1)

        assert "num_draft_tokens" not in request.to_json()
        assert dataclasses.replace(request, num_draft_tokens=0).to_json()["num_draft_tokens"] == 0

    def test_a_typo_is_an_error_with_the_nearest_name(self) -> None:
        """Triton would accept an unknown JSON field silently; here it is refused, and the right name suggested."""
        request = GenerateRequest(prompt="a", max_tokens=1, extra={"num_draft_token": 0})

        with pytest.raises(ConfigError, match="no input 'num_draft_token'") as caught:
            request.to_json()
        assert caught.value.hint == "Did you mean 'num_draft_tokens'?"

    def test_a_name_like_no_other_lists_what_there_is(self) -> None:
        """Without a near name the hint lists the model's inputs."""
        request = GenerateRequest(prompt="a", max_tokens=1, extra={"zzz": 0})

        with pytest.raises(ConfigError) as caught:
            request.to_tensors({"text_input": "BYTES", "max_tokens": "INT32", "stream": "BOOL"})
        assert caught.value.hint == "It has: max_tokens, stream, text_input."

    def test_a_field_that_the_model_lacks_is_an_error_too(self) -> None:
        """A server without num_draft_tokens cannot be asked for drafts."""
        request = GenerateRequest(prompt="a", max_tokens=1, num_draft_tokens=3)
        known = {name: kind for name, kind in FRONT_DOOR_INPUTS.items() if name != "num_draft_tokens"}

        with pytest.raises(ConfigError, match="num_draft_tokens"):
            request.to_tensors(known)

    def test_extra_cannot_say_a_field_twice(self) -> None:
        """An input that has a field of its own is refused in extra."""
        request = GenerateRequest(prompt="a", max_tokens=1, extra={"text_input": "b"})

        with pytest.raises(ConfigError, match="repeats") as caught:
            request.inputs()
        assert caught.value.hint == "Set prompt instead."

    def test_seed_goes_by_its_older_name_where_the_model_uses_that(self) -> None:
        """Releases before 1.0 call the seed random_seed."""
        known = dict(FRONT_DOOR_INPUTS)
        known["random_seed"] = known.pop("seed")
        request = GenerateRequest(prompt="a", max_tokens=1, seed=5)

        body = request.to_json(known)

        assert body["random_seed"] == 5
        assert "seed" not in body
        assert dataclasses.replace(request, stream=True) == GenerateRequest.from_json(body)

    def test_min_tokens_goes_by_its_older_name_where_the_model_uses_that(self) -> None:
        """Releases before 1.0 call the shortest answer min_length; who reads the request back finds one name."""
        known = dict(FRONT_DOOR_INPUTS)
        known["min_length"] = known.pop("min_tokens")
        request = GenerateRequest(prompt="a", max_tokens=9, extra={"min_tokens": 9})

        body = request.to_json(known)

        assert body["min_length"] == 9
        assert "min_tokens" not in body
        assert GenerateRequest.from_json(body) == request
        assert "min_tokens" in request.to_json()

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("min_tokens", "three"),
            ("min_tokens", 1.5),
            ("min_tokens", True),
            ("min_tokens", 2**31),
            ("min_tokens", [[1], [2]]),
            ("lora_task_id", -1),
            ("repetition_penalty", "1"),
            ("repetition_penalty", False),
            ("return_log_probs", 1),
            ("bad_words", 5),
        ],
    )
    def test_a_value_of_the_wrong_type_is_refused(self, name: str, value: object) -> None:
        """Values are checked against the model's types before anything is sent."""
        request = GenerateRequest(prompt="a", max_tokens=1, extra={name: value})

        with pytest.raises(ConfigError, match=name):
            request.to_json()

    @pytest.mark.parametrize("body", [{"text_input": "a"}, {"max_tokens": 1}, {}])
    def test_a_body_without_prompt_or_length_is_no_request(self, body: dict[str, object]) -> None:
        """Both inputs that every front door needs are named when they are missing."""
        with pytest.raises(ConfigError, match="lacks"):
            GenerateRequest.from_json(body)


class TestChunk:
    """Responses."""

    @given(chunks)
    def test_reads_arrays(self, chunk: Chunk) -> None:
        """A response in tensors of any shape is read as it was meant."""
        outputs = {
            name: unpack_tensor(name, t.datatype, t.data.shape, t.raw())
            for name, value in _outputs(chunk).items()
            for t in [make_tensor(name, CHUNK_OUTPUTS[name], value)]
        }

        assert chunk == decode_chunk(outputs)

    @given(chunks)
    def test_reads_json(self, chunk: Chunk) -> None:
        """A response in JSON is read the same; there Triton writes a list of one as a scalar."""
        outputs = {
            name: value[0] if isinstance(value, tuple) and len(value) == 1 else value
            for name, value in _outputs(chunk).items()
        }

        assert chunk == decode_chunk(json.loads(json.dumps(outputs)))

    def test_absent_is_not_zero(self) -> None:
        """A server that reports no statistics leaves them unknown."""
        chunk = decode_chunk({"text_output": "a", "cum_log_probs": 0.0})

        assert Chunk(text="a") == chunk
        assert chunk.num_spec_steps is None

    @pytest.mark.parametrize(
        "outputs",
        [
            {},
            {"output_ids": [1]},
            {"text_output": 5},
            {"text_output": np.array([[b"\xff"]], dtype=object)},
            {"text_output": "a", "output_ids": ["x"]},
            {"text_output": "a", "num_spec_steps": 1.5},
            {"text_output": "a", "num_spec_steps": True},
            {"text_output": "a", "num_spec_steps": 2**31},
            {"text_output": "a", "output_ids": [2**31]},
            {"text_output": "a", "spec_decode_acceptance_histogram": [0, 2**62]},
            {"text_output": "a", "spec_decode_acceptance_histogram": [1] * 5000},
            {"text_output": "a", "acceptance_rate": 10**400},
            {"text_output": "a", "acceptance_rate": "high"},
        ],
    )
    def test_refuses_what_is_no_response(self, outputs: dict[str, object]) -> None:
        """Missing text, values of another kind and beyond all measure are not read as something else."""
        with pytest.raises(MalformedResponse):
            decode_chunk(outputs)

    @given(st.lists(chunks, min_size=1, max_size=4))
    def test_joins(self, pieces: list[Chunk]) -> None:
        """Texts and ids are joined in order; the counts are those of the last piece."""
        whole = join_chunks(pieces)

        assert "".join(piece.text for piece in pieces) == whole.text
        assert [i for piece in pieces for i in piece.ids] == list(whole.ids)
        assert dataclasses.replace(pieces[-1], text=whole.text, ids=whole.ids) == whole

    def test_nothing_cannot_be_joined(self) -> None:
        """A stream without a response is no empty answer."""
        with pytest.raises(MalformedResponse):
            join_chunks([])


class TestBytes:
    """Raw tensor contents."""

    @given(st.lists(st.binary(max_size=10), max_size=5))
    def test_round_trip(self, items: list[bytes]) -> None:
        """What is packed comes back."""
        assert items == unpack_bytes(pack_bytes(items))

    @given(st.lists(st.binary(max_size=10), min_size=1, max_size=5), st.integers(1, 3))
    def test_a_cut_tensor_is_refused(self, items: list[bytes], cut: int) -> None:
        """Bytes that end within an element are not taken for a whole tensor."""
        raw = pack_bytes([*items, b"end"])[:-cut]

        with pytest.raises(MalformedResponse):
            unpack_bytes(raw)

    def test_is_the_format_of_tritonclient(self) -> None:
        """The bytes are those that NVIDIA's client writes."""
        from tritonclient.utils import serialize_byte_tensor

        items = ["žluťoučký".encode(), b"", b"\x00a"]

        assert serialize_byte_tensor(np.array(items, dtype=object)).item() == pack_bytes(items)

    @pytest.mark.parametrize(
        ("datatype", "shape", "raw"), [("INT32", [2], b"1234"), ("INT32", [1], b"123"), ("X", [1], b"")]
    )
    def test_data_that_does_not_fill_the_shape_is_refused(self, datatype: str, shape: list[int], raw: bytes) -> None:
        """Type, shape and size of an output must agree."""
        with pytest.raises(MalformedResponse, match="'Y'"):
            unpack_tensor("Y", datatype, shape, raw)


class TestSse:
    """Server-sent events."""

    @given(st.lists(texts.filter(lambda t: not set(t) & set("\r\n")).filter(bool), max_size=4), st.data())
    def test_pieces_may_end_anywhere(self, events: list[str], data: st.DataObject) -> None:
        """However the bytes are cut, the same events come out, and nothing is left."""
        stream = b"".join(b"data: " + event.encode() + b"\n\n" for event in events)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
        pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        splitter = EventSplitter()

        assert events == [event.decode() for piece in pieces for event in splitter.feed(piece)]
        assert not splitter.unfinished

    def test_reads_what_the_standard_allows(self) -> None:
        """CRLF, comments, other fields, several data lines and a missing space are all understood."""
        stream = b": hello\r\nevent: x\r\ndata: a\r\ndata:b\r\n\r\n\r\ndata: c\n\n"

        assert EventSplitter().feed(stream) == [b"a\nb", b"c"]

    @pytest.mark.parametrize("cut", [b"data: a", b"data: a\n"])
    def test_notices_a_cut(self, cut: bytes) -> None:
        """A stream that ends within an event says so, and the event is not delivered."""
        splitter = EventSplitter()

        assert splitter.feed(cut) == []
        assert splitter.unfinished


class TestAbout:
    """Metadata and counters."""

    def test_reads_metadata(self) -> None:
        """Inputs and outputs come with their types and shapes."""
        about = read_metadata(metadata_of("m", {"X": "INT32"}, {"Y": "BYTES"}))

        assert about.input_types == {"X": "INT32"}
        assert about.output_types == {"Y": "BYTES"}
        assert about.inputs[0].shape == (-1, 1)

    def test_adds_up_the_versions(self) -> None:
        """A model's requests are those of all its versions."""
        entry = {"name": "m", "inference_stats": {"success": {"count": 2}, "fail": {"count": 1}}}

        statistics = read_statistics({"model_stats": [entry, entry]}, "m")

        assert (statistics.success_count, statistics.failure_count) == (4, 2)

    @pytest.mark.parametrize("body", [{}, {"model_stats": []}, {"model_stats": [{"name": "m"}]}])
    def test_refuses_other_answers(self, body: dict[str, object]) -> None:
        """An answer without the counters is not read as zero."""
        with pytest.raises(MalformedResponse):
            read_statistics(body, "m")
        with pytest.raises(MalformedResponse):
            read_metadata(body)
