"""The user's own arguments of ``trtllm-build``: all problems at once, and no stricter or laxer than the release."""

from __future__ import annotations

import pytest

from specdeploy.engine.tensorrt_llm.flags import OWNED, check_build_arguments, named_values, split_arguments
from specdeploy.engine.tensorrt_llm.releases import find_release
from tests.toolchain.flags import build_parser, load_flags
from tests.unit.engine.tensorrt_llm.trtllm_cases import ROOT

RELEASE = find_release("1.2.1")
WHERE = "target.extra_build_args"


def _check(*lines, release=RELEASE):
    return check_build_arguments(lines, release, WHERE)


def _only(*lines, release=RELEASE):
    (finding,) = _check(*lines, release=release)
    assert finding.where == WHERE
    return finding


GOOD = [
    "--gemm_plugin float16",
    "--gemm_plugin=disable",
    "--strip_plan",
    "--opt_num_tokens 64",
    "--lora_target_modules attn_q attn_k",
    "--lora_dir '/a folder' /b",
    "--user_buffer enable --reduce_fusion enable",
    "--max_prompt_embedding_table_size -1",
    "--max_multimodal_len 5",
    "--log_level verbose",
]
BAD = [
    ("--gemm_plugins float16", "flags.unknown"),
    ("--gemm_plug float16", "flags.unknown"),
    ("--auto_parallel 2", "flags.unknown"),
    ("-v", "flags.unknown"),
    ("--gemm_plugin float61", "flags.choice"),
    ("--gemm_plugin", "flags.values"),
    ("--gemm_plugin float16 float32", "flags.values"),
    ("--strip_plan yes", "flags.values"),
    ("--strip_plan=yes", "flags.values"),
    ("--lora_target_modules", "flags.values"),
    ("--opt_num_tokens many", "flags.value"),
    ("float16", "flags.syntax"),
    ("--lora_dir 'open", "flags.syntax"),
]


@pytest.mark.parametrize("line", GOOD)
def test_what_the_release_takes_is_taken(line):
    """Values after a space or an equals sign, switches, lists, quoted words, aliases, negative numbers."""
    assert _check(line) == ()


@pytest.mark.parametrize(("line", "code"), BAD)
def test_what_the_release_would_refuse_is_an_error(line, code):
    """Before anything is converted."""
    finding = _only(line)

    assert (finding.severity, finding.code) == ("error", code)


@pytest.mark.parametrize("line", [*GOOD, *(line for line, code in BAD if code != "flags.syntax" or "'" not in line)])
def test_the_check_and_the_parser_agree(line):
    """The release's own parser says the same, but for prefixes, which it takes as long as they are unique."""
    parser = build_parser(load_flags(ROOT / "tests/data/trtllm_build_flags/trtllm_build_flags_1.2.1.json"))
    try:
        parser.parse_args(split_arguments([line]))
        accepted = True
    except SystemExit:
        accepted = False

    assert accepted == (not _check(line) or line == "--gemm_plug float16")


def test_an_unknown_flag_has_the_nearest_one_as_its_hint():
    """And a bad choice the nearest choice; where nothing is near, all that there are."""
    assert _only("--gemm_plugins auto").hint == "did you mean --gemm_plugin?"
    assert _only("--gemm_plugin float61").hint == "did you mean float16?"
    assert "--help" in _only("--zzz").hint
    assert "enable, disable" in _only("--reduce_fusion 7").hint


@pytest.mark.parametrize("flag", sorted(OWNED))
def test_what_the_configuration_says_already_is_refused(flag):
    """With the key that says it, whatever the value."""
    finding = _only(f"{flag} 1")

    assert finding.code == "flags.owned"
    assert OWNED[flag] in finding.message


def test_an_alias_of_an_owned_flag_is_owned():
    """By any name."""
    assert _only("--max_decoder_seq_len 1").code == "flags.owned"


def test_owned_flags_are_flags():
    """A misspelt one would protect nothing."""
    assert set(OWNED) <= set(RELEASE.flags)


@pytest.mark.parametrize(("version", "findings"), [("0.17.0", ["warning"]), ("1.0.0", ["warning"]), ("1.2.1", [])])
def test_a_flag_that_is_only_derived_is_a_warning(version, findings):
    """It may be right, and the builder will tell; a wrong value of it is wrong all the same."""
    release = find_release(version)
    wrong = _check("--dora_plugin maybe", release=release)

    assert [finding.severity for finding in _check("--dora_plugin enable", release=release)] == findings
    assert [finding.severity for finding in wrong] == [*findings, "error"]


def test_all_problems_come_at_once():
    """In the order in which they were written."""
    found = _check("--zzz 1", "--max_seq_len 5 --gemm_plugin", "--opt_num_tokens x")

    assert [finding.code for finding in found] == ["flags.unknown", "flags.owned", "flags.values", "flags.value"]


def test_lines_are_split_as_a_shell_would():
    """A line may hold several words, and a quoted one blanks."""
    assert split_arguments(["--a 'b c'", "--d=e"]) == ("--a", "b c", "--d=e")
    assert list(named_values(["--a", "b c", "--d=e", "--f", "-1.5"])) == [
        ("--a", ["b c"]),
        ("--d", ["e"]),
        ("--f", ["-1.5"]),
    ]
