"""Reading requests: what is taken, what is refused, and that a refusal names the input and the cure."""

from __future__ import annotations

import numpy as np
import pytest
from tensorrtllm_cpu import inputs
from tensorrtllm_cpu.faults import RequestRefused
from tensorrtllm_cpu.inputs import Limits, read_request

from specdeploy.triton.tensors import release_tensors

LIMITS = Limits(vocab_size=10, max_seq_len=16)


def tensors(**values: object) -> dict[str, np.ndarray]:
    """Return the tensors of a plain request, with ``values`` added or (None) taken away."""
    given = {"input_ids": [1, 2, 3], "input_lengths": [3], "request_output_len": [4], **values}
    return {name: np.asarray(value)[None] for name, value in given.items() if value is not None}


def refusal(**values: object) -> str:
    """Return why a request is refused."""
    with pytest.raises(RequestRefused) as caught:
        read_request(tensors(**values), LIMITS)
    return str(caught.value)


def test_a_plain_request_is_greedy_and_asks_for_nothing_else() -> None:
    """Only the three required inputs: greedy decoding, no drafts, the prompt echoed."""
    request = read_request(tensors(), LIMITS)

    assert request.prompt.tolist() == [1, 2, 3]
    assert request.max_new_tokens == 4
    assert request.sampling.greedy
    assert (request.has_drafts, request.drafts, len(request.draft_logits)) == (False, (), 0)
    assert not request.exclude_input_in_output
    assert request.seed is None


def test_the_models_default_for_the_echo_can_be_overridden() -> None:
    """exclude_input_in_output: the parameter is the default, the input wins."""
    limits = Limits(vocab_size=10, max_seq_len=16, exclude_input_in_output=True)

    assert read_request(tensors(), limits).exclude_input_in_output
    assert not read_request(tensors(exclude_input_in_output=[False]), limits).exclude_input_in_output


def test_padding_behind_the_prompt_is_dropped() -> None:
    """input_lengths says how many ids count."""
    assert read_request(tensors(input_lengths=[2]), LIMITS).prompt.tolist() == [1, 2]


def test_drafts_beyond_the_room_are_not_looked_at() -> None:
    """The last token is always the target's own, so at most request_output_len - 1 drafts can matter."""
    logits = np.arange(60, dtype=np.float32).reshape(6, 10)
    request = read_request(tensors(draft_input_ids=[1] * 6, draft_logits=logits), LIMITS)

    assert request.has_drafts
    assert request.drafts == (1, 1, 1)
    np.testing.assert_array_equal(request.draft_logits, logits[:3])


def test_the_request_keeps_no_memory_of_tritons() -> None:
    """Ids and draft logits are copies: Triton takes its buffers back."""
    sent = tensors(draft_input_ids=[1], draft_logits=np.zeros((1, 10), np.float32))
    request = read_request(sent, LIMITS)

    assert not np.shares_memory(request.prompt, sent["input_ids"])
    assert not np.shares_memory(request.draft_logits, sent["draft_logits"])


def test_a_seed_of_64_bits_is_kept_whole() -> None:
    """UINT64 as in the templates."""
    assert read_request(tensors(seed=np.array([2**64 - 1], np.uint64)), LIMITS).seed == 2**64 - 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"input_ids": None}, ["input_lengths is 3", "input_ids holds 0"]),
        ({"input_ids": np.empty(0, np.int32), "input_lengths": [0]}, ["input_lengths is 0"]),
        ({"input_lengths": None}, ["input_lengths is missing"]),
        ({"input_lengths": [4]}, ["input_lengths is 4", "3 ids"]),
        ({"input_lengths": [3, 3]}, ["input_lengths has 2 values", "one sequence per request"]),
        ({"input_ids": [1, 2, 10]}, ["input_ids holds the id 10", "10 ids"]),
        ({"input_ids": [1, 2, -1]}, ["input_ids holds the id -1"]),
        ({"request_output_len": None}, ["request_output_len is None"]),
        ({"request_output_len": [0]}, ["request_output_len is 0"]),
        ({"request_output_len": [14]}, ["(3 + 14)", "(16)", "shorten"]),
        ({"draft_input_ids": [99]}, ["draft_input_ids holds the id 99"]),
        (
            {"draft_input_ids": [1, 2], "draft_logits": np.zeros((1, 10))},
            ["draft_logits has shape [1, 1, 10]", "[2, 10]"],
        ),
        ({"draft_input_ids": [1], "draft_logits": np.zeros((1, 12))}, ["draft_logits", "same vocabulary"]),
        ({"draft_logits": np.zeros((1, 10))}, ["draft_logits", "0 draft tokens"]),
        ({"draft_acceptance_threshold": [1.5]}, ["draft_acceptance_threshold is 1.5"]),
        ({"temperature": [-1.0]}, ["temperature is -1.0"]),
        ({"temperature": [np.nan]}, ["temperature is nan"]),
        ({"runtime_top_k": [-1]}, ["runtime_top_k is -1"]),
        ({"runtime_top_p": [1.1]}, ["runtime_top_p is 1.1"]),
        ({"repetition_penalty": [0.0]}, ["repetition_penalty is 0.0"]),
        ({"presence_penalty": [np.inf]}, ["presence_penalty is inf"]),
        ({"min_tokens": [-2]}, ["min_tokens is -2"]),
        ({"embedding_bias": [1.0, 2.0]}, ["embedding_bias has 2 values", "10"]),
        ({"streaming": [True]}, ["streaming", "decoupled"]),
        ({"beam_width": [2]}, ["beam_width", "send 1"]),
        ({"num_return_sequences": [3]}, ["num_return_sequences", "one request per sequence"]),
        ({"stop": [True]}, ["stop", "cancel"]),
        ({"return_context_logits": [True]}, ["return_context_logits", "leave it out"]),
        ({"runtime_top_p_decay": [0.9]}, ["runtime_top_p_decay"]),
        ({"lora_task_id": np.array([1], np.uint64)}, ["lora_task_id", "merge the adapter"]),
        ({"guided_decoding_guide": np.array([b"{}"], object)}, ["guided_decoding_guide", "TensorRT-LLM"]),
        ({"prompt_embedding_table": np.zeros((1, 4), np.float16)}, ["prompt_embedding_table"]),
        ({"lookahead_window_size": [3]}, ["lookahead_window_size"]),
        ({"encoder_input_features": np.zeros((1, 4), np.float32)}, ["encoder_input_features"]),
        ({"made_up": [1]}, ["made_up"]),
    ],
)
def test_a_refusal_names_the_input_the_value_and_the_cure(values: dict[str, object], said: list[str]) -> None:
    """Everything that would have to be ignored, or cannot be right, is an error of this request."""
    message = refusal(**values)

    assert all(part in message for part in said), message


@pytest.mark.parametrize(
    "values",
    [
        {"beam_width": [1]},
        {"num_return_sequences": [1]},
        {"stop": [False]},
        {"streaming": [False]},
        {"return_context_logits": [False]},
        {"runtime_top_p_decay": [1.0]},
        {"len_penalty": [0.7]},
        {"pad_id": [5]},
        {"retention_decode_priority": [35]},
        {"prompt_vocab_size": [0]},
        {"embedding_bias": np.zeros(0, np.float32)},
        {"draft_input_ids": np.zeros(0, np.int32)},
        {"lora_weights": np.zeros((0, 0), np.float16)},
        {"stop_words_list": np.zeros((2, 0), np.int32)},
    ],
)
def test_inputs_that_ask_for_nothing_are_taken(values: dict[str, object]) -> None:
    """A neutral value, an empty tensor, or a hint that cannot change the answer is no reason to refuse."""
    assert not read_request(tensors(**values), LIMITS).has_drafts


def test_every_input_of_the_release_is_decided_about() -> None:
    """Supported, without effect, or refused: no input that the backend knows is missing from the templates' table."""
    known = {tensor.name for tensor in release_tensors("1.2.1").models["tensorrt_llm"].inputs}

    assert known >= inputs._SUPPORTED
    assert known >= inputs._WITHOUT_EFFECT
    assert set(inputs._NEUTRAL) <= known
