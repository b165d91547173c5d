"""A gate without rules: what is measured can decide all that it asks for."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.schedule import LoadSettings
from specdeploy.cli import run as run_command
from specdeploy.config.gate_defaults import rules_for
from specdeploy.config.load import load_config, resolved_rows
from specdeploy.config.schema import DeployConfig, DraftConfig, GateConfig, LoadConfig, ModelConfig, SpeculationConfig
from specdeploy.errors import ConfigError
from specdeploy.gate import relative
from specdeploy.gate.defaults import LEAST_PAIRS
from specdeploy.gate.rules import parse_rules
from specdeploy.pipeline.gate_rules import rules_of
from specdeploy.triton.repository.models import fixed_by
from tests.unit.bench.simulated import CONTEXT, Simulator
from tests.unit.gate.test_gate_docs import names, rows, section

ERRORS, STEPS, ALIVE = (
    "error_rate <= 0",
    "spec_decode_acceptance_length >= 2",
    "overall_spec_decode_draft_acceptance_rate > 0",
)
FASTER, SOONER = "speedup@1 >= 1.0", "request_latency: 10% of control"
AS_FAST = "output_token_throughput: 5% of control"
CONFIG = DeployConfig(name="tiny", target=ModelConfig(checkpoint="a"), draft=DraftConfig(checkpoint="b"))
MINIMAL = "name: smollm2\ntarget: {checkpoint: a}\ndraft: {checkpoint: b}\n"


def with_load(**changes) -> DeployConfig:
    """A configuration of a load."""
    return dataclasses.replace(CONFIG, load=LoadConfig(**changes))


def of_method(method: str, profile: str = "tensorrt_llm", release: str = "1.2.1") -> DeployConfig:
    """A configuration of a method."""
    return dataclasses.replace(CONFIG, profile=profile, release=release, speculation=SpeculationConfig(method=method))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CONFIG, (ERRORS, STEPS, FASTER)),
        (with_load(concurrency=(8, 1)), (ERRORS, STEPS, FASTER)),
        (with_load(concurrency=(8, 4)), (ERRORS, STEPS, "speedup@4 >= 1.0")),
        (with_load(compare=False), (ERRORS, STEPS)),
        (with_load(shape="poisson", rates=(5.0,)), (ERRORS, STEPS, SOONER)),
        (with_load(shape="constant", stages=("5 for 60s",)), (ERRORS, STEPS, SOONER)),
        (with_load(shape="trace", pairs=4), (ERRORS, STEPS)),
        (with_load(shape="gamma", rates=(5.0,), compare=False), (ERRORS, STEPS)),
        (of_method("draft_target"), (ERRORS, STEPS, FASTER)),
        (of_method("ngram"), (ERRORS, STEPS, FASTER)),
        (of_method("medusa"), (ERRORS, ALIVE)),
        (of_method("eagle", release="0.17.0.post1"), (ERRORS,)),
        (of_method("eagle3", profile="llmapi"), (ERRORS, STEPS)),
        (dataclasses.replace(CONFIG, gate=GateConfig(rules=("speedup@9 >= 3",))), ("speedup@9 >= 3",)),
    ],
)
def test_the_configuration_decides_what_is_asked_for(config, expected) -> None:
    """Loads, arms and what the answers tell; rules of its own stay as they are."""
    assert rules_for(config) == expected
    assert parse_rules(expected)


def test_they_are_shown(tmp_path: Path) -> None:
    """By ``config show``, as the default; an empty list is none, too."""
    path = tmp_path / "specdeploy.yaml"
    path.write_text(MINIMAL)
    shown = {key: (value, origin) for key, value, origin in resolved_rows(load_config(path, {}, {}))}
    emptied = {key: value for key, value, _ in resolved_rows(load_config(path, {"gate.rules": "[]"}, {}))}

    assert shown["gate.rules"] == (f'["{ERRORS}", "{STEPS}", "{FASTER}"]', "default")
    assert emptied["gate.rules"] == shown["gate.rules"][0]


def document(settings: LoadSettings, **changes) -> dict:
    """The document of a simulated load test."""
    run, plan = Simulator().run(settings)
    return {**build_load_report(run, plan, CONTEXT), **changes}


CLOSED = document(LoadSettings(concurrency=(2, 4), requests=4))
OPEN = document(LoadSettings(shape="poisson", rates=(5.0,)))
ALONE = document(LoadSettings(concurrency=(1,), requests=4, compare=False))
OTHER = {"name": "model", "profile": "openai"}


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (CLOSED, (ERRORS, STEPS, "speedup@2 >= 1.0")),
        (OPEN, (ERRORS, STEPS, SOONER)),
        (ALONE, (ERRORS, STEPS)),
        ({**CLOSED, "search": {"control": {}}}, (ERRORS, STEPS)),
        ({**CLOSED, "deployment": OTHER}, (ERRORS, "speedup@2 >= 1.0")),
        ({**ALONE, "deployment": OTHER}, (ERRORS,)),
        ({**CLOSED, "speedup": {}, "arms": []}, (ERRORS, STEPS, "speedup@2 >= 1.0")),
    ],
)
def test_the_plan_that_was_carried_out_decides_what_is_judged(load, expected, tmp_path: Path) -> None:
    """Whatever options made of it; what was planned and not measured is still asked for."""
    path = tmp_path / "specdeploy.yaml"
    path.write_text(MINIMAL)
    loaded = load_config(path, {}, {})

    assert tuple(rule.text for rule in rules_of(loaded, load)) == expected
    assert [rule.text for rule in rules_of(loaded, load, ["speedup@64 >= 2"])] == ["speedup@64 >= 2"]
    written = load_config(path, {"gate.rules": "[speedup@1 >= 1.0]"}, {})
    assert [rule.text for rule in rules_of(written, load)] == ["speedup@1 >= 1.0"]


@pytest.mark.parametrize("plan", [None, {"concurrency": ["1"]}, {"concurrency": [1], "compare": "yes"}])
def test_a_plan_that_cannot_be_read_is_an_error(plan, tmp_path: Path) -> None:
    """And never a gate with fewer rules."""
    path = tmp_path / "specdeploy.yaml"
    path.write_text(MINIMAL)

    with pytest.raises(ConfigError):
        rules_of(load_config(path, {}, {}), {**CLOSED, "plan": plan})


@pytest.mark.parametrize(("load", "exit_code"), [(CLOSED, 0), (OPEN, 0), (ALONE, 0), ({**CLOSED, "speedup": {}}, 3)])
def test_the_default_gate_decides(load, exit_code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrency without 1, an open loop, one arm alone: each passes when all is well. What went missing does not."""
    monkeypatch.chdir(tmp_path)
    Path("specdeploy.yaml").write_text(MINIMAL)
    Path("reports").mkdir()
    Path("reports/load.json").write_text(json.dumps(load))

    assert run_command(["gate"]) == exit_code


def test_a_comparison_by_latency_has_as_many_pairs_as_it_needs() -> None:
    """Where this says, and where it is decided."""
    assert LEAST_PAIRS == relative.LEAST_PAIRS


def test_the_page_has_the_default_rules() -> None:
    """Each that there may be, with the number of pairs."""
    text = section("### Without rules")
    pairs = re.findall(r"at least (\d+) pairs", text)

    assert [names(row[0])[0] for row in rows(text)] == [ERRORS, STEPS, ALIVE, FASTER, AS_FAST, SOONER]
    assert pairs == [str(LEAST_PAIRS)]


@pytest.mark.parametrize("recipe", sorted((Path(__file__).parents[3] / "build").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_rules_of_a_recipe_are_on_what_it_measures(recipe: Path) -> None:
    """No speed-up without a control, no acceptance length of engines that tell no steps."""
    config = load_config(recipe, {}, {}).config
    usual = rules_for(dataclasses.replace(config, gate=GateConfig()))
    asked = {rule.metric for rule in parse_rules(rules_for(config))}

    assert fixed_by(config) == "" or not config.load.compare
    for metric, rule in (("speedup", FASTER), ("spec_decode_acceptance_length", STEPS)):
        assert metric not in asked or rule in usual


def test_a_release_need_not_be_faster_than_the_last_one(tmp_path: Path) -> None:
    """Where another deployment is the control, the default asks how much slower it is; of a bare target it does not."""
    path = tmp_path / "specdeploy.yaml"
    path.write_text(MINIMAL)
    loaded = load_config(path, {}, {})
    against = {**CLOSED, "deployment": {**CLOSED["deployment"], "control": {"server": "old:8000"}}}
    foreign = {**against, "deployment": {**against["deployment"], "profile": "openai"}}

    few = {**against, "plan": {**against["plan"], "pairs": 2}}

    assert AS_FAST in [rule.text for rule in rules_of(loaded, against)]
    assert AS_FAST in [rule.text for rule in rules_of(loaded, few)]
    assert any(rule.metric == "speedup" for rule in rules_of(loaded, CLOSED))
    assert any(rule.metric == "speedup" for rule in rules_of(loaded, foreign))
