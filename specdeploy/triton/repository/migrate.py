"""From an ``inflight_batcher_llm`` repository that was filled in by hand to a deployment of ours around its engines.

Gives the configuration, the facts of the engines and a note for every value that was met; the repository itself is then
made by the generator that makes all of them. Pure: engines and repository come in as values.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from specdeploy.config.leaves import assemble, schema
from specdeploy.config.rules import HEADS, PAIRS, check_config
from specdeploy.engine.tensorrt_llm.methods import lookahead_draft_len
from specdeploy.errors import RepositoryError
from specdeploy.findings import Finding
from specdeploy.triton.repository import names
from specdeploy.triton.repository.migrate_rules import Ledger, Place, engine_parameter, other_parameter
from specdeploy.triton.repository.nvidia import POSTPROCESSING
from specdeploy.triton.tensors import release_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.config.leaves import Value
    from specdeploy.config.schema import DeployConfig
    from specdeploy.triton.repository import RepoTree
    from specdeploy.triton.repository.built import BuiltEngine
    from specdeploy.triton.repository.facts import EngineFacts
    from specdeploy.triton.repository.notes import Note
    from specdeploy.triton.repository.nvidia import NvidiaModel, NvidiaRepository

#: Stands in the configuration for a folder that neither the repository nor the engines name.
UNKNOWN: Final = "checkpoints/not-known"
_DRAFT_TOKENS: Final = 4
_FRONT: Final = (names.ENSEMBLE, names.BLS)
_STEPS: Final = frozenset({names.PREPROCESSING, names.TARGET, POSTPROCESSING})
_QUEUE: Final = "dynamic_batching."
_POLICY: Final = "dynamic_batching.default_queue_policy."
# Fields that rules look at, or that follow from the model's role.
_KNOWN: Final = re.compile(
    r"(name|backend|platform|max_batch_size|model_transaction_policy\.decoupled|(input|output)\[.*"
    r"|instance_group\[[^\]]*\]\.(count|kind)|ensemble_scheduling\..*|dynamic_batching\..*)"
)
# Files that keep a version directory in git.
_PLACEHOLDERS: Final = frozenset({".tmp", ".gitkeep", ".keep", ".gitignore"})
_STEP: Final = re.compile(r"ensemble_scheduling\.step\[([^\]#]*)")
_TENSOR: Final = re.compile(r"(input|output)\[([^\]#]*)")
_FRACTION: Final = "kv_cache_free_gpu_mem_fraction"
_INSTANCES: Final = "instance_group[0].count"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Migration:
    """A deployment of ours that stands for theirs.

    Args:
        config: The deployment.
        values: The keys that its ``specdeploy.yaml`` gives.
        parts: Role -> the engine, as the repository has to know it.
        notes: What became of every value.
    """

    config: DeployConfig
    values: Mapping[str, Value]
    parts: Mapping[str, EngineFacts]
    notes: tuple[Note, ...]


def migrate(
    repository: NvidiaRepository,
    engines: Mapping[str, BuiltEngine],
    *,
    name: str,
    tokenizer: str,
    eos_token_ids: tuple[int, ...],
    templates: RepoTree | None = None,
) -> Migration:
    """Work out the deployment.

    Args:
        repository: What was filled in.
        engines: Role -> the engine that the repository names.
        name: Of the deployment.
        tokenizer: Folder of the tokenizer, as the configuration should name it.
        eos_token_ids: Ids that end an answer.
        templates: The templates that the repository was made from, to find code that was changed; None when they are
            not at hand.

    Raises:
        RepositoryError: The engines cannot make a deployment; ``findings`` says why.
        ConfigError: Their release is not known.
    """
    method = _method(repository, engines)
    ledger = Ledger()
    target = engines["target"]
    used = {role: engine for role, engine in engines.items() if role == "target" or method in PAIRS}
    _name_engines(ledger, used, name, method)
    _speculation(ledger, target, method)
    _engine_models(ledger, repository, target.release, method)
    _other_models(ledger, repository)
    _tensors(ledger, repository, target.release)
    _front_doors(ledger, repository)
    _foreign(ledger, repository)
    _code(ledger, repository, templates)
    _tokenizer(ledger, tokenizer, eos_token_ids)
    _checkpoints(ledger, tokenizer, method)
    if ledger.lines:
        ledger.values["repo.parameters"] = tuple(ledger.lines)
    config = configured(ledger.values)
    _require_window(config, target)
    if contradictions := check_config(config):
        raise RepositoryError("the deployment that would come of it contradicts itself", findings=contradictions)
    return Migration(
        config=config,
        values=ledger.values,
        parts={role: engine.facts(eos_token_ids) for role, engine in used.items()},
        notes=tuple(ledger.notes),
    )


def configured(values: Mapping[str, Value]) -> DeployConfig:
    """Return the configuration with *values* given and everything else at its default."""
    defaults = {leaf.path: leaf.default for leaf in schema().leaves() if leaf.default is not None}
    return assemble({**defaults, **values})


def _method(repository: NvidiaRepository, engines: Mapping[str, BuiltEngine]) -> str:
    target = engines["target"]
    # The draft of an engine that speculates by itself is never called.
    problems = [*_contradictions(engines if target.method == "draft_target" else {"target": target})]
    method = target.method
    if target.mode == 1:
        problems.append(
            _error(
                "no-speculation",
                f"{target.name} was built without speculation: it takes no draft tokens",
                "Build the target with --speculative_decoding_mode draft_tokens_external and --max_draft_len.",
            )
        )
    elif not method:
        problems.append(_error("mode", f"{target.name} has the speculative mode {target.mode}, which is not known"))
    if problems:
        raise RepositoryError("these engines make no deployment that speculates", findings=problems)
    # Without a draft model the tokens can still be looked up in the prompt: the engine does not mind whose they are.
    return "ngram" if method == "draft_target" and not repository.draft else method


def _contradictions(engines: Mapping[str, BuiltEngine]) -> Iterator[Finding]:
    releases = {engine.release for engine in engines.values()}
    if len(releases) > 1:
        built = ", ".join(f"{engine.name} by {engine.release}" for engine in engines.values())
        yield _error(
            "release",
            f"the engines were built by different releases: {built}",
            "A server runs one; build the other again.",
        )
    if len({engine.logits_dtype for engine in engines.values()}) > 1:
        built = ", ".join(f"{engine.name} {engine.logits_dtype}" for engine in engines.values())
        yield _error(
            "logits", f"the engines' logits have different types: {built}", "Build one again with --logits_dtype."
        )


def _name_engines(ledger: Ledger, engines: Mapping[str, BuiltEngine], name: str, method: str) -> None:
    target = engines["target"]
    values = ledger.values
    values |= {"name": name, "profile": "tensorrt_llm", "release": target.release, "speculation.method": method}
    ledger.kept("config.json version", target.release, f"release: {target.release}")
    for role, engine in engines.items():
        where = f"{engine.name}/config.json"
        if engine.precision:
            ledger.carried(f"{where} quant_algo, dtype", engine.precision, f"{role}.precision", engine.precision)
        else:
            ledger.lost(f"{where} quant_algo, dtype", "", "We have no name for this precision; a new build needs one.")
        if engine.kv_cache != "auto":
            ledger.carried(f"{where} kv_cache_quant_algo", engine.kv_cache, f"{role}.kv_cache", engine.kv_cache)
        for key in ("tp_size", "pp_size"):
            if (ranks := getattr(engine, key)) > 1:
                ledger.carried(f"{where} {key}", str(ranks), f"{role}.{key}", ranks)
    length = min(engine.max_seq_len for engine in engines.values())
    batch = min(engine.max_batch_size for engine in engines.values())
    ledger.carried("config.json max_seq_len", str(length), "build.max_seq_len", length)
    ledger.carried("config.json max_batch_size", str(batch), "build.max_batch_size", batch)
    values["tensorrt_llm.max_num_tokens"] = target.max_num_tokens
    values["tensorrt_llm.logits_dtype"] = target.logits_dtype


def _speculation(ledger: Ledger, target: BuiltEngine, method: str) -> None:
    values, longest = ledger.values, target.max_draft_len
    if method in {"draft_target", "ngram"}:
        drafts = max(1, min(_DRAFT_TOKENS, longest))
        values |= {"speculation.num_draft_tokens": drafts, "speculation.use_draft_logits": False}
        ledger.carried("config.json max_draft_len", str(longest), "speculation.max_draft_tokens", longest)
        ledger.changed(
            "request num_draft_tokens, left out",
            "0",
            f"speculation.num_draft_tokens: {drafts}",
            "Requests that say nothing speculate now; one that sends 0 is answered by the target alone.",
        )
        ledger.kept("request use_draft_logits, left out", "false", "speculation.use_draft_logits: false")
    if method == "ngram":
        why = "No draft model is named. The engine takes drafts from outside; they are looked up in the prompt."
        ledger.changed(f"{names.BLS} tensorrt_llm_draft_model_name", "", "speculation.method: ngram", why)
    if method in {"medusa", "eagle"}:
        values["speculation.tree_tokens"] = longest
    for key, name in _EXTRAS.items():
        if name in target.extras:
            ledger.carried(f"config.json {name}", str(target.extras[name]), key, target.extras[name])


_EXTRAS: Final = {
    "speculation.num_heads": "num_medusa_heads",
    "speculation.tree_depth": "num_eagle_layers",
    "speculation.num_beams": "redrafter_num_beams",
    "speculation.beam_tokens": "redrafter_draft_len_per_beam",
}


def _engine_models(ledger: Ledger, repository: NvidiaRepository, release: str, method: str) -> None:
    known = release_tensors(release).parameters
    for role, model in repository.engines.items():
        if role == "draft" and method not in PAIRS:
            ledger.lost(f"model {model.name}", "", f"The target's engine speculates by {method}, which has no draft.")
            continue
        for key, value in model.parameters.items():
            engine_parameter(ledger, Place(model=model.name, key=key, role=role, method=method), value, known)
        _unset(ledger, model)
        if _FRACTION not in model.parameters:
            why = "The backend would take 0.9 for each engine, one after the other; the caches must fit side by side."
            ledger.changed(f"{model.name} {_FRACTION}, left out", "0.9", f"{role}.kv_fraction: 0, as planned", why)
        _batch(ledger, model)
        if model.fields.get("backend") == "python":
            ledger.changed(f"{model.name} backend", "python", "tensorrtllm", "NVIDIA's backend in C++ serves it.")
    _queue(ledger, repository.models[repository.target])


def _batch(ledger: Ledger, model: NvidiaModel) -> None:
    size = model.field("max_batch_size", "triton_max_batch_size")
    if size not in {None, "1"}:
        why = "A request is one text; the engines batch requests in flight, up to build.max_batch_size."
        ledger.changed(f"{model.name} max_batch_size", size or "", "1", why)


def _queue(ledger: Ledger, model: NvidiaModel) -> None:
    where = model.name
    if size := model.field(f"{_POLICY}max_queue_size", "max_queue_size"):
        ledger.carried(f"{where} max_queue_size", size, "repo.max_queue_size", int(size))
    if timeout := model.field(f"{_POLICY}default_timeout_microseconds"):
        ms = max(1, int(timeout) // 1000)
        ledger.carried(f"{where} default_timeout_microseconds", timeout, "repo.queue_timeout_ms", ms)
    if levels := model.field(f"{_QUEUE}priority_levels"):
        ledger.carried(f"{where} priority_levels", levels, "repo.priority_levels", int(levels))
    delay = model.field(f"{_QUEUE}max_queue_delay_microseconds", "max_queue_delay_microseconds")
    if delay not in {None, "0"}:
        why = "Nothing waits for a batch to fill: the engine batches in flight."
        ledger.changed(f"{where} max_queue_delay_microseconds", delay or "", "0", why)
    if model.field(f"{_POLICY}timeout_action") == "DELAY":
        why = "A request that waits too long is refused, so that its client can try elsewhere."
        ledger.changed(f"{where} timeout_action", "DELAY", "REJECT", why)
    for field, value in model.fields.items():
        if field.startswith((f"{_QUEUE}priority_queue_policy", f"{_QUEUE}preserve_ordering")):
            ledger.lost(f"{where} {field}", value, "There is one policy for all requests.")


def _other_models(ledger: Ledger, repository: NvidiaRepository) -> None:
    for name in (names.ENSEMBLE, names.PREPROCESSING, POSTPROCESSING, names.BLS):
        model = repository.models.get(name)
        if model is None:
            continue
        for key, value in sorted(model.parameters.items(), key=lambda item: item[0] != "tokenizer_dir"):
            other_parameter(ledger, Place(model=name, key=key), value)
        _unset(ledger, model)
    _instances(ledger, repository)


def _instances(ledger: Ledger, repository: NvidiaRepository) -> None:
    counts = {name: _count(repository.models.get(name), placeholder) for name, placeholder in _COUNTS.items()}
    if (count := counts[names.PREPROCESSING]) is not None:
        where = f"{names.PREPROCESSING} instances"
        ledger.carried(where, str(count), "repo.preprocessing_instances", count)
    if (count := counts[names.BLS]) is not None:
        to = f"build.max_batch_size: {ledger.values['build.max_batch_size']}"
        why = "There, an instance answered one request at a time; here, one answers as many as the engines hold."
        ledger.changed(f"{names.BLS} instances", str(count), to, why)
    if (count := counts[POSTPROCESSING] or 1) > 1:
        ledger.changed(f"{POSTPROCESSING} instances", str(count), "none", "The decoder writes the text itself.")


_COUNTS: Final = {
    names.PREPROCESSING: "preprocessing_instance_count",
    POSTPROCESSING: "postprocessing_instance_count",
    names.BLS: "bls_instance_count",
}


def _count(model: NvidiaModel | None, placeholder: str) -> int | None:
    text = None if model is None else model.field(_INSTANCES, placeholder)
    return int(text) if text else None


def _tensors(ledger: Ledger, repository: NvidiaRepository, release: str) -> None:
    """Note inputs and outputs that the templates of the release do not have."""
    tables = release_tensors(release).models
    tables = {**tables, repository.target: tables[names.TARGET], repository.draft: tables[names.TARGET]}
    for name, model in repository.models.items():
        if name not in tables:
            continue
        known = {tensor.name for tensor in (*tables[name].inputs, *tables[name].outputs)}
        seen = dict.fromkeys((match[1], match[2]) for field in model.fields if (match := _TENSOR.match(field)))
        for kind, tensor in seen:
            if tensor not in known:
                why = "The templates have no such tensor; who sends or reads it must do without it."
                ledger.lost(f"{name} {kind} {tensor}", "", why)


def _front_doors(ledger: Ledger, repository: NvidiaRepository) -> None:
    """Note what clients will see otherwise: streaming, and steps that the templates do not have."""
    _transactions(ledger, repository)
    for name in _FRONT:
        model = repository.models.get(name)
        if model is None:
            continue
        steps = dict.fromkeys(match[1] for field in model.fields if (match := _STEP.match(field)))
        for step in steps:
            if step not in {*_STEPS, repository.target}:
                ledger.lost(f"{name} step {step}", "", "Our ensembles have two steps: preprocessing and the decoder.")


def _transactions(ledger: Ledger, repository: NvidiaRepository) -> None:
    """Carry over whether answers are streamed: clients of what is not decoupled may be unary ones."""
    doors = [name for name in (names.BLS, repository.target) if name in repository.models]
    fields = [repository.models[name].field("model_transaction_policy.decoupled", "decoupled_mode") for name in doors]
    unary = [name for name, value in zip(doors, fields, strict=True) if value != "true"]
    for name in unary if len(unary) == len(doors) else ():
        ledger.carried(f"{name} decoupled", "false", "repo.decoupled", new=False)
    if names.BLS in unary and len(unary) < len(doors):
        why = "`ensemble` streams, and both front doors are alike: clients of this one that are unary have to change."
        ledger.changed(f"{names.BLS} decoupled", "false", "true", why)


def _foreign(ledger: Ledger, repository: NvidiaRepository) -> None:
    """Note the models and settings that no deployment of ours has."""
    roles = {names.ENSEMBLE, names.BLS, names.PREPROCESSING, POSTPROCESSING, repository.target, repository.draft}
    # Rules have looked at the target's; a draft is mostly a copy of it.
    queue = repository.models[repository.target].fields
    for name, model in repository.models.items():
        if name not in roles:
            ledger.lost(f"model {name}", "", "It is not part of a deployment; serve it from a repository of its own.")
            continue
        for field, value in model.fields.items():
            if not _KNOWN.fullmatch(field):
                ledger.lost(f"{name} {field}", value, "Our models have no such setting.")
            elif field.startswith(_QUEUE) and value != queue.get(field):
                ledger.lost(
                    f"{name} {field}", value, "Requests wait once, in front of the decoder; see repo.max_queue_size."
                )


def _code(ledger: Ledger, repository: NvidiaRepository, templates: RepoTree | None) -> None:
    ours = (names.PREPROCESSING, POSTPROCESSING, names.BLS)
    code = {
        f"{name}/{path}": data
        for name in ours
        if name in repository.models
        for path, data in repository.models[name].files.items()
        if path.endswith(".py")
    }
    if templates is None and code:
        why = "Ours takes its place. Name the image's templates with --templates to see which files were changed."
        ledger.changed("python code", f"{len(code)} files", "our models", why)
    for name in repository.models:
        for path in repository.models[name].files:
            if not path.endswith((".py", "/")) and PurePosixPath(path).name not in _PLACEHOLDERS:
                ledger.lost(
                    f"file {name}/{path}", "", "Our models do not read it; take it along where code of yours does."
                )
    for path in repository.loose:
        ledger.lost(f"file {path}", "", "It belongs to no model.")
    for path, data in code.items() if templates is not None else ():
        if (templates or {}).get(path) != data:
            ledger.lost(f"code {path}", "", "It differs from the image's, and our models take its place.")


def _tokenizer(ledger: Ledger, tokenizer: str, eos_token_ids: tuple[int, ...]) -> None:
    ledger.values["target.tokenizer"] = tokenizer
    if not eos_token_ids:
        why = "Neither the tokenizer nor a generation_config.json beside it says which token ends an answer."
        ledger.lost("end_id, left out", "", f"{why} Requests must send end_id.")


def _checkpoints(ledger: Ledger, tokenizer: str, method: str) -> None:
    """Name the checkpoints, which neither side knows: an engine does not say what it was made of."""
    ledger.values["target.checkpoint"] = tokenizer
    to = f"target.checkpoint: {tokenizer}"
    why = "Engines do not name their checkpoints. This is the tokenizer's folder: correct it before a new build."
    ledger.changed("target checkpoint", "", to, why)
    if method in PAIRS | HEADS:
        ledger.values["draft.checkpoint"] = UNKNOWN
        ledger.changed("draft checkpoint", "", f"draft.checkpoint: {UNKNOWN}", "Correct it before a new build.")


def _unset(ledger: Ledger, model: NvidiaModel) -> None:
    for key in (*model.unset, *model.bare):
        ledger.unset(f"{model.name} {key}")


def _require_window(config: DeployConfig, target: BuiltEngine) -> None:
    """Refuse a lookahead window that the engine was not built for: the backend would at the first request."""
    speculation = config.speculation
    if speculation.method != "lookahead":
        return
    window = (speculation.window_size, speculation.ngram_size, speculation.verification_size)
    drafts = lookahead_draft_len(*window)
    if drafts != target.max_draft_len:
        message = (
            f"the window {window} needs {drafts} draft tokens, and {target.name} was built for {target.max_draft_len}"
        )
        hint = "Set lookahead_window_size, lookahead_ngram_size and lookahead_verification_set_size to what it has."
        raise RepositoryError("lookahead cannot be served", findings=(_error("lookahead", message, hint),))


def _error(code: str, message: str, hint: str = "") -> Finding:
    return Finding(severity="error", code=f"migrate.{code}", message=message, hint=hint)
