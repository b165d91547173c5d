"""``docs/decoder.md`` says what the decoder does: every reason to go without drafts, and a configuration that loads."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from decoder_policy import LOW_ACCEPTANCE, NOT_FASTER, SCHEDULED
from decoder_request import bypass_reason
from decoder_settings import Settings

from specdeploy.config.draft_lengths import parse_draft_lengths
from specdeploy.config.load import load_config
from specdeploy.triton.repository.overrides import check_overrides

TEXT = (Path(__file__).parents[3] / "docs" / "decoder.md").read_text(encoding="utf-8")
REASONS = [word for row in re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE) for word in re.findall(r"`(\w+)`", row)][1:]
#: An input that keeps the draft out -> a value by which it does.
INPUTS = {
    "repetition_penalty": np.array([1.2], np.float32),
    "presence_penalty": np.array([0.5], np.float32),
    "frequency_penalty": np.array([0.5], np.float32),
    "beam_width": np.array([2], np.int32),
    "num_return_sequences": np.array([2], np.int32),
    "guided_decoding": ("guided_decoding_guide", np.array([b"{}"], np.object_)),
    "bad_words": ("bad_words_list", np.array([[[5, 6], [2, -1]]], np.int32)),
    "return_context_logits": np.array([True]),
    "return_generation_logits": np.array([True]),
    "lora": ("lora_task_id", np.array([1], np.uint64)),
    "prompt_embedding_table": np.zeros((1, 1, 1), np.float16),
    "requested": ("num_draft_tokens", np.array([0], np.int32)),
}
#: What becomes of a request on its way; those who decide have tests of their own.
LATER = {"draft_failed", "draft_unavailable", SCHEDULED, NOT_FASTER, LOW_ACCEPTANCE}


def test_every_reason_is_explained_once() -> None:
    """Those of inputs, those of deployments, and those that come on the way."""
    assert sorted(REASONS) == sorted({*INPUTS, *LATER, "no_draft_model"})


@pytest.mark.parametrize("reason", INPUTS)
def test_the_reasons_of_inputs_are_the_decoders_own(reason) -> None:
    """Each input by itself leads to the reason that the table names."""
    given = INPUTS[reason]
    name, value = given if isinstance(given, tuple) else (reason, given)
    settings = Settings(target_model="t", draft_model="d", num_draft_tokens=4, max_inflight=1, max_seq_len=64)

    assert bypass_reason({name: value}, settings) == reason


def test_the_configurations_of_the_page_load(tmp_path) -> None:
    """As they stand there; that of the spans is served in an integration test."""
    blocks = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    path = tmp_path / "specdeploy.yaml"
    path.write_text("\n".join(("name: pair\ntarget: {checkpoint: t}\ndraft: {checkpoint: d}", *blocks)))

    config = load_config(path, {}, {}).config
    speculation = config.speculation

    assert not check_overrides(config)
    assert speculation.adaptive
    assert parse_draft_lengths(speculation.draft_len_schedule, 6) == ((1, 6), (8, 3), (32, 0))
