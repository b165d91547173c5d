"""Text to the decoder's inputs, over a stub of Triton: what the preprocessing model is asked, and what comes of it."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

import numpy as np
import pytest
import triton_stub

triton_stub.install()

import decoder_text_in  # noqa: E402
from decoder_loop import EngineFault  # noqa: E402 - they import Triton's module
from decoder_request import RequestError  # noqa: E402
from decoder_text_in import as_ids, texts_of  # noqa: E402

from specdeploy.triton.repository import front_door, models  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

IDS = np.array([[1, 2, 3]], np.int32)
TEXT = np.array([[b"a b c"]], object)
LENGTH = np.array([[8]], np.int32)


@pytest.fixture(autouse=True)
def nothing_loaded() -> Iterator[None]:
    """Each test loads the model that it needs."""
    triton_stub.MODELS.clear()
    triton_stub.REQUESTS.clear()
    return


def at_once(call: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Make a call."""
    return call()


def tokenizes(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Answer as the preprocessing model does, always the same ids."""
    none = np.empty((1, 0), np.float32)
    words = np.array([[[7], [1 if "BAD_WORDS_DICT" in inputs else -1]]], np.int32)
    return {
        "INPUT_ID": IDS,
        "REQUEST_INPUT_LEN": np.array([[3]], np.int32),
        "REQUEST_OUTPUT_LEN": inputs["REQUEST_OUTPUT_LEN"],
        "BAD_WORDS_IDS": words,
        "EMBEDDING_BIAS": none,
        "OUT_END_ID": inputs.get("END_ID", np.array([[4]], np.int32)),
        "OUT_PAD_ID": np.array([[4]], np.int32),
    }


def test_text_becomes_ids_and_everything_else_stays() -> None:
    """What belongs to the text goes to the model under its names; the rest comes through, under the newest ones."""
    triton_stub.MODELS["pre"] = tokenizes
    stop, seed = np.array([[b"."]], object), np.array([[5]], np.uint64)
    sent = {"text_input": TEXT, "max_tokens": LENGTH, "end_id": LENGTH, "stop_words": stop, "random_seed": seed}
    inputs = as_ids({**sent, "bad_words": stop, "min_length": LENGTH}, "pre", "mine", at_once)
    (asked,) = triton_stub.REQUESTS

    assert asked.inputs.keys() == {"QUERY", "REQUEST_OUTPUT_LEN", "END_ID", "BAD_WORDS_DICT", "REFUSAL_AS_OUTPUT"}
    assert asked.options["request_id"] == "mine"
    assert inputs.keys() == {
        "text_input", "input_ids", "input_lengths", "request_output_len", "bad_words_list", "embedding_bias", "end_id",
        "pad_id", "stop_words", "seed", "min_tokens",
    }  # fmt: skip
    assert (inputs["input_ids"].tolist(), inputs["end_id"].item(), inputs["seed"].item()) == ([[1, 2, 3]], 8, 5)
    assert inputs["bad_words_list"].tolist() == [[[7], [1]]]


def test_ids_need_no_model() -> None:
    """Nobody is asked, and the length of the answer may be called as at the front door."""
    sent = {"input_ids": IDS, "input_lengths": np.array([[3]], np.int32), "text_input": TEXT, "max_tokens": LENGTH}
    inputs = as_ids(sent, "pre", "", at_once)

    assert not triton_stub.REQUESTS
    assert inputs["request_output_len"] is LENGTH
    assert "max_tokens" not in inputs


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"input_ids": IDS, "max_tokens": LENGTH}, "input_lengths is missing"),
        ({"input_ids": IDS[:, :0], "input_lengths": LENGTH, "text_input": TEXT}, "input_ids is empty"),
        (
            {"input_ids": IDS, "input_lengths": LENGTH, "embedding_bias_words": TEXT, "bad_words": TEXT},
            "bad_words, embedding_bias_words: words go with text_input",
        ),
    ],
)
def test_ids_that_say_too_little_are_refused(sent, message) -> None:
    """Padding is no prompt, and words need the tokenizer."""
    with pytest.raises(RequestError, match=message):
        as_ids(sent, "pre", "", at_once)


def test_what_the_model_refuses_is_the_clients_fault_and_what_breaks_is_not() -> None:
    """It says so in an output of its own, since errors between models lose their code; what is not loaded is named."""

    def refuses(_: object) -> dict[str, np.ndarray]:
        return {"REFUSAL": np.array([[b"the prompt is empty"]], object)}

    def breaks(_: object) -> None:
        raise ValueError("no tokenizer")

    triton_stub.MODELS.update(refuses=refuses, breaks=breaks)
    sent = {"text_input": TEXT, "max_tokens": LENGTH}

    with pytest.raises(RequestError, match="the prompt is empty"):
        as_ids(sent, "refuses", "", at_once)
    with pytest.raises(EngineFault, match="model 'breaks' failed: no tokenizer"):
        as_ids(sent, "breaks", "", at_once)
    with pytest.raises(EngineFault, match="model 'absent' failed: Model absent is not ready"):
        as_ids(sent, "absent", "", at_once)


def test_the_call_is_made_as_the_caller_wants_it() -> None:
    """So that one which never comes back can be given up."""
    triton_stub.MODELS["pre"] = tokenizes
    made = []

    def in_time(call: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        made.append(call)
        return call()

    as_ids({"text_input": TEXT, "max_tokens": LENGTH}, "pre", "", in_time)
    assert len(made) == 1


@pytest.mark.parametrize("name", ["input_lengths", "request_output_len", "bad_words_list", "embedding_bias"])
def test_what_goes_with_ids_is_not_passed_over_beside_text(name) -> None:
    """A constraint that vanishes without a word is the worst outcome."""
    with pytest.raises(RequestError, match=f"{name}: goes with input_ids"):
        as_ids({"text_input": TEXT, "max_tokens": LENGTH, name: LENGTH}, "pre", "", at_once)


@pytest.mark.parametrize(
    ("names", "count"),
    [(("input_ids", "text_input"), 3), (("text_input",), 2), (("max_tokens",), 1)],
)
def test_rows_are_counted_by_the_prompt(names, count) -> None:
    """Ids come first; without any prompt it is one, which is refused when it is read."""
    rows = {"input_ids": 3, "text_input": 2, "max_tokens": 5}
    tensors = [triton_stub.Tensor(name, np.zeros((rows[name], 1))) for name in names]

    assert texts_of(types.SimpleNamespace(inputs=lambda: tensors)) == count


def test_names_are_those_of_the_ensembles() -> None:
    """What is served brings nothing of the package with it, so both have them: a text goes either way alike."""
    both_see = {"stop_words": "STOP_WORDS_DICT"}

    assert decoder_text_in._TAKEN == models._TO_DECODER
    assert {**decoder_text_in._SENT, **both_see} == front_door.TO_PREPROCESSING
    assert decoder_text_in._NEWER == front_door.NEWER_NAMES
