"""Output tensors: names, shapes and types of the C++ backend."""

from __future__ import annotations

import numpy as np
import pytest
from tensorrtllm_cpu.outputs import to_tensors

from specdeploy.triton.tensors import release_tensors
from tests.unit.cpu_backend.table_model import TableEngine

PROMPT = [3, 1, 4]
EVERYTHING = (
    "return_log_probs",
    "return_generation_logits",
    "return_perf_metrics",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
DECLARED = {tensor.name: tensor for tensor in release_tensors("1.2.1").models["tensorrt_llm"].outputs}
NUMPY = {"TYPE_INT32": np.int32, "TYPE_INT64": np.int64, "TYPE_FP32": np.float32}


def outputs(count: int = 3, wanted: set[str] | None = None, **inputs: object) -> dict[str, np.ndarray]:
    """Run one request and return its output tensors."""
    job = TableEngine().run(PROMPT, count, **inputs)
    return to_tensors(job.request, job.answers[0], wanted or set(DECLARED))


def test_the_prompt_is_echoed_unless_excluded() -> None:
    """output_ids is [batch, beam, n], and sequence_length counts what is in it."""
    new = TableEngine().model.greedy(PROMPT, 3)
    echoed, bare = outputs(), outputs(exclude_input_in_output=[True])

    assert echoed["output_ids"].tolist() == [[PROMPT + new]]
    assert echoed["sequence_length"].tolist() == [[6]]
    assert bare["output_ids"].tolist() == [[new]]
    assert bare["sequence_length"].tolist() == [[3]]


def test_optional_outputs_come_only_when_asked_for() -> None:
    """Nothing is made that costs something and that nobody wants."""
    assert set(outputs()) == {"output_ids", "sequence_length", "batch_index", "sequence_index"}
    assert set(outputs(wanted={"output_ids", "sequence_length"})) == {"output_ids", "sequence_length"}


@pytest.mark.parametrize("wanted", [{"output_ids"}, {"sequence_length"}, {"batch_index"}])
def test_a_caller_that_leaves_ids_or_their_number_out_gets_an_error(wanted) -> None:
    """As the C++ backend gives it, when it fills in the response."""
    with pytest.raises(ValueError, match="tensor must be present in list of output tensors"):
        outputs(wanted=wanted)


def test_types_and_shapes_are_those_of_the_templates() -> None:
    """Each output has the declared type and rank behind the batch dimension, which is one."""
    made = outputs(**{name: [True] for name in EVERYTHING})

    assert set(DECLARED) - set(made) == {"context_logits", "context_phase_params"}
    for name, value in made.items():
        assert value.dtype == NUMPY[DECLARED[name].data_type], name
        assert value.shape[0] == 1, name
        assert value.ndim == 1 + len(DECLARED[name].dims), name
    assert made["generation_logits"].shape == (1, 1, 3, 7)
    assert made["output_log_probs"].shape == (1, 1, 3)
    assert (made["num_input_tokens"].item(), made["num_output_tokens"].item()) == (3, 3)


@pytest.mark.parametrize(("right", "rate"), [(2, 0.5), (0, 0.0)])
def test_acceptance_is_reported_per_request(right: int, rate: float) -> None:
    """The counts and their ratio describe this verification."""
    engine = TableEngine()
    plain = engine.model.greedy(PROMPT, 4)
    wrong = [(token + 1) % 7 for token in plain]
    made = outputs(8, draft_input_ids=plain[:right] + wrong[right:], return_perf_metrics=[True])

    assert made["total_draft_tokens"].item() == 4
    assert made["total_accepted_draft_tokens"].item() == right
    assert made["acceptance_rate"].item() == rate


def test_cache_blocks_count_what_was_reused() -> None:
    """Blocks of 64 tokens: all new on the first run, and none reused below a whole block."""
    made = outputs(return_perf_metrics=[True])

    assert made["kv_cache_alloc_total_blocks"].item() == 1
    assert made["kv_cache_alloc_new_blocks"].item() == 1
    assert made["kv_cache_reused_blocks"].item() == 0


def test_times_are_in_order() -> None:
    """Arrival, start, first and last token follow each other on one clock."""
    made = outputs(return_perf_metrics=[True])
    names = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    times = [made[name].item() for name in names]

    assert times == sorted(times)
    assert times[0] > 0
