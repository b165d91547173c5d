"""The gate on real deployments: each that got worse in one way fails the rule that is there for it, and no other."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.config.load import load_config
from specdeploy.pipeline import loading, measure
from specdeploy.pipeline.serving import Addresses
from specdeploy.triton.server import TritonServer
from tests.deployments import specdeploy, write_deployment
from tests.integration.gate_mutants import EVERY, MUTANTS, faulty
from tests.integration.smoke_mutants import switched_on

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from specdeploy.triton.runtime import Runtime
    from specdeploy.triton.server import RunningServer

pytestmark = [pytest.mark.cpu, pytest.mark.triton]

#: What a release might be judged by: against the last one in pairs, and alone.
OF_CONTROL = (
    "output_token_throughput: 5% of control",
    "spec_decode_acceptance_length: 3% of control",
    "error_rate <= 0",
    "error_rate#control <= 0",
)
ALONE = ("error_rate <= 1%", "overall_spec_decode_acceptance_length >= 2.5")
PAIRS = {"load.pairs": "8", "load.requests": "4", "load.max_tokens": "12", "load.warmup_requests": "4"}
MANY = {
    "load.compare": "false",
    "load.pairs": "1",
    "load.requests": str(3 * EVERY),
    "load.concurrency": "[8]",
    "load.warmup_requests": "0",
    "load.max_tokens": "8",
}
IN_PAIRS = [name for name, mutant in MUTANTS.items() if mutant.check in OF_CONTROL]
BY_ITSELF = [name for name, mutant in MUTANTS.items() if mutant.check in ALONE]


@dataclasses.dataclass(frozen=True)
class Release:
    """A server with every fault and the switch, and the one of the release before, which has none."""

    folder: Path
    switch: Path
    here: Addresses
    before: Addresses

    def broken(self, fault: str) -> contextlib.AbstractContextManager[None]:
        """Switch a fault on, and off at the end."""
        return switched_on(self.switch, fault)

    def verdicts(self, rules: tuple[str, ...], load: dict[str, str], *, control: bool) -> dict[str, dict[str, Any]]:
        """Measure, judge, and return each rule's verdict."""
        loaded = load_config(self.folder / "specdeploy.yaml", load, {})
        loading.load(loaded, self.here, control=self.before if control else None)
        return self.judged(rules)

    def judged(self, rules: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        """Judge what was measured last."""
        loaded = load_config(self.folder / "specdeploy.yaml", {}, {})
        return {verdict["rule"]: verdict for verdict in measure.gate(loaded, rules)["rules"]}

    def words(self) -> tuple[str, ...]:
        """Return the options of a command that name both servers."""
        named = {"--http": self.here.http_url, "--grpc": self.here.grpc_url}
        named |= {"--control-http": self.before.http_url, "--control-grpc": self.before.grpc_url}
        return tuple(word for option in named.items() for word in option)


@pytest.fixture(name="release", scope="module")
def _release(triton_runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """Two servers of one build, started at the same time."""
    folder = tmp_path_factory.mktemp("release")
    write_deployment(folder)
    for command in ("build", "repo"):
        done = specdeploy(command, cwd=folder)
        assert done.returncode == 0, done.stderr
    names = ("here", "before")
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(names)) as pool:

        def start(name: str) -> RunningServer:
            models = folder / f"models-{name}"
            shutil.copytree(folder / "models", models)
            backend = faulty(models, folder / f"switch-{name}")
            server = TritonServer(
                triton_runtime, models, run_dir=folder / f"run-{name}", backends={"tensorrtllm": backend}
            )
            return stack.enter_context(server)

        here, before = (
            Addresses(http_url=server.endpoints.http_url, grpc_url=server.endpoints.grpc_url)
            for server in pool.map(start, names)
        )
        yield Release(folder, folder / "switch-here", here, before)


def failing(verdicts: dict[str, dict[str, Any]]) -> list[str]:
    """Return the rules that failed."""
    return [rule for rule, verdict in verdicts.items() if verdict["status"] == "fail"]


def test_a_sound_build_fails_no_rule(release: Release) -> None:
    """By itself: no request fails, and drafts are accepted."""
    verdicts = release.verdicts(ALONE, MANY, control=False)

    assert failing(verdicts) == [], verdicts
    assert [verdicts[rule]["value"] for rule in ALONE] == [0.0, pytest.approx(3.4, abs=0.8)]


def test_a_sound_build_is_compared_by_the_commands(release: Release) -> None:
    """Over HTTP as well, from two processes: no rule fails, and the results say what the control was."""
    options = {**PAIRS, "load.protocol": "http", "load.concurrency": "[2]", "load.pairs": "5"}
    words = [f"--set={key}={value}" for key, value in options.items()]
    done = specdeploy("load", *release.words(), *words, "--processes", "2", cwd=release.folder)
    assert done.returncode == 0, done.stderr
    verdicts = release.judged(OF_CONTROL)
    document = json.loads((release.folder / "reports" / "load.json").read_text())

    assert failing(verdicts) == [], verdicts
    assert verdicts["spec_decode_acceptance_length: 3% of control"]["value"] == 1.0
    assert f"control: another deployment at {release.before.http_url}" in done.stdout
    assert document["deployment"]["control"] == {"server": release.before.http_url, "num_draft_tokens": "4"}
    assert "load.control-speculates" not in str(document["findings"])


def test_two_builds_are_compared_until_it_can_be_decided(release: Release) -> None:
    """From too few pairs to five, all with the same other deployment, which a gate without it does not replace."""
    small = {"load.pairs": "2", "load.requests": "3", "load.max_tokens": "12"}
    words = [f"--set={key}={value}" for key, value in small.items()]
    rule = ("--rule", "output_token_throughput: 60% of control")
    for path in (release.folder / "reports").glob("load*"):
        path.unlink()
    done = specdeploy("gate", "--repeat-until", "2min", "--json", *rule, *release.words(), *words, cwd=release.folder)
    document = json.loads((release.folder / "reports" / "load.json").read_text())
    alone = specdeploy("gate", "--repeat-until", "2min", *rule, *release.words()[:4], *words, cwd=release.folder)

    assert done.returncode == 0, done.stdout + done.stderr
    looks = json.loads(done.stdout)["repeats"]["looks"]
    assert [(look["pairs"], look["status"]) for look in looks] == [(2, "undecided"), (5, "pass")]
    assert document["deployment"]["control"]["server"] == release.before.http_url
    assert len(document["speedup"]["1"]["ratios"]) == 5
    assert alone.returncode == 2
    assert f"the control of the last load test was {release.before.http_url}" in alone.stderr
    assert json.loads((release.folder / "reports" / "load.json").read_text()) == document


@pytest.mark.parametrize("fault", IN_PAIRS)
def test_a_worse_build_fails_in_pairs_with_the_one_before(fault: str, release: Release) -> None:
    """The one rule that is there for it, which says why."""
    mutant = MUTANTS[fault]
    with release.broken(fault):
        verdicts = release.verdicts(OF_CONTROL, PAIRS, control=True)

    assert failing(verdicts) == [mutant.check], verdicts
    assert mutant.reason in verdicts[mutant.check]["reason"]


@pytest.mark.parametrize("fault", BY_ITSELF)
def test_a_worse_build_fails_by_itself(fault: str, release: Release) -> None:
    """The one rule that is there for it, which says what went wrong."""
    mutant = MUTANTS[fault]
    with release.broken(fault):
        verdicts = release.verdicts(ALONE, MANY, control=False)

    assert failing(verdicts) == [mutant.check], verdicts
    assert mutant.reason in verdicts[mutant.check]["reason"]


def test_the_selftest_proves_that_the_gate_fires(release: Release) -> None:
    """On the running deployment: at a known slowdown, and not without it; what was measured before stays."""
    reports = release.folder / "reports"
    before = {path: path.read_bytes() for path in reports.glob("*.json*")}
    small = ("--set", "load.pairs=5", "--set", "load.requests=3", "--set", "load.max_tokens=12")
    # So far apart that a moment in which the machine had no time for an answer changes neither verdict.
    wanted = ("--slowdown", "50%", "--rule", "output_token_throughput: 15% of control")
    done = specdeploy("gate", "selftest", *release.words()[:4], *wanted, *small, cwd=release.folder)
    document = json.loads((reports / "gate-selftest.json").read_text())

    assert done.returncode == 0, done.stdout + done.stderr
    assert [run["verdict"]["status"] for run in document["runs"]] == ["pass", "fail"]
    assert document["runs"][1]["grew"] == pytest.approx(0.5, abs=0.15)
    assert "it fired at answers slower by 50 %" in done.stdout
    assert {path: path.read_bytes() for path in before} == before
