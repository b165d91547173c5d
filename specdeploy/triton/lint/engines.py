"""Checks of engine directories: there, complete, as they were built, and able to do what their model promises.

Knows what ``trtllm-build`` records and rewrites (see ``specdeploy.engine.tensorrt_llm``). An engine of which nothing is
known passes every check but the one that says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from specdeploy.triton.lint import engine_dir
from specdeploy.triton.lint.loaded import Engine, Repository, error, warning
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.findings import Finding
    from specdeploy.triton.lint.engine_dir import EngineDirectory

# What makes an engine directory complete: a CPU engine of ours, or TensorRT-LLM's.
_COMPLETE: Final = (frozenset({"genai_config.json", "model.onnx"}), frozenset({"config.json", "rank0.engine"}))
_BUILD: Final = "build it with `specdeploy build`, then write the repository again"
_LISTED: Final = 8
_POST: Final = re.compile(r"\.post\d+$")
_LOGITS: Final = {"TYPE_FP32": "float32", "TYPE_FP16": "float16", "TYPE_BF16": "bfloat16"}


def directories(repository: Repository) -> Iterator[Finding]:
    """Every engine model says where its engine is, and a whole engine is there."""
    for engine in repository.engines.values():
        # A placeholder is a finding of its own.
        written = engine.model.config.parameters.get("gpt_model_path", "") if engine.model.config else ""
        if not engine.path and not written:
            yield error(
                "engine.path-missing",
                "gpt_model_path is not set",
                where=engine.model.where,
                hint="set it to the engine's directory",
            )
        elif engine.path and repository.engines_seen:
            yield from _directory(engine)


def stored(repository: Repository) -> Iterator[Finding]:
    """An engine of our store is as its manifest says, and the one that the repository was written for."""
    engines = [facts for facts in repository.section("engines").values() if isinstance(facts, dict)]
    wanted = {facts["model"]: facts for facts in engines if isinstance(facts.get("model"), str)}
    for engine in repository.engines.values():
        if engine.directory is None or engine_dir.STORE_MANIFEST not in engine.directory.documents:
            continue
        document = engine.directory.document(engine_dir.STORE_MANIFEST)
        if document is None:
            yield error(
                "engine.manifest-unreadable",
                f"{engine.path}/{engine_dir.STORE_MANIFEST} is not a JSON object",
                where=engine.at("gpt_model_path"),
                hint=_BUILD,
            )
            continue
        yield from _as_listed(engine, engine.directory, document)
        key = wanted.get(engine.name, {}).get("key")
        if key and document.get("key") != key:
            yield warning(
                "engine.another",
                f"the repository was written for the engine {str(key)[:16]}, and {engine.path!r} is "
                f"{str(document.get('key'))[:16]}",
                where=engine.at("gpt_model_path"),
                hint="write the repository again with `specdeploy repo`",
            )


def releases(repository: Repository) -> Iterator[Finding]:
    """All engines were built by one release of TensorRT-LLM, the one that the repository is for."""
    built = [
        (engine, _release(version)) for engine in repository.engines.values() if (version := engine.said().version)
    ]
    wanted = (repository.manifest or {}).get("release")
    if isinstance(wanted, str):
        for engine, version in built:
            if version != _release(wanted):
                yield error(
                    "engine.version",
                    f"TensorRT-LLM {version} built the engine of {engine.name}, and the repository is for {wanted}",
                    where=engine.at("gpt_model_path"),
                    hint="an engine runs on its own release only: build it with that of the server's image",
                )
    elif len({version for _, version in built}) > 1:
        listed = ", ".join(f"{engine.name} {version}" for engine, version in built)
        yield error(
            "engine.version",
            f"the engines are of different releases: {listed}",
            where=", ".join(engine.name for engine, _ in built),
            hint="an engine runs on its own release only, and one server has one",
        )


def limits(repository: Repository) -> Iterator[Finding]:
    """Batches and logits are what the engine was built for."""
    for engine in repository.engines.values():
        said, config = engine.said(), engine.model.config
        if config is None:
            continue
        if said.max_batch_size is not None and config.max_batch_size > said.max_batch_size:
            yield warning(
                "engine.batch-size",
                f"max_batch_size is {config.max_batch_size}, and the engine was built for {said.max_batch_size}",
                where=engine.model.at("max_batch_size"),
                hint=f"max_batch_size: {said.max_batch_size}",
            )
        for tensor in config.outputs:
            seen = _LOGITS.get(tensor.data_type)
            if tensor.name == "generation_logits" and said.logits_dtype and seen and seen != said.logits_dtype:
                yield error(
                    "engine.logits",
                    f"generation_logits is {tensor.data_type}, and the engine's logits are {said.logits_dtype}",
                    where=engine.model.at('"generation_logits"'),
                    hint="logits_datatype is that of the engine, in every model that has logits",
                )


def written_limits(repository: Repository) -> Iterator[Finding]:
    """The engines were built for sequences as long as the decoder lets in."""
    wanted = repository.section("defaults").get("max_seq_len")
    for role, facts in repository.section("engines").items():
        built = facts.get("max_seq_len") if isinstance(facts, dict) else None
        if isinstance(wanted, int) and isinstance(built, int) and wanted > built:
            yield error(
                "engine.too-short",
                f"requests may be {wanted} tokens long, and the {role}'s engine holds {built}",
                where=names.MANIFEST,
                hint="lower build.max_seq_len, or build the engine for longer sequences",
            )


def _directory(engine: Engine) -> Iterator[Finding]:
    where, directory = engine.at("gpt_model_path"), engine.directory
    if directory is None:
        yield error("engine.missing", f"gpt_model_path is {engine.path!r}: no such directory", where=where, hint=_BUILD)
        return
    if directory.unreadable:
        yield warning(
            "engine.unreadable",
            f"gpt_model_path is {engine.path!r}, which {directory.unreadable}",
            where=where,
            hint="lint it as a user who may read it, or leave engines out with --no-engines",
        )
        return
    files = directory.files
    if not any(needed <= files for needed in _COMPLETE):
        listed = ", ".join(sorted(files)[:_LISTED]) or "nothing"
        yield error(
            "engine.incomplete",
            f"{engine.path!r} is not a complete engine; it holds {listed}",
            where=where,
            hint=_BUILD,
        )
    elif engine.config is None:
        yield error(
            "engine.config-unreadable",
            f"the configuration in {engine.path!r} is not that of an engine",
            where=where,
            hint=_BUILD,
        )
    else:
        yield from _ranks(engine, where)


def _ranks(engine: Engine, where: str) -> Iterator[Finding]:
    said = engine.said()
    size = said.world_size
    # Counted, not written out: a damaged file may say any number.
    if size is not None and (len(said.ranks) != size or max(said.ranks, default=-1) >= size):
        listed = ", ".join(f"rank{rank}.engine" for rank in sorted(said.ranks)[:_LISTED]) or "none"
        yield error(
            "engine.ranks",
            f"the engine has {said.world_size} ranks, and the files with content are: {listed}",
            where=where,
            hint=_BUILD,
        )


def _as_listed(engine: Engine, directory: EngineDirectory, document: Mapping[str, Any]) -> Iterator[Finding]:
    listed = document.get("files")
    for file in listed if isinstance(listed, list) else ():
        path, size = (file.get("path"), file.get("size")) if isinstance(file, dict) else (None, None)
        seen = directory.sizes.get(str(path))
        if seen != size:
            state = "is missing" if seen is None else f"has {seen} bytes, its manifest says {size}"
            yield error(
                "engine.file-differs",
                f"{path} of the engine {engine.path!r} {state}",
                where=engine.at("gpt_model_path"),
                hint=_BUILD,
            )


def _release(version: str) -> str:
    """Return a release without its post-release number: that one rebuilds the package, not the runtime."""
    return _POST.sub("", version)
