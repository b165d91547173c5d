"""What each speculative method asks of an engine, and where its limits are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.config.rules import METHODS
from specdeploy.config.schema import SpeculationConfig
from specdeploy.engine.tensorrt_llm.methods import (
    MODES,
    build_flags,
    check_method,
    expected_mode,
    lookahead_draft_len,
    max_draft_len,
)
from tests.toolchain.build_config import MODES as TOOL_MODES
from tests.unit.engine.tensorrt_llm.trtllm_cases import spec


def _found(method, engine=None, **speculation):
    findings = check_method(engine or spec(), SpeculationConfig(method=method, **speculation))
    return [(finding.severity, finding.code, finding.where) for finding in findings]


@pytest.mark.parametrize(
    ("window", "ngram", "verification", "tokens"),
    [(7, 7, 7, 83), (4, 3, 4, 15), (5, 5, 5, 39), (3, 2, 3, 5), (1, 2, 1, 1), (8, 1, 8, 0)],
)
def test_the_tokens_of_a_lookahead_step(window, ngram, verification, tokens):
    """By upstream's formula: the engine must be built for exactly these."""
    assert lookahead_draft_len(window, ngram, verification) == tokens


@given(*[st.integers(2, 50)] * 3)
def test_a_larger_lookahead_never_takes_fewer_tokens(window, ngram, verification):
    """In any of the three numbers."""
    tokens = lookahead_draft_len(window, ngram, verification)

    assert lookahead_draft_len(window + 1, ngram, verification) > tokens
    assert lookahead_draft_len(window, ngram + 1, verification) > tokens
    assert lookahead_draft_len(window, ngram, verification + 1) > tokens


@pytest.mark.parametrize(
    ("speculation", "tokens", "flags"),
    [
        ({"method": "draft_target", "num_draft_tokens": 4}, 4, ("draft_tokens_external", "4")),
        (
            {"method": "draft_target", "num_draft_tokens": 4, "max_draft_tokens": 10},
            10,
            ("draft_tokens_external", "10"),
        ),
        ({"method": "ngram", "num_draft_tokens": 6}, 6, ("draft_tokens_external", "6")),
        ({"method": "medusa", "tree_tokens": 63}, 63, ("medusa", "63")),
        ({"method": "eagle", "tree_tokens": 31}, 31, ("eagle", "31")),
        ({"method": "lookahead"}, 83, ("lookahead_decoding", "83")),
        # The builder takes it from the checkpoint.
        ({"method": "redrafter", "num_beams": 4, "beam_tokens": 5}, 20, ("explicit_draft_tokens",)),
    ],
)
def test_what_a_target_is_built_with(speculation, tokens, flags):
    """The mode's name and the longest draft; a draft's engine is an ordinary one."""
    config = SpeculationConfig(**speculation)

    assert max_draft_len(config) == tokens
    assert tuple(build_flags(config, "target").values()) == flags
    assert build_flags(config, "draft") == {}
    assert expected_mode(config, "draft") == TOOL_MODES[None]


def test_the_modes_are_the_builders():
    """Name and bit, for every method that the profile takes."""
    assert set(MODES) == set(METHODS["tensorrt_llm"])
    assert dict(MODES.values()) == {name: bit for name, bit in TOOL_MODES.items() if name}


@pytest.mark.parametrize("method", METHODS["tensorrt_llm"])
def test_every_method_has_a_deployment_that_works(method):
    """The defaults do; looking n-grams up is the caller's part, and that is said."""
    said = [("info", "method.ngram-caller", "speculation.method")] if method == "ngram" else []

    assert _found(method) == said


@pytest.mark.parametrize(
    ("method", "engine", "speculation", "code", "where"),
    [
        ("eagle", {"pp_size": 2}, {}, "eagle-pipeline", "target.pp_size"),
        ("redrafter", {"pp_size": 2}, {}, "redrafter-pipeline", "target.pp_size"),
        ("eagle", {"max_batch_size": 513}, {}, "eagle-batch", "build.max_batch_size"),
        ("eagle", {}, {"tree_tokens": 257}, "eagle-tree", "speculation.tree_tokens"),
        ("eagle", {}, {"tree_tokens": 3, "tree_depth": 4}, "eagle-depth", "speculation.tree_depth"),
        ("lookahead", {}, {"ngram_size": 1}, "lookahead-ngram", "speculation.ngram_size"),
        ("lookahead", {"max_seq_len": 83}, {}, "draft-too-long", "build.max_seq_len"),
        ("medusa", {"max_seq_len": 63}, {}, "draft-too-long", "build.max_seq_len"),
        ("draft_target", {"max_seq_len": 16}, {"num_draft_tokens": 16}, "draft-too-long", "build.max_seq_len"),
    ],
)
def test_a_combination_that_cannot_work_is_an_error(method, engine, speculation, code, where):
    """At the key that would have to change, and only for the target's engine."""
    assert ("error", f"method.{code}", where) in _found(method, spec(**engine), **speculation)
    assert _found(method, spec(role="draft", **engine), **speculation) == []


@pytest.mark.parametrize(
    ("method", "engine", "speculation"),
    [
        ("eagle", {"max_batch_size": 512}, {"tree_tokens": 256}),
        ("eagle", {}, {"tree_tokens": 4, "tree_depth": 4}),
        ("medusa", {"pp_size": 2, "max_batch_size": 1024}, {"tree_tokens": 300}),
        ("draft_target", {"pp_size": 2}, {}),
        ("lookahead", {"max_seq_len": 84, "pp_size": 2}, {"ngram_size": 7}),
    ],
)
def test_the_limit_itself_is_allowed(method, engine, speculation):
    """And a limit of one method is none of another."""
    assert _found(method, spec(**engine), **speculation) == []
