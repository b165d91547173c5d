"""What a load test sends, as its configuration asks for it."""

from __future__ import annotations

import json
import os
import statistics
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, processors

from specdeploy.config.load import load_config
from specdeploy.errors import ConfigError, ToolMissing
from specdeploy.pipeline.measurement import plan_of
from specdeploy.pipeline.workload import MOST_SYNTHETIC
from tests.tiny import write_tiny_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from specdeploy.bench.schedule import LoadPlan

CONFIG = "name: tiny\ntarget: {checkpoint: target}\ndraft: {checkpoint: draft}\n"
SYNTHETIC = {"load.prompts": "synthetic", "load.input_tokens_mean": 40}
RECORDED = "Paris is the capital of France."
TALKS = [
    {"id": "a", "conversations": [{"from": "human", "value": "Where?"}, {"from": "gpt", "value": RECORDED}]},
    {"id": "b", "conversations": [{"from": "human", "value": "Why?"}]},
]

pytestmark = pytest.mark.cpu


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """A deployment whose target's tokenizer puts a special token before every text, as Llama's does."""
    (tmp_path / "specdeploy.yaml").write_text(CONFIG)
    file = write_tiny_checkpoint(tmp_path / "target") / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    tokenizer.save(str(file))
    (tmp_path / "talks.json").write_text(json.dumps(TALKS))
    (tmp_path / "lines.jsonl").write_text('{"text": "a", "max_tokens": 3}\n')
    return tmp_path


@pytest.fixture(name="plan")
def _plan(folder: Path) -> Callable[..., LoadPlan]:
    """Return a function that plans the load of some keys."""

    def plan(keys: dict[str, Any], **changes: Any) -> LoadPlan:
        texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in keys.items()}
        return plan_of(load_config(folder / "specdeploy.yaml", texts, {}), **changes)

    return plan


@pytest.fixture(name="count")
def _count(folder: Path) -> Callable[..., int]:
    """Return what counts the target's tokens."""
    tokenizer = Tokenizer.from_file(str(folder / "target" / "tokenizer.json"))
    return lambda text, *, special=True: len(tokenizer.encode(text, add_special_tokens=special).ids)


def sent(plan: LoadPlan):
    """Return what one arm of a plan sends, warm-up left out."""
    return [p for block in plan.blocks if block.pair >= 0 and block.arm == "control" for p in block.prompts]


def test_synthetic_prompts_are_as_long_as_the_server_counts(plan, count) -> None:
    """With its special tokens; as many are made as the run sends, so that none comes twice."""
    made = plan(SYNTHETIC)
    prompts = sent(made)

    assert {count(prompt.text) for prompt in prompts} == {40}
    assert len({prompt.text for prompt in prompts}) == len(prompts) == 30
    assert (made.prompt_set, made.prompt_count) == ("synthetic", 32)
    assert {(prompt.max_tokens, prompt.min_tokens) for prompt in prompts} == {(None, None)}


def test_synthetic_lengths_follow_their_distribution(plan, count) -> None:
    """Those of prompts and of answers, which are just as long as they were drawn; the plan says what was asked for."""
    asked = {
        "input_tokens_mean": 60,
        "input_tokens_stddev": 10.0,
        "output_tokens_mean": 30,
        "output_tokens_stddev": 5.0,
    }
    made = plan({"load.prompts": "synthetic", "load.requests": 40, **{f"load.{key}": asked[key] for key in asked}})
    prompts = sent(made)
    outputs = [prompt.max_tokens for prompt in prompts]

    assert statistics.mean(count(prompt.text) for prompt in prompts) == pytest.approx(60, abs=3)
    assert statistics.stdev(count(prompt.text) for prompt in prompts) == pytest.approx(10, abs=3)
    assert statistics.mean(outputs) == pytest.approx(30, abs=2)
    assert statistics.stdev(outputs) == pytest.approx(5, abs=2)
    assert outputs == [prompt.min_tokens for prompt in prompts]
    assert asked.items() <= made.to_dict().items()


def test_the_seed_decides_what_is_made(plan) -> None:
    """The same one makes the same texts again; a search, which changes it, sends others at each load."""
    keys = {**SYNTHETIC, "load.prefix_tokens": 20}
    first, again, other = plan(keys), plan(keys), plan(keys, seed=1)

    assert first == again
    assert {prompt.text for prompt in sent(first)}.isdisjoint(prompt.text for prompt in sent(other))


@pytest.mark.parametrize(
    ("keys", "made"),
    [
        ({"load.pairs": 1, "load.concurrency": "[1, 2]"}, 16),
        ({"load.shape": "poisson", "load.rates": "[5]", "load.pairs": 1}, 8),
        ({"load.requests": 400}, MOST_SYNTHETIC),
        ({"load.duration_s": 9}, MOST_SYNTHETIC),
        ({"load.shape": "constant", "load.stages": "5 for 2s"}, MOST_SYNTHETIC),
    ],
)
def test_as_many_prompts_are_made_as_are_needed(plan, keys, made) -> None:
    """And no more than some hundreds, which come again."""
    short = {**SYNTHETIC, "load.input_tokens_mean": 3}

    assert plan({**short, **keys}).prompt_count == made


def test_a_recorded_answer_sets_the_length(plan, count) -> None:
    """In the target's tokens, without special ones; where there is no answer the run decides, and that is told."""
    made = plan({"load.prompts": "talks.json", "load.recorded_length": True})
    lengths = {prompt.id: (prompt.max_tokens, prompt.min_tokens) for prompt in sent(made)}

    assert lengths == {"a": (count(RECORDED, special=False), None), "b": (None, None)}
    assert [finding.code for finding in made.findings] == ["load.answers-not-recorded"]
    assert made.to_dict()["recorded_length"] is True


def test_a_recorded_length_may_be_fixed(plan, count) -> None:
    """With ``fixed_length`` every answer is just as long as the recorded one."""
    made = plan({"load.prompts": "talks.json", "load.recorded_length": True, "load.fixed_length": True})
    own = count(RECORDED, special=False)

    assert {made.settings.output.apply(prompt)[0] for prompt in sent(made)} == {own, 64}
    assert all(more == {"min_tokens": most} for most, more in map(made.settings.output.apply, sent(made)))


def test_unless_it_is_asked_for_the_run_decides(plan, folder) -> None:
    """Without a tokenizer, too."""
    (folder / "target" / "tokenizer.json").unlink()
    made = plan({"load.prompts": "talks.json"})

    assert {prompt.max_tokens for prompt in sent(made)} == {None}
    assert made.findings == ()


def test_prefixes_are_as_long_as_they_should_be(plan, count) -> None:
    """In tokens that a special one is no part of; they stand in front of whatever is sent."""
    made = plan({"load.prompts": "chat", "load.prefix_tokens": 50, "load.prefix_count": 2, "load.prefix_share": 0.5})
    prefixes = {prompt.prefix for prompt in sent(made) if prompt.prefix}

    assert [count(prefix.removesuffix("\n\n"), special=False) for prefix in prefixes] == [50, 50]
    assert sum(bool(prompt.prefix) for prompt in sent(made)) == 15
    assert all(prompt.message.startswith(prompt.prefix) for prompt in sent(made))


@pytest.mark.parametrize(
    ("keys", "said", "cure"),
    [
        ({"load.prompts": "synthetic"}, "load.input_tokens_mean is 0", "load.input_tokens_mean: 512"),
        (
            {**SYNTHETIC, "load.output_tokens_stddev": 2},
            "load.output_tokens_stddev is 2, and load.output_tokens_mean is 0",
            "load.output_tokens_mean: 128",
        ),
        ({"load.input_tokens_mean": 9}, "load.input_tokens_mean is 9, and load.prompts is 'code'", "to synthetic"),
        (
            {"load.prompts": "lines.jsonl", "load.output_tokens_mean": 9},
            "load.output_tokens_mean is 9, and load.prompts is 'lines.jsonl'",
            "to synthetic",
        ),
        ({**SYNTHETIC, "load.recorded_length": True}, "load.prompts is 'synthetic', which has no", "ShareGPT"),
        ({"load.recorded_length": True}, "load.prompts is 'code', which has no recorded answers", "ShareGPT"),
        (
            {"load.prompts": "lines.jsonl", "load.recorded_length": True},
            "load.prompts is 'lines.jsonl', which has no recorded answers",
            "max_tokens of their own",
        ),
        ({"load.prompts": "synthetik"}, "load.prompts is 'synthetik'", "synthetic are made"),
        ({**SYNTHETIC, "load.shape": "trace"}, "the prompts are no trace", "load.shape trace"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(plan, keys, said, cure) -> None:
    """A run would send something else than was asked for; the message names key and value, the hint the cure."""
    with pytest.raises(ConfigError) as caught:
        plan(keys)

    assert said in caught.value.message
    assert cure in caught.value.hint


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        (SYNTHETIC, "load.prompts synthetic"),
        ({"load.prefix_tokens": 9}, "load.prefix_tokens"),
        ({"load.prompts": "talks.json", "load.recorded_length": True}, "load.recorded_length"),
    ],
)
def test_a_length_in_tokens_needs_a_tokenizer(plan, folder, monkeypatch, keys, what) -> None:
    """Where there is none, or the package that reads it is missing, the message says what wants it."""
    (folder / "target" / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read") as unread:
        plan(keys)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ToolMissing, match=f"{what} needs the package tokenizers") as missing:
        plan(keys)

    assert unread.value.hint == f"{what} needs the target's tokenizer: see target.tokenizer"
    assert missing.value.hint == "pip install 'specdeploy[cpu]'"


def test_what_cannot_be_sent_is_refused_before_anything_is_made(plan, folder) -> None:
    """A contradiction of the load is told at once, and not after texts were made for it."""
    (folder / "target" / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"load\.rates is given"):
        plan({**SYNTHETIC, "load.rates": "[5]"})


@pytest.mark.parametrize("keys", [{"load.stages": "1e-9 for 1s"}, {"load.rates": "1e-9", "load.duration_s": "1"}])
def test_a_schedule_without_a_request_is_refused(plan: Callable[..., LoadPlan], keys: dict[str, Any]) -> None:
    """A load so small that none of its requests is ever due is refused with what to raise."""
    with pytest.raises(ConfigError, match=f"{list(keys)[-1]} lets so few requests through") as failed:
        plan({"load.shape": "poisson", **keys})
    assert "Raise" in failed.value.hint


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "target"])
def test_prompts_that_have_no_end_are_refused(plan: Callable[..., LoadPlan], folder: Path, name: str) -> None:
    """A device, a pipe that nobody writes to and a folder are no file of prompts; nothing waits for them."""
    os.mkfifo(folder / "pipe")
    with pytest.raises(ConfigError, match=f"load.prompts: .*{name} is no regular file"):
        plan({"load.prompts": name})


def test_prompts_that_no_memory_takes_are_refused(plan: Callable[..., LoadPlan], folder: Path) -> None:
    """A file of gigabytes is refused before it is read, with its size and the limit."""
    with (folder / "lines.jsonl").open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(ConfigError, match="has 1,099,511,627,776 bytes, more than"):
        plan({"load.prompts": "lines.jsonl"})


def test_a_byte_order_mark_is_no_part_of_the_prompts(plan: Callable[..., LoadPlan], folder: Path) -> None:
    """Editors of Windows put it in front of a file; the prompts are read as without it."""
    lines = folder / "lines.jsonl"
    lines.write_bytes(b"\xef\xbb\xbf" + lines.read_bytes())

    assert {prompt.text for prompt in sent(plan({"load.prompts": "lines.jsonl"}))} == {"a"}
