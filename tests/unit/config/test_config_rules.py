"""Keys that contradict each other are refused when the file is loaded, by name and with the cure."""

from __future__ import annotations

import pytest

from specdeploy.config.load import load_config
from specdeploy.config.rules import METHODS, PRECISIONS
from specdeploy.config.schema import Method, Precision, Profile
from specdeploy.errors import ConfigError

TARGET = "name: demo\ntarget: {checkpoint: big}\n"
PAIR = TARGET + "draft: {checkpoint: small}\n"


@pytest.fixture
def problems(tmp_path):
    """Return a function that loads a text and gives the findings that it is refused with."""

    def load(text):
        path = tmp_path / "specdeploy.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            load_config(path, {}, {})
        except ConfigError as error:
            return error.findings
        return ()

    return load


@pytest.mark.parametrize("name", ["'${x}'", '"a\\nb"', "a/b", "'-x'", "'" + "x" * 101 + "'"])
def test_a_name_that_reports_cannot_carry_is_refused(problems, name):
    """It goes into file names, manifests and the names of jobs."""
    (problem,) = problems(PAIR.replace("demo", name))

    assert problem.code == "config.name"


@pytest.mark.parametrize(
    ("text", "code", "said", "cure"),
    [
        (TARGET, "config.missing-key", "`draft.checkpoint` is required by the method draft_target", "draft's folder"),
        (
            TARGET + "profile: tensorrt_llm\nspeculation: {method: medusa}\n",
            "config.missing-key",
            "required by the method medusa",
            "head",
        ),
        (
            PAIR + "profile: tensorrt_llm\nspeculation: {method: lookahead}\n",
            "config.needless-key",
            "names small",
            "Leave it out",
        ),
        (PAIR + "speculation: {method: eagle3}\n", "config.method", "cpu does not speculate by eagle3", "llmapi"),
        (
            PAIR + "profile: llmapi\nspeculation: {method: medusa}\n",
            "config.method",
            "llmapi does not speculate by medusa",
            "tensorrt_llm",
        ),
        (PAIR + "profile: tensorrt_llm\nspeculation: {num_draft_tokens: 5, max_draft_tokens: 4}\n",
         "config.draft-tokens", "at most 4", "Raise max_draft_tokens"),
        ("name: x\ntarget: {checkpoint: a, precision: fp8}\ndraft: {checkpoint: b}\n", "config.precision",
         "the profile cpu has no precision fp8", "fp32, int8, int4"),
        ("name: x\ntarget: {checkpoint: a, tp_size: 2}\ndraft: {checkpoint: b}\n", "config.sharding",
         "tp_size is 2", "Leave it out"),
        ("name: x\ntarget: {checkpoint: a, kv_cache: fp8}\ndraft: {checkpoint: b}\n", "config.kv-cache",
         "kv_cache is fp8", "Leave it out"),
        (PAIR + "build: {runner: container}\n", "config.runner", "not in a container", "slurm"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(problems, text, code, said, cure):
    """One finding each, which names the value and what to do."""
    (problem,) = problems(text)

    assert problem.code == code
    assert said in problem.message
    assert cure in problem.hint


def test_a_contradiction_is_shown_where_it_was_written(problems):
    """By file and line, as every other problem of the file."""
    (problem,) = problems(PAIR + "speculation:\n  method: mtp\n")

    assert problem.where == "specdeploy.yaml:5"


@pytest.mark.parametrize("profile", list(METHODS))
def test_every_profile_takes_what_it_says(problems, profile):
    """All of its methods and precisions load, given what the method needs."""
    for method in METHODS[profile]:
        draft = "" if method in {"lookahead", "ngram", "mtp"} else "draft: {checkpoint: small}\n"
        assert problems(f"{TARGET}{draft}profile: {profile}\nspeculation: {{method: {method}}}\n") == ()
    for precision in PRECISIONS[profile]:
        text = f"name: x\nprofile: {profile}\ntarget: {{checkpoint: a, precision: {precision}}}\n"
        assert problems(f"{text}draft: {{checkpoint: b}}\n") == ()


def test_the_tables_know_every_choice_of_the_schema():
    """A new method or precision has to be given to a profile."""
    assert set(METHODS) == set(PRECISIONS) == set(Profile.__args__)
    assert {method for methods in METHODS.values() for method in methods} == set(Method.__args__)
    assert {precision for some in PRECISIONS.values() for precision in some} == set(Precision.__args__)
