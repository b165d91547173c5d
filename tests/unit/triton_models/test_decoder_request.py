"""Requests: what is refused, what is sent to which engine, and when the target decodes alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from decoder_request import RequestError, read_request
from decoder_settings import Settings, SettingsError, is_decoupled, read_settings

SETTINGS = Settings(
    target_model="t", draft_model="d", num_draft_tokens=4, max_inflight=2, max_seq_len=32, control_slice_tokens=8
)
ONE_WORD = [[5, 6], [1, 2]]
TWO_TOKENS = [[5, 6], [2, -1]]
NO_WORD = [[0], [-1]]


def read(settings=SETTINGS, **inputs):
    """Read a request with the given inputs; None leaves one out."""
    tensors = {
        "input_ids": [1, 2, 3],
        "input_lengths": [3],
        "request_output_len": [10],
        "text_input": np.array([b"a b c"], object),
        "end_id": [9],
        **inputs,
    }
    arrays = {name: np.asarray([value]) for name, value in tensors.items() if value is not None}
    return read_request(arrays, settings, fresh_seed=77)


def test_a_bare_request_takes_the_deployments_defaults() -> None:
    """Leaving out num_draft_tokens speculates as the deployment does; leaving out stream answers in one piece."""
    request = read()

    assert (
        request.plan.num_draft_tokens,
        request.plan.max_new_tokens,
        request.plan.end_id,
        request.plan.seed,
        request.plan.min_tokens,
    ) == (4, 10, 9, 77, 0)
    assert (
        request.bypass_reason,
        request.stream,
        request.sampled,
        request.prompt_text,
        request.stop_words,
    ) == ("", False, False, "", ())


def test_a_model_of_one_response_each_refuses_to_stream() -> None:
    """The message is that of NVIDIA's engines, and says what to do; a request that does not stream is served."""
    unary = read_settings(parameters(), decoupled=is_decoupled({"model_transaction_policy": {"decoupled": False}}))

    with pytest.raises(RequestError, match="streaming is only supported in decoupled mode; send stream false"):
        read(unary, stream=[True])
    assert not read(unary, stream=[False]).stream
    assert read(dataclasses.replace(unary, decoupled=True), stream=[True]).stream


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": None}, "input_ids is missing"),
        ({"input_ids": np.zeros(0, np.int32), "input_lengths": None}, "input_ids is missing or empty"),
        ({"request_output_len": None}, "request_output_len .* is missing"),
        ({"request_output_len": [0]}, "request_output_len is 0; it must be at least 1"),
        ({"request_output_len": [-3]}, "request_output_len is -3"),
        ({"request_output_len": [30]}, "3 tokens and max_tokens 30 make 33, but the engines hold 32"),
        ({"num_draft_tokens": [-1]}, "num_draft_tokens is -1"),
        ({"num_draft_tokens": [1, 2]}, "num_draft_tokens has 2 values"),
        ({"top_p": [1.5]}, "top_p is 1.5; it must be from 0 to 1"),
        ({"top_k": [-1]}, "top_k is -1"),
        ({"temperature": [-0.5]}, "temperature is -0.5"),
        ({"temperature": [float("nan")]}, "temperature is nan"),
        ({"min_tokens": [-1]}, "min_tokens is -1"),
        ({"repetition_penalty": [0.0]}, "repetition_penalty is 0; it must be at least 1e-06"),
        ({"frequency_penalty": [float("inf")]}, "frequency_penalty is inf; it must be finite"),
        ({"presence_penalty": [float("nan")]}, "presence_penalty is nan"),
        ({"bad_words_list": np.array([[[1, 2, 3]]], np.int32)}, "bad_words_list has 3 values; it must be two rows"),
        ({"beam_width": [0]}, "beam_width is 0"),
        ({"stop_words": np.array([b"\xff"], object)}, "stop_words is not UTF-8"),
        ({"exclude_input_in_output": [False], "text_input": None}, "text_input is missing"),
    ],
)
def test_a_wrong_request_is_refused_by_name_and_value(inputs, message) -> None:
    """The message says which input, and what was seen."""
    with pytest.raises(RequestError, match=message):
        read(**inputs)


def test_the_longest_request_that_fits_is_taken() -> None:
    """Prompt and answer may fill the engines to the last token."""
    assert read(request_output_len=[29]).plan.max_new_tokens == 29


BYPASSES = [
    ({"num_draft_tokens": [0]}, "requested", False),
    ({"repetition_penalty": [1.1]}, "repetition_penalty", False),
    ({"presence_penalty": [0.5]}, "presence_penalty", False),
    ({"frequency_penalty": [-0.5]}, "frequency_penalty", False),
    ({"beam_width": [2]}, "beam_width", True),
    ({"num_return_sequences": [3]}, "num_return_sequences", True),
    ({"guided_decoding_guide_type": np.array([b"json"], object)}, "guided_decoding", True),
    ({"return_context_logits": [True]}, "return_context_logits", True),
    ({"return_generation_logits": [True]}, "return_generation_logits", True),
    ({"lora_task_id": np.array([3], np.uint64)}, "lora", False),
    ({"prompt_embedding_table": np.zeros((2, 4), np.float16)}, "prompt_embedding_table", False),
    ({"bad_words_list": TWO_TOKENS}, "bad_words", False),
    ({"num_draft_tokens": [0], "repetition_penalty": [1.1]}, "requested", False),
    ({"num_draft_tokens": [0], "beam_width": [2]}, "requested", True),
]


@pytest.mark.parametrize(("inputs", "reason", "one_call"), BYPASSES)
def test_the_target_decodes_alone_where_speculation_could_change_the_result(inputs, reason, one_call) -> None:
    """The request says why; where the engine keeps state over a call, even a stream is one call."""
    request = read(stream=[True], **inputs)

    assert (reason, 0) == (request.bypass_reason, request.plan.num_draft_tokens)
    assert ((0, False) if one_call else (8, True)) == (request.plan.slice_tokens, request.plan.restartable)


@pytest.mark.parametrize(
    "inputs",
    [
        {"repetition_penalty": [1.0], "presence_penalty": [0.0], "frequency_penalty": [0.0]},
        {"beam_width": [1], "num_return_sequences": [1], "length_penalty": [1.0]},
        {"return_context_logits": [False], "return_generation_logits": [False]},
        {"bad_words_list": NO_WORD},
        {"bad_words_list": ONE_WORD},
        {"embedding_bias": [0.0, 1.0]},
        {"min_tokens": [3]},
        {"return_log_probs": [True]},
        {"return_perf_metrics": [True], "return_num_input_tokens": [True]},
        {"temperature": [0.7], "top_p": [0.9], "seed": np.array([5], np.uint64)},
        {"guided_decoding_guide": np.array([b""], object)},
    ],
)
def test_neutral_and_exactly_handled_inputs_keep_speculation(inputs) -> None:
    """Sending a default, or something that every verified token obeys, costs nothing."""
    assert (read(**inputs).bypass_reason, read(**inputs).plan.num_draft_tokens) == ("", 4)


def test_neutral_inputs_are_not_sent_on() -> None:
    """Engines are sent what matters: fewer tensors each round, and nothing that they would have to refuse."""
    request = read(
        repetition_penalty=[1.0],
        beam_width=[1],
        length_penalty=[1.0],
        return_log_probs=[False],
        bad_words_list=NO_WORD,
        embedding_bias=np.zeros(0, np.float32),
        temperature=[0.0],
        top_k=[50],
    )

    assert (dict(request.draft_inputs), dict(request.target_inputs)) == ({}, {})


def test_inputs_go_where_they_belong_under_the_engines_names() -> None:
    """Sampling, banned tokens and the bias go to both engines; what counts over the answer to the target."""
    request = read(
        top_k=[5],
        top_p=[0.5],
        temperature=[0.7],
        bad_words_list=ONE_WORD,
        embedding_bias=[0.0, 1.0],
        repetition_penalty=[1.2],
        beam_width=[2],
        length_penalty=[0.5],
        return_log_probs=[True],
        prompt_table_extra_id=np.array([4], np.uint64),
    )
    both = {"runtime_top_k", "runtime_top_p", "temperature", "bad_words_list", "embedding_bias"}

    assert both == set(request.draft_inputs)
    assert {
        "repetition_penalty",
        "beam_width",
        "len_penalty",
        "return_log_probs",
        "prompt_table_extra_ids",
    } == set(request.target_inputs) - both


@pytest.mark.parametrize(
    ("inputs", "sampled"),
    [
        ({}, False),
        ({"temperature": [0.7]}, False),
        ({"top_k": [1]}, False),
        ({"top_k": [2]}, True),
        ({"top_p": [0.9]}, True),
        ({"top_p": [0.0]}, False),
        ({"top_k": [1], "top_p": [0.9]}, False),
        ({"top_p": [0.9], "temperature": [0.0]}, False),
    ],
)
def test_decoding_is_greedy_unless_sampling_is_asked_for(inputs, sampled) -> None:
    """As in TensorRT-LLM: greedy at top_k 1, at temperature 0, and unless top_k or top_p asks for more."""
    request = read(**inputs)

    assert (sampled, sampled) == (request.sampled, request.use_draft_logits)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({}, True),
        ({"use_draft_logits": [False]}, False),
        ({"bad_words_list": ONE_WORD}, False),
        ({"embedding_bias": [0.0, 2.0]}, False),
    ],
)
def test_draft_logits_are_used_where_they_say_what_was_drawn_from(inputs, expected) -> None:
    """Bans and biases make the draft draw from other probabilities than its logits say: then tokens are matched."""
    assert expected == read(top_p=[0.9], **inputs).use_draft_logits


def test_the_deployment_may_switch_draft_logits_off() -> None:
    """A request's own choice goes before the deployment's."""
    off = dataclasses.replace(SETTINGS, use_draft_logits=False)

    assert not read(off, top_p=[0.9]).use_draft_logits
    assert read(off, top_p=[0.9], use_draft_logits=[True]).use_draft_logits


def test_without_a_draft_model_everything_is_decoded_by_the_target() -> None:
    """A repository may name no draft."""
    assert read(dataclasses.replace(SETTINGS, draft_model="")).bypass_reason == "no_draft_model"


@pytest.mark.parametrize(
    ("inputs", "slice_tokens"),
    [
        ({}, 0),
        ({"stream": [True]}, 8),
        ({"stop_words": np.array([b"x"], object)}, 8),
        ({"top_p": [0.9]}, 0),
        ({"top_p": [0.9], "seed": np.array([1], np.uint64)}, 8),
    ],
)
def test_a_control_is_one_call_unless_something_could_end_or_show_it_earlier(inputs, slice_tokens) -> None:
    """One call where nothing is gained by more; a seeded sample is sliced alike, streamed or not, to be the same."""
    assert slice_tokens == read(num_draft_tokens=[0], **inputs).plan.slice_tokens


def test_a_call_is_no_longer_than_what_a_client_that_has_gone_may_cost() -> None:
    """Eight slices, unless the engine keeps state over the call."""
    assert read(num_draft_tokens=[0]).plan.longest_call == 64
    assert read(repetition_penalty=[1.1]).plan.longest_call == 64
    assert read(beam_width=[2]).plan.longest_call == 0


def test_a_seed_of_64_bits_survives() -> None:
    """The largest seed is taken as it is."""
    assert read(seed=np.array([2**64 - 1], np.uint64)).plan.seed == 2**64 - 1


def test_the_histogram_never_needs_more_room_than_the_answer() -> None:
    """An absurd num_draft_tokens does not make an absurd histogram."""
    assert read(num_draft_tokens=[10**9]).longest_draft == 10


def parameters(**changes):
    """Return a parameters block; None leaves one out."""
    values = {
        "tensorrt_llm_model_name": "tensorrt_llm",
        "num_draft_tokens": "4",
        "max_inflight": "2",
        "max_seq_len": "64",
        **changes,
    }
    return {key: {"string_value": value} for key, value in values.items() if value is not None}


def test_settings_are_read_from_parameters() -> None:
    """What is left out has its default; no draft model means none."""
    settings = read_settings(parameters(use_draft_logits="false", engine_stand_in="true"))

    assert (
        settings.target_model,
        settings.draft_model,
        settings.num_draft_tokens,
        settings.use_draft_logits,
        settings.exclude_input,
        settings.stand_in,
    ) == ("tensorrt_llm", "", 4, False, True, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensorrt_llm_model_name": None}, "'tensorrt_llm_model_name' is missing"),
        ({"max_inflight": "0"}, "'max_inflight' of config.pbtxt is '0'; it must be a whole number from 1"),
        ({"max_seq_len": "many"}, "'many'"),
        ({"num_draft_tokens": "${num_draft_tokens}"}, "num_draft_tokens"),
        ({"use_draft_logits": "yes"}, "must be true or false"),
    ],
)
def test_a_wrong_parameter_keeps_the_model_from_loading(changes, message) -> None:
    """An unfilled placeholder or a typing error is named at load, not met by a request."""
    with pytest.raises(SettingsError, match=message.replace("$", r"\$")):
        read_settings(parameters(**changes))


def test_no_more_is_drafted_than_the_engine_was_built_for() -> None:
    """The request learns it here, and not from an assertion of the engine's."""
    settings = dataclasses.replace(SETTINGS, max_draft_tokens=6)

    assert read(settings, num_draft_tokens=[6]).plan.num_draft_tokens == 6
    with pytest.raises(RequestError, match="num_draft_tokens is 7; the target's engine was built for at most 6"):
        read(settings, num_draft_tokens=[7])


def test_an_engine_that_drafts_on_its_own_is_left_to_it() -> None:
    """Nothing is drafted by us, nothing is bypassed, and a request cannot say how much."""
    settings = dataclasses.replace(SETTINGS, draft_model="", num_draft_tokens=0, engine_speculates="eagle")
    request = read(settings)

    assert (request.plan.num_draft_tokens, request.bypass_reason, request.engine_speculates) == (0, "", True)
    with pytest.raises(RequestError, match=r"drafts on its own \(eagle\)"):
        read(settings, num_draft_tokens=[0])


def test_drafts_from_the_text_have_no_logits() -> None:
    """They are verified by token match, also where a request would rather have it otherwise."""
    settings = dataclasses.replace(SETTINGS, draft_model="", ngram_size=3)
    request = read(settings, top_p=[0.9], use_draft_logits=[True])

    assert (request.bypass_reason, request.sampled, request.use_draft_logits) == ("", True, False)


def test_names_of_older_engines_are_read() -> None:
    """Pairs of our name and theirs; anything else does not load."""
    required = {"tensorrt_llm_model_name": "t", "num_draft_tokens": "4", "max_inflight": "2", "max_seq_len": "32"}

    def settings(names: str) -> Settings:
        return read_settings({k: {"string_value": v} for k, v in {**required, "engine_input_names": names}.items()})

    assert settings("seed=random_seed,min_tokens=min_length").engine_input_names == {
        "seed": "random_seed",
        "min_tokens": "min_length",
    }
    with pytest.raises(SettingsError, match="ours=theirs"):
        settings("seed")
