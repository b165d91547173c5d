"""The Triton model repository of a deployment, as a value: path -> bytes.

Knows which files make up a repository and what they hold. Does not know where it will lie, and reads and writes
nothing: the caller hands in engine paths, tokenizer files and model sources, and publishes the tree.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from specdeploy.errors import RepositoryError
from specdeploy.findings import Finding, has_errors
from specdeploy.planning.placement import check_placement, place
from specdeploy.triton.pbtxt import ModelConfig, render
from specdeploy.triton.repository import engines, models, names
from specdeploy.triton.repository.engines import KvBudget
from specdeploy.triton.repository.facts import EngineFacts
from specdeploy.triton.repository.overrides import apply_overrides, check_overrides
from specdeploy.triton.tensors import release_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.config.schema import DeployConfig

__all__ = ["EngineFacts", "KvBudget", "RepoTree", "build_repository", "check_repository", "engine_path"]

RepoTree: TypeAlias = "Mapping[str, bytes]"
"""Path relative to the repository's root, with ``/``, -> the file's bytes."""

SCHEMA_VERSION: Final = "1.1"
_WITH_TOKENIZER: Final = (names.PREPROCESSING, names.DECODER)
# Source folder of the decoder around the LLM API, and what it takes of the other one.
_LLMAPI: Final = "llmapi_decoder"
_SHARED: Final = (
    "decoder_answer.py",
    "decoder_ask.py",
    "decoder_batch.py",
    "decoder_loop.py",
    "decoder_metrics.py",
    "decoder_outputs.py",
    "decoder_perf.py",
    "decoder_reply.py",
    "decoder_request.py",
    "decoder_settings.py",
    "decoder_stats.py",
    "decoder_text.py",
    "decoder_text_in.py",
    "decoder_trace.py",
)
# Some tools that copy to object stores leave empty files out.
_KEPT_TEXT: Final = b"Triton wants this directory.\n"


def build_repository(  # every part of a repository by its name
    config: DeployConfig,
    parts: Mapping[str, EngineFacts],
    *,
    engine_paths: Mapping[str, str],
    tokenizer_files: Mapping[str, bytes],
    sources: Mapping[str, bytes],
    kv: Mapping[str, KvBudget] | None = None,
    model_yaml: str = "",
) -> RepoTree:
    """Return the complete repository of a deployment; the same arguments give the same bytes.

    Args:
        config: The resolved deployment.
        parts: ``target`` and, where the method has one, ``draft`` -> its engine.
        engine_paths: The same -> engine directory as written to config.pbtxt (see :func:`engine_path`).
        tokenizer_files: Name -> bytes of the target's tokenizer files; ``tokenizer.json`` must be among them.
        sources: Path such as ``preprocessing/1/model.py`` -> bytes of the code of the python models.
        kv: The same roles -> memory of the KV cache; left out, a share that fits beside another engine.
        model_yaml: Arguments of the LLM API, for the profile llmapi.

    Raises:
        RepositoryError: A tokenizer or source file is missing, or the release cannot serve the method.
        ConfigError: ``release`` is not known.
    """
    _require_sound(config)
    _require(tokenizer_files, "tokenizer.json", "the target's tokenizer")
    code = _code(config, sources)
    files = dict(code)
    for model_config in _configs(config, parts, engine_paths, kv or default_budgets(config)):
        files[f"{model_config.name}/{names.CONFIG}"] = render(model_config).encode()
        if model_config.backend != "python":
            files[f"{model_config.name}/1/{names.KEPT}"] = _kept(config)
        if model_config.warmups:
            data = engines.warmup_files(parts["target"].vocab_size)
            files |= {f"{model_config.name}/{names.WARMUP_DIR}/{name}": content for name, content in data.items()}
    for model in _WITH_TOKENIZER:
        files |= {f"{model}/1/{names.TOKENIZER_DIR}/{name}": data for name, data in tokenizer_files.items()}
    if config.profile == "llmapi":
        files[f"{names.DECODER}/1/{names.MODEL_YAML}"] = model_yaml.encode()
    ordered = dict(sorted(files.items()))
    return {names.MANIFEST: _manifest(config, parts, ordered), **ordered}


def check_repository(config: DeployConfig) -> tuple[Finding, ...]:
    """Return what in the configuration speaks against its repository, before there is an engine."""
    return (
        *check_placement(config),
        *check_overrides(config),
        *_check_layout(config),
        *_check_release(config),
        *_check_tracing(config),
    )


def engine_path(engine: PurePath, repository: PurePath, *, root: str = "") -> str:
    """Return *engine* as the repository names it: relative to *repository*, or in *root* when that is given.

    Both paths are absolute and free of ``..``.

    Raises:
        RepositoryError: They share no folder, so that a relative path would lead through the root of this machine.
    """
    if root:
        return f"{root.rstrip('/')}/{engine.name}"
    common = 0
    for mine, theirs in zip(engine.parts, repository.parts, strict=False):
        if mine != theirs:
            break
        common += 1
    if common <= 1:  # nothing but the root
        raise RepositoryError(
            f"{engine} and the repository {repository} lie in no common folder, so its name there cannot be relative",
            hint="say where it is when the repository is served: repo.engine_root, or --engine-root",
        )
    return str(PurePath(*[".."] * (len(repository.parts) - common), *engine.parts[common:]))


def default_budgets(config: DeployConfig) -> Mapping[str, KvBudget]:
    """Return shares of the free memory that leave room for the other engine, where nothing better is known."""
    places = {engine.role: set(engine.gpu_ids) for engine in place(config).engines}
    shared = config.profile == "cpu" or (len(places) > 1 and bool(places["target"] & places["draft"]))
    given = {"target": config.target.kv_fraction, "draft": config.draft.kv_fraction}
    usual = {"target": 0.5, "draft": 0.3} if shared else {"target": 0.85, "draft": 0.85}
    return {role: KvBudget(fraction=given[role] or fraction) for role, fraction in usual.items()}


def _require_sound(config: DeployConfig) -> None:
    findings = check_repository(config)
    if has_errors(findings):
        raise RepositoryError("the repository cannot be written as it is configured", findings=findings)


def _check_layout(config: DeployConfig) -> Iterator[Finding]:
    root = config.repo.engine_root
    if config.repo.layout == "object_store" and not root.startswith("/"):
        yield Finding(
            severity="error",
            code="repo.layout",
            message=f"engine_root is {root!r}, by which a repository in an object store cannot name its engines: "
            "Triton copies each model to a folder of its own, and engines stay on a disk of the server",
            hint="Give the folder of the engines on the server, such as /mnt/engines.",
            where="repo.engine_root",
        )


def _check_release(config: DeployConfig) -> Iterator[Finding]:
    tensors = release_tensors(config.release)
    if tensors.derived and config.profile == "tensorrt_llm":
        yield Finding(
            severity="warning",
            code="repo.derived-tensors",
            message=f"the templates of TensorRT-LLM {config.release} were not read: its tensors are taken to be those "
            f"of {tensors.release}",
            hint="Compare with the image: `specdeploy repo --from-image /app/all_models`.",
            where="release",
        )


def _check_tracing(config: DeployConfig) -> Iterator[Finding]:
    traces = any(argument.startswith("--trace-config") for argument in config.serve.extra_args)
    if traces and models.queue_size(config):
        yield Finding(
            severity="warning",
            code="repo.traced-queue",
            message=f"serve.extra_args has the server trace, and {models.queue_size(config)} requests may wait for the "
            "decoder: Triton 2.51 ends (SIGSEGV) when it refuses a traced request over HTTP because the queue is full",
            hint="set repo.max_queue_size: 0, and limit what comes in front of the server",
            where="repo.max_queue_size",
        )


def _code(config: DeployConfig, sources: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the code of the deployment's python models by its path in the repository."""
    own = {path: data for path, data in sources.items() if not path.startswith(f"{_LLMAPI}/")}
    if config.profile == "llmapi":
        shared = {f"{names.DECODER}/1/{name}" for name in _SHARED}
        own = {path: data for path, data in own.items() if not path.startswith(f"{names.DECODER}/") or path in shared}
        own |= {
            f"{names.DECODER}/{path.partition('/')[2]}": data
            for path, data in sources.items()
            if path.startswith(f"{_LLMAPI}/")
        }
    for model in _WITH_TOKENIZER:
        _require(own, f"{model}/1/model.py", "the model sources")
    return own


def _configs(
    config: DeployConfig,
    parts: Mapping[str, EngineFacts],
    engine_paths: Mapping[str, str],
    kv: Mapping[str, KvBudget],
) -> tuple[ModelConfig, ...]:
    target = parts["target"]
    # The manifest knows no padding token; padding is never attended to, so the end token serves.
    end_id = target.eos_token_ids[0] if target.eos_token_ids else -1
    placement, texts = place(config), models.texts_at_once(config)
    outputs = models.decoder_outputs(config, target)
    made = (
        models.ensemble(names.ENSEMBLE, config, outputs),
        models.ensemble(names.BLS, config, outputs),
        models.preprocessing(
            end_id=end_id,
            pad_id=end_id,
            vocab_size=target.vocab_size,
            instances=config.repo.preprocessing_instances,
            texts=texts,
        ),
        models.decoder(config, target, outputs),
        *(
            engines.engine(
                role,
                config,
                path=engine_paths[role],
                placement=placement,
                kv=kv[role],
                logits_dtype=target.logits_dtype,
            )
            for role in names.engine_models(config)
        ),
    )
    return apply_overrides(config, made)


def _manifest(config: DeployConfig, parts: Mapping[str, EngineFacts], files: Mapping[str, bytes]) -> bytes:
    """Return ``specdeploy.json``: what the repository was made from, what a request gets by default, what it holds."""
    placement, tensors = place(config), release_tensors(config.release)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "repository",
        "deployment": config.name,
        "profile": config.profile,
        "method": config.speculation.method,
        "release": config.release,
        "tensors": {"of": tensors.release, "derived": tensors.derived, "provenance": tensors.provenance},
        "serving": {"mode": placement.mode, "spawn": placement.spawn, "processes": placement.processes},
        "engines": {role: facts.as_dict(_holder(config, role)) for role, facts in parts.items()},
        "defaults": {
            # An engine that drafts on its own has no such number.
            "num_draft_tokens": None if models.engine_drafts(config) else config.speculation.num_draft_tokens,
            "use_draft_logits": config.speculation.use_draft_logits,
            "max_seq_len": config.build.max_seq_len,
            "max_inflight": config.build.max_batch_size,
        },
        "models": list(names.model_names(config)),
        "files": {
            path: {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)} for path, data in files.items()
        },
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _holder(config: DeployConfig, role: str) -> str:
    """Return the model that holds an engine."""
    return names.engine_models(config).get(role, names.DECODER)


def _kept(config: DeployConfig) -> bytes:
    return _KEPT_TEXT if config.repo.layout == "object_store" else b""


def _require(files: Mapping[str, bytes], name: str, where: str) -> None:
    if not files.get(name):
        raise RepositoryError(f"{name} is missing from {where}, or empty", hint="the repository would not load")
