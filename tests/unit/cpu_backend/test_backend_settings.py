"""What config.pbtxt says to the backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorrtllm_cpu.faults import EngineUnusable
from tensorrtllm_cpu.settings import read_settings

MODEL_DIR = Path("/repo/tensorrt_llm")


def config(max_batch_size: int = 1, *, decoupled: bool = False, **parameters: str) -> dict[str, object]:
    """Return a model configuration as Triton hands it over."""
    values = {"gpt_model_path": "engines/target", **parameters}
    return {
        "max_batch_size": max_batch_size,
        "model_transaction_policy": {"decoupled": decoupled},
        "parameters": {key: {"string_value": value} for key, value in values.items()},
    }


def test_a_relative_engine_path_starts_at_the_model_repository() -> None:
    """Triton names the model's own directory; the repository is the one above it."""
    assert read_settings(config(), MODEL_DIR).engine_dir == Path("/repo/engines/target")
    assert read_settings(config(gpt_model_path="/e/x"), MODEL_DIR).engine_dir == Path("/e/x")


def test_the_parameters_reach_the_settings() -> None:
    """Each of them, in the spelling of the templates."""
    settings = read_settings(
        config(
            decoupled=True,
            gpt_model_type="inflight_fused_batching",
            specdeploy_max_sequences="6",
            specdeploy_max_seq_len="1024",
            enable_kv_cache_reuse="false",
            exclude_input_in_output="True",
        ),
        MODEL_DIR,
    )

    assert (settings.max_sequences, settings.max_seq_len) == (6, 1024)
    assert (settings.reuse_kv_cache, settings.exclude_input_in_output, settings.decoupled) == (False, True, True)


def test_unfilled_placeholders_count_as_not_set() -> None:
    """As in the C++ backend: a template parameter that nobody filled is left at its default."""
    settings = read_settings(config(enable_kv_cache_reuse="${enable_kv_cache_reuse}", max_beam_width=""), MODEL_DIR)

    assert settings.reuse_kv_cache
    assert settings.max_seq_len is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gpt_model_path": "${engine_dir}"}, "gpt_model_path is not set"),
        ({"gpt_model_type": "V1"}, "gpt_model_type is 'V1'"),
        ({"max_beam_width": "4"}, "max_beam_width"),
        ({"specdeploy_max_sequences": "0"}, "specdeploy_max_sequences is '0'"),
        ({"specdeploy_max_seq_len": "many"}, "specdeploy_max_seq_len is 'many'"),
        ({"enable_kv_cache_reuse": "perhaps"}, "enable_kv_cache_reuse is 'perhaps'"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_value(values: dict[str, str], said: str) -> None:
    """The model does not load, and the message says which parameter and what to set."""
    with pytest.raises(EngineUnusable, match="set it to") as caught:
        read_settings(config(**values), MODEL_DIR)

    assert said in str(caught.value)


def test_a_model_without_a_batch_dimension_is_refused() -> None:
    """All tensors of the templates have one."""
    with pytest.raises(EngineUnusable, match="max_batch_size"):
        read_settings(config(max_batch_size=0), MODEL_DIR)
