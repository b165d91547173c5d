"""``speculation.draft_len_schedule``: spelt as TensorRT-LLM does, read, and refused where it says nothing."""

from __future__ import annotations

import pytest

from specdeploy.config.draft_lengths import parse_draft_lengths
from specdeploy.config.load import load_config
from specdeploy.errors import ConfigError

HEAD = "name: pair\ntarget: {checkpoint: t}\ndraft: {checkpoint: d}\n"


@pytest.mark.parametrize(
    "written",
    [
        "{1: 4, 4: 2, 8: 0}",
        "[1: 4, 4: 2, 8: 0]",
        '["1: 4", "4: 2", "8:0"]',
        "\n    - 8: 0\n    - 1: 4\n    - 4: 2",
    ],
)
def test_all_spellings_are_one_schedule(tmp_path, written) -> None:
    """A mapping, as TensorRT-LLM has it, or a list of entries."""
    path = tmp_path / "specdeploy.yaml"
    path.write_text(f"{HEAD}speculation:\n  draft_len_schedule: {written}\n")

    speculation = load_config(path, {}, {}).config.speculation

    assert parse_draft_lengths(speculation.draft_len_schedule, speculation.num_draft_tokens) == ((1, 4), (4, 2), (8, 0))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (["4"], "'4' says no number of requests"),
        (["0: 4"], "'0: 4' says no number"),
        (["-1: 4"], "'-1: 4' says no number"),
        (["1: x"], "'1: x' says no number"),
        (["1: 9"], "'1: 9' drafts more than num_draft_tokens, 4"),
        (["1: 4", "01: 2"], "1 requests stand twice"),
    ],
)
def test_what_says_nothing_is_refused(entries, words) -> None:
    """The entry is named."""
    with pytest.raises(ConfigError, match=words):
        parse_draft_lengths(entries, 4)


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ("draft_len_schedule: {1: 9}", "config.draft-lengths"),
        ("method: ngram\n  adaptive: true\n", None),
        ("adaptive: true", None),
    ],
)
def test_it_stands_only_where_our_decoder_drafts(tmp_path, keys, code) -> None:
    """Elsewhere it would be silently ignored."""
    head = HEAD.replace("draft: {checkpoint: d}\n", "") if "ngram" in keys else HEAD
    path = tmp_path / "specdeploy.yaml"
    path.write_text(f"{head}speculation:\n  {keys}\n")
    if code is None:
        assert load_config(path, {}, {}).config.speculation.adaptive
        return
    with pytest.raises(ConfigError) as caught:
        load_config(path, {}, {})
    assert [finding.code for finding in caught.value.findings] == [code]


@pytest.mark.parametrize("key", ["adaptive: true", "draft_len_schedule: {1: 2}"])
@pytest.mark.parametrize(("profile", "method"), [("llmapi", "draft_target"), ("tensorrt_llm", "medusa")])
def test_engines_that_draft_on_their_own_are_not_told(tmp_path, key, profile, method) -> None:
    """The error names key, method and profile."""
    path = tmp_path / "specdeploy.yaml"
    path.write_text(f"{HEAD}profile: {profile}\nspeculation:\n  method: {method}\n  {key}\n")

    with pytest.raises(ConfigError) as caught:
        load_config(path, {}, {})
    words = f"{key.partition(':')[0]} is for drafts of our decoder, and {method} ({profile}) drafts without it"
    assert words in {finding.message for finding in caught.value.findings}
