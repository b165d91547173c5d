"""``check``: everything that speaks against a deployment, and the plan that follows from its checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.checkpoint.compat import check_alone, check_pair
from specdeploy.checkpoint.fitness import check_fitness
from specdeploy.checkpoint.head_compat import check_head
from specdeploy.checkpoint.read import read_checkpoint
from specdeploy.checkpoint.read_converted import read_converted
from specdeploy.checkpoint.read_head import read_head
from specdeploy.checkpoint.read_trtllm import is_trtllm_checkpoint
from specdeploy.config.rules import HEADS, PAIRS
from specdeploy.engine import PROFILES
from specdeploy.engine.tensorrt_llm.converted import converted_kv_cache
from specdeploy.engine.tensorrt_llm.methods import max_draft_len
from specdeploy.engine.tensorrt_llm.releases import find_release
from specdeploy.engine.tensorrt_llm.surroundings import check_surroundings
from specdeploy.errors import CheckpointError, IncompatiblePair
from specdeploy.findings import Finding, has_errors
from specdeploy.pipeline.machine import (
    NO_GPUS,
    build_devices,
    check_container_gpus,
    check_gpus,
    find_gpus,
    machine,
    seen_by,
)
from specdeploy.pipeline.workspace import workspace
from specdeploy.planning.build import BuildPlan, Sources, plan_build
from specdeploy.planning.footprint import EngineMemorySpec, ModelMemory
from specdeploy.planning.memory import plan_memory
from specdeploy.planning.placement import check_placement, place
from specdeploy.triton.repository import check_repository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from specdeploy.checkpoint.head import HeadInfo
    from specdeploy.checkpoint.info import CheckpointInfo
    from specdeploy.config.load import LoadedConfig
    from specdeploy.config.schema import DeployConfig
    from specdeploy.engine.profile import EngineProfile, EngineSpec
    from specdeploy.findings import Severity
    from specdeploy.pipeline.machine import Gpus
    from specdeploy.planning.memory import MemoryPlan


@dataclasses.dataclass(frozen=True)
class Part:
    """One checkpoint of a deployment, in a line."""

    role: str
    name: str
    kind: str
    parameters: int
    vocab_size: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """What ``check`` found about the checkpoints, and the plan that follows from them.

    Args:
        sources: The checkpoints.
        plan: How the engines are made; of one that cannot be made it has no steps.
        memory: What the engines take of the GPUs; None on a CPU.
        findings: Everything that was noticed, errors first.
    """

    sources: Sources
    plan: BuildPlan
    memory: MemoryPlan | None
    findings: tuple[Finding, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every checkpoint, the target first."""
        sources = self.sources
        checkpoints = (("target", sources.target), ("draft", sources.draft))
        parts = [
            Part(role, info.name, info.architecture, info.parameters, info.vocab_size)
            for role, info in checkpoints
            if info is not None
        ]
        if sources.head is not None:
            head = sources.head
            parts.append(Part("head", head.name, head.kind, head.parameters, head.draft_vocab_size or head.vocab_size))
        return tuple(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return the machine-readable document."""
        sources = self.sources
        return {
            "schema_version": "1.0",
            "kind": "check",
            "ok": not has_errors(self.findings),
            "target": _summary(sources.target),
            "draft": None if sources.draft is None else _summary(sources.draft),
            "head": None if sources.head is None else _head_summary(sources.head),
            "memory": None if self.memory is None else self.memory.as_dict(),
            "findings": [finding.as_dict() for finding in self.findings],
        }


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


def _head_summary(head: HeadInfo) -> dict[str, Any]:
    return {
        "path": head.path,
        "name": head.name,
        "kind": head.kind,
        "base_model": head.base_model,
        "parameters": head.parameters,
        "fingerprint": head.fingerprint,
    }


def check(loaded: LoadedConfig) -> Checked:
    """Read the checkpoints, compare them, and plan the engines; no weights are read and nothing is written.

    Raises:
        CheckpointError: a checkpoint cannot be read at all.
        ConfigError: the release is not known, or a path of the configuration names nothing.
    """
    config = loaded.config
    sources = _read(loaded)
    on_gpus = config.profile != "cpu"
    gpus = find_gpus(config) if on_gpus else NO_GPUS
    profile = profile_of(loaded, gpus)
    plan = plan_build(config, sources, profile, devices=build_devices(config, gpus))
    divisible = all(engine.spec.pp_size <= engine.spec.checkpoint.num_layers for engine in plan.engines)
    memory = _memory(config, plan, gpus) if on_gpus and divisible and not has_errors(check_placement(config)) else None
    findings = [
        *_pair_findings(config, sources, profile),
        *(_fitness(config, plan) if on_gpus else ()),
        *plan.findings,
        *check_repository(config),
        *(_around(config, gpus, plan) if has_builder(config) else ()),
        *(() if memory is None else memory.findings),
    ]
    order: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}
    ordered = sorted(dict.fromkeys(findings), key=lambda finding: order[finding.severity])
    return Checked(sources=sources, plan=plan, memory=memory, findings=tuple(ordered))


def _around(config: DeployConfig, gpus: Gpus, plan: BuildPlan) -> tuple[Finding, ...]:
    needed = max((step.gpus for engine in plan.engines for step in engine.steps), default=0)
    return (
        *check_container_gpus(config, needed),
        *check_gpus(config, gpus),
        *check_surroundings(find_release(config.release), seen_by(config, gpus)),
    )


def has_builder(config: DeployConfig) -> bool:
    """Say whether engines are compiled by TensorRT-LLM's builder."""
    return config.profile == "tensorrt_llm"


def _read(loaded: LoadedConfig) -> Sources:
    config, place = loaded.config, workspace(loaded)
    method, full_hash = config.speculation.method, config.build.full_hash

    def read(role: str, path: Path, tokenizer: Path | None) -> CheckpointInfo:
        if has_builder(config) and is_trtllm_checkpoint(path):
            return read_converted(path, tokenizer, role=role, full_hash=full_hash)
        return read_checkpoint(path, full_hash=full_hash)

    problems: list[Finding] = []
    with _noting(problems, "target"):
        target = read("target", place.target, place.target_tokenizer)
    draft, head = None, None
    with _noting(problems, "draft"):
        draft = read("draft", place.draft, place.draft_tokenizer) if method in PAIRS else None
        head = read_head(place.draft, full_hash=full_hash) if method in HEADS else None
    if problems:
        one = len({problem.where for problem in problems}) == 1
        which = "a checkpoint cannot be used as it is" if one else "both checkpoints cannot be used as they are"
        raise CheckpointError(which, findings=problems)
    return Sources(target=target, draft=draft, head=head)


@contextlib.contextmanager
def _noting(problems: list[Finding], role: str) -> Iterator[None]:
    """Note what is wrong with one checkpoint, so that the other is looked at, too."""
    try:
        yield
    except CheckpointError as error:
        own = Finding(severity="error", code=error.code, message=error.message, hint=error.hint)
        problems.extend(dataclasses.replace(finding, where=role) for finding in error.findings or (own,))


def profile_of(loaded: LoadedConfig, gpus: Gpus) -> EngineProfile:
    """Return the profile of a deployment, for the machine that builds."""
    return PROFILES[loaded.config.profile](loaded.config, machine(loaded, gpus))


def _pair_findings(config: DeployConfig, sources: Sources, profile: EngineProfile) -> tuple[Finding, ...]:
    speculation = config.speculation
    if sources.head is not None:
        heads = speculation.num_heads if speculation.method == "medusa" else None
        return (
            *check_head(sources.target, sources.head, method=speculation.method, num_heads=heads),
            *check_alone(sources.target, max_seq_len=config.build.max_seq_len),
        )
    if sources.draft is None:
        return check_alone(sources.target, max_seq_len=config.build.max_seq_len)
    return check_pair(
        sources.target,
        sources.draft,
        method=speculation.method,
        max_seq_len=config.build.max_seq_len,
        num_draft_tokens=max(speculation.num_draft_tokens, speculation.max_draft_tokens),
        use_draft_logits=speculation.use_draft_logits,
        precisions=(
            profile.precision(config.target.precision, sources.target),
            profile.precision(config.draft.precision, sources.draft),
        ),
        tp_sizes=(config.target.tp_size, config.draft.tp_size),
    )


def _fitness(config: DeployConfig, plan: BuildPlan) -> tuple[Finding, ...]:
    """Check each checkpoint against its engine; which classes can be converted the profile says itself."""
    return tuple(
        finding
        for engine in plan.engines
        for finding in check_fitness(
            engine.spec.checkpoint,
            role=engine.spec.role,
            precision=engine.spec.precision,
            max_seq_len=config.build.max_seq_len,
            tp_size=engine.spec.tp_size,
            pp_size=engine.spec.pp_size,
            ep_size=engine.spec.ep_size,
        )
    )


def _memory(config: DeployConfig, plan: BuildPlan, gpus: Gpus) -> MemoryPlan:
    specs = [spec for engine in plan.engines for spec in _memory_specs(config, engine.spec)]
    return plan_memory(
        specs,
        gpu=gpus.spec,
        max_batch_size=config.build.max_batch_size,
        max_seq_len=config.build.max_seq_len,
        gpu_count=gpus.count,
    )


def _memory_specs(config: DeployConfig, spec: EngineSpec) -> Iterator[EngineMemorySpec]:
    """Yield what lies on the GPUs for an engine; the LLM API loads the draft beside the target."""
    converted = spec.checkpoint.converted
    kv_cache = converted_kv_cache(converted) if converted and spec.kv_cache == "auto" else spec.kv_cache
    placed = {engine.role: engine for engine in place(config).engines}
    target = EngineMemorySpec(
        role=spec.role,
        model=ModelMemory.of(spec.checkpoint),
        precision=spec.precision,
        kv_cache=kv_cache,
        stored_bytes=None if converted is None else converted.weight_bytes,
        tp_size=spec.tp_size,
        pp_size=spec.pp_size,
        max_num_tokens=config.tensorrt_llm.max_num_tokens,
        max_draft_tokens=max_draft_len(config.speculation) if spec.role == "target" and has_builder(config) else 0,
        head_bytes=0 if spec.head is None else spec.head.weight_bytes,
        device_ids=placed[spec.role].gpu_ids if spec.role in placed else (),
        kv_fraction=(config.draft if spec.role == "draft" else config.target).kv_fraction or None,
    )
    yield target
    if spec.draft is not None:
        yield dataclasses.replace(target, role="draft", model=ModelMemory.of(spec.draft))


def require_sound_plan(checked: Checked) -> None:
    """Stop when something speaks against the deployment.

    Raises:
        IncompatiblePair: with every finding.
    """
    if not has_errors(checked.findings):
        return
    sources = checked.sources
    others = [part.name for part in (sources.draft, sources.head) if part is not None]
    pair_codes = {finding.code.partition(".")[0] for finding in checked.findings if finding.severity == "error"}
    if others and pair_codes <= _PAIR_ROOMS:
        message = f"{sources.target.name} and {others[0]} do not belong together"
    else:
        message = f"{' with '.join([sources.target.name, *others])} cannot be deployed as planned"
    raise IncompatiblePair(message, findings=checked.findings)


_PAIR_ROOMS: Final = frozenset({"tokenizer", "vocabulary", "ids", "context", "draft-tokens", "draft", "method", "head"})
