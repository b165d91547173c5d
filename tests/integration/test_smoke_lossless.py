"""Losslessness against real deployments of tiny checkpoints: a sound one, and engines that are wrong in one way each.

Which tokens are drawn depends on seeds alone, so a mutant is found always or never.
"""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING

import pytest

from specdeploy.smoke import CHECKS, Expectations, SmokePrompt
from specdeploy.smoke.checks import losslessness
from specdeploy.smoke.probe import Broken, Probe
from specdeploy.triton.repository import names
from specdeploy.triton.server import TritonServer
from specdeploy.triton.sources import backend_sources
from tests.deployments import specdeploy, write_deployment
from tests.integration.plain_triton import client_of
from tests.tiny import perturb_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from specdeploy.triton.runtime import Runtime
    from specdeploy.triton.server import RunningServer

pytestmark = [pytest.mark.cpu, pytest.mark.triton]

EXPECT = Expectations(
    models=names.MODELS,
    num_draft_tokens=4,
    max_seq_len=1024,
    max_tokens=24,
    samples=300,
    check_timeout_s=250.0,
    prompts=(
        SmokePrompt(name="code", text="def main(n):\n    return"),
        SmokePrompt(name="prose", text="The lighthouse keeper climbed the stairs"),
        SmokePrompt(name="cyrillic", text="Москва является столицей"),
    ),
)
VERIFY = "tensorrtllm_cpu/verify.py"
POSITIONS = "tensorrtllm_cpu/positions.py"
GENERATION = "tensorrtllm_cpu/generation.py"
SCHEDULER = "tensorrtllm_cpu/scheduler.py"

#: Lets one thing in fifty through, counted over the life of the engine.
COUNTER = (
    VERIFY,
    "Acceptance = Callable[[float, float], bool]",
    """Acceptance = Callable[[float, float], bool]
_count = iter(range(1, 1 << 62))


def _one_in_fifty():
    return next(_count) % 50 == 0
""",
)
#: Holds the first verification back until another request has come, so that some meet however slow the machine is.
COMPANY = """class Scheduler:
    _company = False

    def _met(self, generation):
        if generation.request.drafts and not self._company:
            if not self._running:
                self._inbox.put(self._inbox.get(timeout=60.0))
            self._company = True
        return self._company

"""
#: Puts the two best logits of one position of EVERY so many APART, and the other way round in passes that verify.
LEVEL = """class Generation:
    @staticmethod
    def _level(rows, length):
        rows = rows.copy()
        for index, row in enumerate(rows):
            first, second = np.argsort(-row, kind="stable")[:2]
            if (length + index) % EVERY == 0 and second > first:
                row[second] = row[first] + (1e-4 if len(rows) > 1 else -APART)
        return rows
"""


@pytest.fixture(scope="module")
def repository(triton_runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of a sound deployment whose draft is wrong about as often as it is right."""
    folder = tmp_path_factory.mktemp("lossless")
    write_deployment(folder)
    shutil.rmtree(folder / "draft")
    perturb_checkpoint(folder / "target", folder / "draft", 0.1)
    for command in ("build", "repo"):
        done = specdeploy(command, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder / "models"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every sample, however slow the machine is: what is found must not depend on it."""
    monkeypatch.setattr(losslessness, "_BUDGET_S", 200.0)


@pytest.fixture(scope="module")
def sound(
    triton_runtime: Runtime, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server of the sound deployment."""
    with TritonServer(triton_runtime, repository, run_dir=tmp_path_factory.mktemp("run")) as server:
        yield server


def ask(server: RunningServer, check: str, **changes: Any) -> tuple[str, dict[str, Any]]:
    """Run one check; return what it says and its details.

    Raises:
        Broken: It fails.
    """
    expect = dataclasses.replace(EXPECT, **changes)
    with client_of(server, timeout_s=60.0) as client:
        line = CHECKS[check].run(Probe(client, expect, monotonic=lambda: 0.0, sleep=lambda _: None))
    return line, dict(line.details)


def broken_engine(*changes: tuple[str, str, str]) -> dict[str, bytes]:
    """Return the engine's sources with some places changed, each of which must be there once."""
    sources = dict(backend_sources())
    for path, old, new in changes:
        text = sources[path].decode()
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        sources[path] = text.replace(old, new).encode()
    return sources


def test_sound_answers_are_the_targets_own(sound: RunningServer) -> None:
    """Alone and at once no token differs, and enough drafts were rejected for that to mean something."""
    greedy, details = ask(sound, "lossless-greedy")
    _, together = ask(sound, "lossless-batch")

    assert "drafts of 1, 4, 7" in greedy
    assert (details["differences"], together["differences"]) == ([], [])
    assert details["compared"] == 3 * 3 + 2
    assert together["compared"] == 3 * 2
    assert details["excused_share"] < 0.2


def test_sound_samples_are_distributed_alike(sound: RunningServer) -> None:
    """With and without drafts the next tokens come equally often, as far as this many samples can tell."""
    line, details = ask(sound, "lossless-sampled")
    tests = details["sampled"]["tests"]

    assert "would have been found 4 times of 5" in line
    assert len(tests) == 4
    assert all(test["samples"] == [300, 300] for test in tests)
    assert all(test["adjusted_p_value"] > 0.01 for test in tests)
    assert all(0 < test["detectable_distance"] < 0.4 for test in tests)
    assert details["different_rejected_drafts"] >= 50


#: What shows in distribution alone shows in many answers to one prompt.
MANY = {"prompts": EXPECT.prompts[:1], "samples": 500}
#: Name -> what is wrong in the engine, the check that finds it, and a part of the reason.
MUTANTS: dict[str, tuple[tuple[tuple[str, str, str], ...], str, str]] = {
    "greedy: every draft is accepted": (
        ((VERIFY, "        if ids[-1] != draft:\n", "        ids[-1] = draft\n        if False:\n"),),
        "lossless-greedy",
        "is none of the target's two best tokens",
    ),
    "greedy: one rejected draft in fifty is accepted": (
        (
            COUNTER,
            (
                VERIFY,
                "        if ids[-1] != draft:\n",
                """        if ids[-1] != draft and _one_in_fifty():
            ids[-1] = draft
        if ids[-1] != draft:
""",
            ),
        ),
        "lossless-greedy",
        "differ from the target's own",
    ),
    "at once: drafts are taken unseen once there was company": (
        (
            (SCHEDULER, "class Scheduler:\n", COMPANY),
            (SCHEDULER, "emitted = generation.turn()", "emitted = generation.turn(crowded=self._met(generation))"),
            (GENERATION, "def turn(self) -> bool:", "def turn(self, crowded=False):"),
            (
                GENERATION,
                "rows = len(self._drafts) + 1\n",
                "rows = len(self._drafts) + 1\n        self.crowded = crowded\n",
            ),
            (
                GENERATION,
                "return verify.by_match(positions.drafts, positions.most_likely)",
                """unseen = positions.drafts if self.crowded else ()
            return verify.by_match(
                positions.drafts, lambda i: unseen[i] if i < len(unseen) else positions.most_likely(i))""",
            ),
        ),
        "lossless-batch",
        "among 6 requests",
    ),
    "sampled: every draft is accepted": (
        ((VERIFY, "elif accept(float(p[token]), float(q[token])):", "elif True:"),),
        "lossless-sampled",
        "with a single token to draw",
    ),
    "sampled: one rejected draft in fifty is accepted": (
        (
            COUNTER,
            (
                VERIFY,
                "elif accept(float(p[token]), float(q[token])):",
                "elif accept(float(p[token]), float(q[token])) or _one_in_fifty():",
            ),
        ),
        "lossless-sampled",
        "with a single token to draw",
    ),
    "sampled: after a rejection the target's own distribution is taken": (
        ((VERIFY, "draw(residual(p, q), uniform())", "draw(p, uniform())"),),
        "lossless-sampled",
        "distributed otherwise",
    ),
    "sampled: the draft's probabilities are not those that it drew from": (
        ((POSITIONS, "self._adjust(self.draft_rows[position], position)", "self.draft_rows[position]"),),
        "lossless-sampled",
        "distributed otherwise",
    ),
    "greedy: a clear best token is passed over": (
        (
            (GENERATION, "class Generation:\n", LEVEL.replace("APART", "0.5").replace("EVERY", "5")),
            (GENERATION, "rows=rows,", "rows=self._level(rows, self._length),"),
        ),
        "lossless-greedy",
        "the target's two best tokens are 0.5 apart, which is more than 0.001",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_lossy_engine_is_found(mutant: str, triton_runtime: Runtime, repository: Path, tmp_path: Path) -> None:
    """An engine whose answers are not the target's own fails the check that is there for it, with the reason."""
    changes, check, reason = MUTANTS[mutant]

    with (
        TritonServer(
            triton_runtime, repository, run_dir=tmp_path, backends={"tensorrtllm": broken_engine(*changes)}
        ) as server,
        pytest.raises(Broken) as caught,
    ):
        ask(server, check, **(MANY if reason == "distributed otherwise" else {}))

    assert reason in str(caught.value)


def test_numerics_are_a_tie_and_no_failure(triton_runtime: Runtime, repository: Path, tmp_path: Path) -> None:
    """Where the two best tokens are equal and verification moves one by 1e-4, the check passes and counts the ties."""
    engine = broken_engine(
        (GENERATION, "class Generation:\n", LEVEL.replace("APART", "0.0").replace("EVERY", "43")),
        (GENERATION, "rows=rows,", "rows=self._level(rows, self._length),"),
    )
    with TritonServer(triton_runtime, repository, run_dir=tmp_path, backends={"tensorrtllm": engine}) as server:
        line, details = ask(server, "lossless-greedy")

    ties = details["differences"]
    assert any(tie["expected_token"] for tie in ties)
    assert {tie["kind"] for tie in ties} == {"tie"}
    assert f"{len(ties)} ties" in line
    for tie in ties:
        assert tie["margin"] == 0.0
        assert {tie["expected_id"], tie["seen_id"]} == {token for token, _ in tie["best"]}
