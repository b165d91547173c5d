"""What the executor is given in its tests: a runner that only pretends, a clock that counts looks, a small plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specdeploy.engine.execute import Tools
from specdeploy.engine.profile import BuildStep, EngineManifest, EngineSpec
from specdeploy.planning.build import BuildPlan, PlannedEngine
from tests.unit.checkpoint.folders import info

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdeploy.findings import Finding

KEY = "0123456789abcdef" * 4
TOOLS = Tools(missing=lambda names: (), versions=lambda names: dict.fromkeys(names, "1.0"))


class FakeClock:
    """Every look at it takes a second."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        """Return one second more than last time."""
        self._now += 1.0
        return self._now

    def now_iso(self) -> str:
        """Return always the same moment."""
        return "2026-01-31T09:30:00+00:00"


class FakeRunner:
    """Writes the files that it is told to into the directory after ``--output``, and remembers what it was asked.

    Args:
        files: Name to content.
        lines: What the program "prints": to the log and the callback, as the real runner does.
        code: The exit code.
        act: Called with the output directory, in place of a program's own ideas.
    """

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        lines: Sequence[str] = (),
        code: int = 0,
        act: Callable[[Path], None] | None = None,
    ) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.envs: list[Mapping[str, str]] = []
        self._files = {"model.bin": b"weights"} if files is None else files
        self._lines = lines
        self._code = code
        self._act = act

    def run(self, argv, *, env, cwd, log, timeout_s, on_line=None) -> int:
        """Pretend to run, as ``Runner`` says."""
        self.calls.append(tuple(argv))
        self.envs.append(dict(env))
        output = Path(argv[argv.index("--output") + 1])
        for name, data in self._files.items():
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            (output / name).write_bytes(data)
        with log.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in self._lines)
        for line in self._lines if on_line else ():
            on_line(line)
        if self._act is not None:
            self._act(output)
        return self._code


class FakeProfile:
    """Finds in a finished engine what it is told to.

    Args:
        findings: Given back for every engine.
    """

    name = "cpu"
    inspected = ("model.bin",)

    def __init__(self, *findings: Finding) -> None:
        self.seen: list[tuple[Mapping[str, bytes], Mapping[str, int]]] = []
        self._findings = findings

    def verify(self, spec, files, sizes):
        """Remember what there was to read."""
        self.seen.append((dict(files), dict(sizes)))
        return self._findings

    def facts(self, spec):
        """Say one thing for the manifest."""
        return {"role": spec.role}


def step(key: str = KEY, *, outputs: Sequence[str] = ("model.bin",), **changes) -> BuildStep:
    """Return a step of a compiler that does not exist."""
    values = {
        "name": "compile",
        "argv": ("compiler", "--output", "{output}", "{scratch}"),
        "env": {"TMP": "{scratch}"},
        "inputs": (),
        "outputs": tuple(outputs),
        "key": key,
        "requires": ("compiler",),
    }
    return BuildStep(**(values | changes))


def planned(key: str = KEY, *, role: str = "target", steps: Sequence[BuildStep] | None = None) -> PlannedEngine:
    """Return one planned engine."""
    spec = EngineSpec(
        role=role, name=f"{role}-engine", precision="int8", checkpoint=info(), max_seq_len=128, max_batch_size=2
    )
    return PlannedEngine(
        spec=spec,
        profile="cpu",
        key=key,
        steps=(step(key),) if steps is None else tuple(steps),
        limit=2048,
        estimated_bytes=200_000_000,
    )


def plan(*engines: PlannedEngine) -> BuildPlan:
    """Return a plan of one default engine, or of those given."""
    return BuildPlan(engines=engines or (planned(),))


def manifest(key: str = KEY, **changes) -> EngineManifest:
    """Return a manifest as the executor hands it to the store: without files."""
    values = {
        "key": key,
        "profile": "cpu",
        "name": "target-engine",
        "precision": "int8",
        "checkpoint_name": "big",
        "checkpoint_fingerprint": "f" * 64,
        "vocab_size": 6,
        "max_seq_len": 2048,
        "num_layers": 2,
        "num_kv_heads": 2,
        "head_dim": 2,
        "eos_token_ids": (5,),
        "files": (),
        "argv": (("compiler", "--output", "{output}"),),
        "tool_versions": {"compiler": "1.0"},
        "created": "2026-01-31T09:30:00+00:00",
        "duration_s": 1.5,
        "size_bytes": 0,
    }
    return EngineManifest(**(values | changes))
