"""From a configuration to a linted model repository: check, plan and build, write the repository, lint it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.checkpoint.compat import check_pair
from specdeploy.checkpoint.read import read_checkpoint
from specdeploy.engine import PROFILES
from specdeploy.engine.execute import execute
from specdeploy.engine.store import EngineStore
from specdeploy.errors import IncompatiblePair, RepositoryError
from specdeploy.findings import has_errors
from specdeploy.pipeline.workspace import workspace
from specdeploy.planning.build import BuildPlan, plan_build
from specdeploy.system.clock import SystemClock
from specdeploy.system.files import publish_tree
from specdeploy.system.process import SubprocessRunner
from specdeploy.triton.lint import lint_repository
from specdeploy.triton.repository import build_repository, engine_path
from specdeploy.triton.sources import engine_listing, model_sources, read_repository, tokenizer_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from specdeploy.checkpoint.info import CheckpointInfo
    from specdeploy.config.load import LoadedConfig
    from specdeploy.engine.execute import BuildEvent
    from specdeploy.engine.profile import EngineManifest
    from specdeploy.findings import Finding


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairCheck:
    """What ``check`` found about the two checkpoints."""

    target: CheckpointInfo
    draft: CheckpointInfo
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the machine-readable document."""
        return {
            "schema_version": "1.0",
            "kind": "check",
            "ok": not has_errors(self.findings),
            "target": _summary(self.target),
            "draft": _summary(self.draft),
            "findings": [finding.as_dict() for finding in self.findings],
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """The two engines, ready to be served."""

    target: EngineManifest
    draft: EngineManifest
    target_path: Path
    draft_path: Path


def _summary(info: CheckpointInfo) -> dict[str, Any]:
    return {
        "path": info.path,
        "name": info.name,
        "architecture": info.architecture,
        "parameters": info.parameters,
        "vocab_size": info.vocab_size,
        "max_position_embeddings": info.max_position_embeddings,
        "fingerprint": info.fingerprint,
    }


def check(loaded: LoadedConfig) -> PairCheck:
    """Read both checkpoints and compare them; nothing is loaded and nothing is written.

    Raises:
        CheckpointError: a checkpoint cannot be read at all.
    """
    config, place = loaded.config, workspace(loaded)
    target, draft = read_checkpoint(place.target), read_checkpoint(place.draft)
    findings = check_pair(
        target,
        draft,
        method=config.speculation.method,
        max_seq_len=config.build.max_seq_len,
        num_draft_tokens=config.speculation.num_draft_tokens,
        use_draft_logits=config.speculation.use_draft_logits,
        precisions=(config.target.precision, config.draft.precision),
    )
    return PairCheck(target=target, draft=draft, findings=findings)


def require_pair(pair: PairCheck) -> None:
    """Stop when the pair does not belong together.

    Raises:
        IncompatiblePair: with every finding.
    """
    if has_errors(pair.findings):
        raise IncompatiblePair(
            f"{pair.target.name} and {pair.draft.name} do not belong together", findings=pair.findings
        )


def plan(loaded: LoadedConfig, pair: PairCheck) -> BuildPlan:
    """Return the steps that compile both engines; an engine that both roles share is planned once."""
    return plan_build(loaded.config, pair.target, pair.draft, PROFILES[loaded.config.profile])


def build(loaded: LoadedConfig, on_event: Callable[[BuildEvent], None]) -> Built:
    """Check the pair and compile what the store does not hold yet.

    Raises:
        IncompatiblePair: the checkpoints do not belong together.

        BuildFailed: a step ended with an error; nothing was published.
    """
    pair = check(loaded)
    require_pair(pair)
    return build_pair(loaded, pair, on_event)


def build_pair(loaded: LoadedConfig, pair: PairCheck, on_event: Callable[[BuildEvent], None]) -> Built:
    """Compile a pair that was checked already; see :func:`build`."""
    store = EngineStore(workspace(loaded).engines)
    target, draft = execute(
        plan(loaded, pair),
        runner=SubprocessRunner(),
        store=store,
        clock=SystemClock(),
        on_event=on_event,
        timeout_s=loaded.config.build.timeout_s,
    )
    return Built(target=target, draft=draft, target_path=store.path(target.key), draft_path=store.path(draft.key))


def find_built(loaded: LoadedConfig) -> Built:
    """Return the engines of this configuration from the store, without building.

    Raises:
        RepositoryError: an engine is not there.
    """
    store = EngineStore(workspace(loaded).engines)
    planned = plan(loaded, check(loaded)).engines
    manifests = [store.find(engine.key) for engine in planned]
    target, draft = manifests[0], manifests[-1]
    if target is None or draft is None:
        missing = ", ".join(engine.spec.name for engine, found in zip(planned, manifests, strict=True) if not found)
        raise RepositoryError(f"no engine in {store.root} for {missing}", hint="run `specdeploy build` first")
    return Built(target=target, draft=draft, target_path=store.path(target.key), draft_path=store.path(draft.key))


def write_repository(loaded: LoadedConfig, built: Built) -> tuple[Finding, ...]:
    """Generate, publish and lint the model repository; return what lint says.

    Raises:
        RepositoryError: the directory is not ours to replace, or the generated repository is not sound.
    """
    place = workspace(loaded)
    tree = build_repository(
        loaded.config,
        built.target,
        built.draft,
        engine_paths={
            "target": engine_path(built.target_path, place.repository),
            "draft": engine_path(built.draft_path, place.repository),
        },
        tokenizer_files=tokenizer_files(place.target),
        sources=model_sources(),
    )
    publish_tree(tree, place.repository)
    return lint(place.repository)


def lint(repository: Path) -> tuple[Finding, ...]:
    """Lint any Triton model repository on disk."""
    return lint_repository(read_repository(repository), engine_listing(repository))


def require_sound(repository: Path, findings: tuple[Finding, ...]) -> None:
    """Stop when lint found an error.

    Raises:
        RepositoryError: with every finding.
    """
    if has_errors(findings):
        raise RepositoryError(f"the model repository {repository} is not sound", findings=findings)
