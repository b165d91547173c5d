"""``docs/gate.md`` says what the gate does: keys, units, statuses, numbers of requests, commands, simulated rates."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import get_args

import click
import pytest
import yaml

from specdeploy.cli import cli
from specdeploy.config.load import load_config
from specdeploy.config.schema import GateConfig
from specdeploy.gate.baseline import MOST_RUNS
from specdeploy.gate.claims import Count, more_needed
from specdeploy.gate.fingerprint import fingerprint_of
from specdeploy.gate.outcome import WORST_FIRST, Status
from specdeploy.gate.resources import ENGINES, MEMORY
from specdeploy.gate.rules import KEPT_OF_CATEGORY, KEPT_STATS, PAIRED, parse_rules
from specdeploy.gate.units import UNITS
from tests.bench import gate as bench
from tests.unit.gate.test_gate_baseline import DEPLOYED

PAGE = (Path(__file__).parents[3] / "docs" / "gate.md").read_text()


def section(title: str) -> str:
    """Return what stands under a heading, as far as the next one."""
    (_, rest) = PAGE.split(f"\n{title}\n")
    return re.split(r"\n##+ ", rest)[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the tables of a text, without their heads."""
    lines = [line.strip().strip("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r" \| |^\| | \|$", line)] for line in lines]
    rules = {number for number, line in enumerate(lines) if set(line) <= set("-|")}
    return [row for number, row in enumerate(cells) if not {number, number + 1} & rules]


def names(cell: str) -> list[str]:
    """Return what stands in a cell as code."""
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_has_every_key_with_its_default() -> None:
    """In the order of the schema."""
    shown = {names(row[0])[0]: yaml.safe_load(names(row[1])[0]) for row in rows(section("## Keys"))}
    defaults = {field.name: field.default for field in dataclasses.fields(GateConfig)}

    assert list(shown) == list(defaults)
    assert shown == {**defaults, "rules": list(defaults["rules"])}


def test_the_rules_of_the_page_are_rules(tmp_path: Path) -> None:
    """The YAML is one that is loaded, and every rule in it one that is read."""
    (block,) = re.findall(r"```yaml\n(gate:.*?)```", PAGE, flags=re.DOTALL)
    path = tmp_path / "specdeploy.yaml"
    path.write_text(f"name: page\ntarget: {{checkpoint: a}}\ndraft: {{checkpoint: b}}\n{block}")
    written = load_config(path, {}, {}).config.gate.rules

    assert len(parse_rules(written)) == len(written) == 16


def test_the_page_has_every_unit() -> None:
    """Those of one dimension in one row."""
    told = [names(row[1]) for row in rows(section("## Rules"))]
    dimensions: dict[str, list[str]] = {}
    for unit, (dimension, _) in UNITS.items():
        dimensions.setdefault(dimension, []).append(unit)

    assert sorted(told) == sorted(dimensions.values())


def test_the_page_has_memory_and_engines() -> None:
    """Key, unit, formula, and when there is no number, as the code defines them."""
    told = [[names(key)[0], *rest] for key, *rest in rows(section("### Memory and engines"))]
    defined = (*MEMORY.values(), *ENGINES.values())

    assert told == [[metric.key, metric.unit, metric.formula, metric.undefined] for metric in defined]


def test_the_page_has_every_status() -> None:
    """And in which order they count."""
    told = [names(row[0])[0] for row in rows(section("## Verdicts"))]

    assert sorted(told) == sorted(get_args(Status)) == sorted(WORST_FIRST)
    assert f"in the order {', '.join(WORST_FIRST)}." in " ".join(PAGE.split())


def test_the_page_has_the_least_numbers_of_requests() -> None:
    """Of each percentile, with none, one and two over the limit."""
    table = [row for row in rows(section("## How a rule is decided")) if row[0].startswith("`p")]

    assert len(table) == 4
    for percentile, *totals in table:
        share = int(names(percentile)[0][1:]) / 100
        needed = [more_needed(Count(kept=0, over=over), share, 0.95) for over in range(3)]
        assert [int(total) for total in totals] == [(more or 0) + over for over, more in enumerate(needed)]


def test_the_page_has_what_is_compared_and_kept() -> None:
    """Metrics of pairs, statistics and categories of a baseline, and how many runs."""
    for name in (*PAIRED, *KEPT_STATS, *KEPT_OF_CATEGORY):
        assert f"`{name}`" in PAGE
    assert f"of {MOST_RUNS} runs" in PAGE


def test_the_page_has_every_field_of_a_fingerprint() -> None:
    """By name, or by what it begins with."""
    told = [name for row in rows(section("## Baselines")) for cell in row for name in names(cell)]

    for field in fingerprint_of(DEPLOYED):
        assert any(field == name or (name.endswith("*") and field.startswith(name[:-1])) for name in told), field


def test_the_page_has_the_rows_of_the_benchmark() -> None:
    """By their names; and what it says of them is what they show."""
    shown = {row[0]: float(row[1].removesuffix(" %")) for row in rows(section("### How often it is wrong"))}

    assert list(shown) == [name for name, _ in bench.rows(repeats=10)]
    for name, rate in shown.items():
        if "false alarms" in name and "alone" not in name:
            assert rate < 5
        if "5 pairs" in name and "10 % worse caught" in name:
            assert rate > 85
        if "coverage of" in name:
            assert abs(rate - float(re.findall(r"coverage of ([\d.]+) %", name)[0])) <= 2


COMMANDS = [
    line.removeprefix("$ ").partition(" > ")[0]
    for block in re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ specdeploy")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_page_is_one(line: str) -> None:
    """With options that there are."""
    _, name, *arguments = shlex.split(line)
    context = cli.make_context("specdeploy", [name, *arguments])
    command = cli.get_command(context, name)
    while isinstance(command, click.Group) and arguments and arguments[0] in command.commands:
        command, arguments = command.commands[arguments[0]], arguments[1:]

    assert command is not None
    with command.make_context(name, arguments, parent=context) as parsed:
        assert parsed.params
