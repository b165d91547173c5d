"""The Triton model repository of a deployment, as a value: path -> bytes.

Knows which files make up a repository and what they hold. Does not know where it will lie, and reads and writes
nothing: the caller hands in engine paths, tokenizer files and model sources, and publishes the tree.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from specdeploy.errors import RepositoryError
from specdeploy.triton.pbtxt import ModelConfig, render
from specdeploy.triton.repository import models, names

if TYPE_CHECKING:
    from specdeploy.config.schema import DeployConfig
    from specdeploy.engine.profile import EngineManifest

RepoTree: TypeAlias = Mapping[str, bytes]
"""Path relative to the repository's root, with ``/``, -> the file's bytes."""

SCHEMA_VERSION: Final = "1.0"
_WITH_TOKENIZER: Final = (names.PREPROCESSING, names.DECODER)


def build_repository(
    config: DeployConfig,
    target: EngineManifest,
    draft: EngineManifest,
    *,
    engine_paths: Mapping[str, str],
    tokenizer_files: Mapping[str, bytes],
    sources: Mapping[str, bytes],
) -> RepoTree:
    """Return the complete repository of a deployment; the same arguments give the same bytes.

    Args:
        config: The resolved deployment.
        target: Manifest of the target's engine.
        draft: Manifest of the draft's engine.
        engine_paths: ``target`` and ``draft`` -> engine directory as written to config.pbtxt (see :func:`engine_path`).
        tokenizer_files: Name -> bytes of the target's tokenizer files; ``tokenizer.json`` must be among them.
        sources: Path such as ``preprocessing/1/model.py`` -> bytes of the code of the python models.

    Raises:
        RepositoryError: A tokenizer or source file is missing.
        ConfigError: ``release`` is not known.
    """
    _require(tokenizer_files, "tokenizer.json", "the target's tokenizer")
    for model in _WITH_TOKENIZER:
        _require(sources, f"{model}/1/model.py", "the model sources")
    files = dict(sources)
    for model_config in _configs(config, target, engine_paths):
        files[f"{model_config.name}/{names.CONFIG}"] = render(model_config).encode()
        if model_config.backend != "python":
            files[f"{model_config.name}/1/{names.KEPT}"] = b""
    for model in _WITH_TOKENIZER:
        files |= {f"{model}/1/{names.TOKENIZER_DIR}/{name}": data for name, data in tokenizer_files.items()}
    ordered = dict(sorted(files.items()))
    return {names.MANIFEST: _manifest(config, {"target": target, "draft": draft}, ordered), **ordered}


def engine_path(engine: PurePath, repository: PurePath) -> str:
    """Return *engine* as config.pbtxt names it: relative to *repository* when they share a folder, else absolute.

    Both paths are absolute and free of ``..``.
    """
    common = 0
    for mine, theirs in zip(engine.parts, repository.parts, strict=False):
        if mine != theirs:
            break
        common += 1
    if common <= 1:  # nothing but the root
        return str(engine)
    return str(PurePath(*[".."] * (len(repository.parts) - common), *engine.parts[common:]))


def _configs(config: DeployConfig, target: EngineManifest, engine_paths: Mapping[str, str]) -> tuple[ModelConfig, ...]:
    release = config.release
    # The manifest knows no padding token; padding is never attended to, so the end token serves.
    end_id = target.eos_token_ids[0] if target.eos_token_ids else -1
    engines = (models.engine(model, config, path=engine_paths[role]) for role, model in names.ENGINE_MODELS.items())
    return (
        models.ensemble(names.ENSEMBLE, release),
        models.ensemble(names.BLS, release),
        models.preprocessing(end_id=end_id, pad_id=end_id, vocab_size=target.vocab_size),
        models.decoder(config),
        *engines,
    )


def _manifest(config: DeployConfig, engines: Mapping[str, EngineManifest], files: Mapping[str, bytes]) -> bytes:
    """Return ``specdeploy.json``: what the repository was made from, what a request gets by default, what it holds."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "repository",
        "deployment": config.name,
        "profile": config.profile,
        "release": config.release,
        "engines": {role: _engine_facts(role, manifest) for role, manifest in engines.items()},
        "defaults": {
            "num_draft_tokens": config.speculation.num_draft_tokens,
            "use_draft_logits": config.speculation.use_draft_logits,
            "max_seq_len": config.build.max_seq_len,
            "max_inflight": config.build.max_batch_size,
        },
        "models": list(names.MODELS),
        "files": {
            path: {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)} for path, data in files.items()
        },
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _engine_facts(role: str, manifest: EngineManifest) -> dict[str, Any]:
    return {
        "model": names.ENGINE_MODELS[role],
        "key": manifest.key,
        "name": manifest.name,
        "profile": manifest.profile,
        "precision": manifest.precision,
        "size_bytes": manifest.size_bytes,
        "checkpoint": manifest.checkpoint_name,
        "vocab_size": manifest.vocab_size,
        "max_seq_len": manifest.max_seq_len,
        "eos_token_ids": list(manifest.eos_token_ids),
    }


def _require(files: Mapping[str, bytes], name: str, where: str) -> None:
    if not files.get(name):
        raise RepositoryError(f"{name} is missing from {where}, or empty", hint="the repository would not load")
