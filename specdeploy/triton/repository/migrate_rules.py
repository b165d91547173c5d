"""What becomes of each parameter of NVIDIA's models in a deployment of ours: the rules, and the ledger that they fill.

A rule looks at one value and says where it goes, why it changes, or that there is no place for it. Parameters of the
engines without a rule of their own go on as they are, when the backend of the release knows them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, TypeAlias

from specdeploy.triton.repository import names
from specdeploy.triton.repository.notes import Note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdeploy.config.leaves import Value

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_WORKER: Final = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"


@dataclasses.dataclass(kw_only=True)
class Ledger:
    """What was met so far, and what came of it.

    Args:
        values: Key path of ``specdeploy.yaml`` -> value.
        lines: Lines of ``repo.parameters``.
        notes: One for every value that was met.
    """

    values: dict[str, Value] = dataclasses.field(default_factory=dict)
    lines: list[str] = dataclasses.field(default_factory=list)
    notes: list[Note] = dataclasses.field(default_factory=list)

    def carried(self, where: str, value: str, key: str, new: Value) -> None:
        """Set *key* to *new*, which is what *value* said."""
        self.values[key] = new
        self.notes.append(Note(outcome="carried", where=where, value=value, to=f"{key}: {_shown(new)}"))

    def kept(self, where: str, value: str, to: str) -> None:
        """Note a value that is the same without a key of its own."""
        self.notes.append(Note(outcome="carried", where=where, value=value, to=to))

    def line(self, where: str, model: str, key: str, value: str) -> None:
        """Carry a parameter over as a line of ``repo.parameters``."""
        self.lines.append(f"{model} {key}={value}")
        self.kept(where, value, f"repo.parameters: {model} {key}={value}")

    def changed(self, where: str, value: str, to: str, why: str) -> None:
        """Note a value that is another one now."""
        self.notes.append(Note(outcome="changed", where=where, value=value, to=to, why=why))

    def unset(self, where: str) -> None:
        """Note a placeholder that was never filled in."""
        self.notes.append(Note(outcome="unset", where=where, value=""))

    def lost(self, where: str, value: str, why: str) -> None:
        """Note a value that has no place."""
        self.notes.append(Note(outcome="lost", where=where, value=value, why=why))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a parameter stands.

    Args:
        model: Their model.
        key: The parameter.
        role: Of an engine model: ``target`` or ``draft``; empty for the others.
        method: The deployment's method.
    """

    model: str
    key: str
    role: str = ""
    method: str = ""

    @property
    def where(self) -> str:
        """The place as notes name it."""
        return f"{self.model} {self.key}"


Rule: TypeAlias = "Callable[[Ledger, Place, str], None]"


def is_true(value: str) -> bool:
    """Say whether a parameter's text means true to NVIDIA's models."""
    return value.strip().lower() in _TRUE


def engine_parameter(ledger: Ledger, place: Place, value: str, known: frozenset[str]) -> None:
    """Apply the rule of an engine's parameter; *known* are those that the backend of the release takes."""
    rule = _ENGINE.get(place.key)
    if rule is not None:
        rule(ledger, place, value)
    elif place.key in known:
        ledger.line(place.where, names.ENGINE_MODELS[place.role], place.key, value)
    else:
        ledger.lost(place.where, value, "The backend of this release takes no such parameter.")


def other_parameter(ledger: Ledger, place: Place, value: str) -> None:
    """Apply the rule of a parameter of `preprocessing`, `postprocessing` or `tensorrt_llm_bls`."""
    rule = _OTHERS.get(place.model, {}).get(place.key)
    if rule is None:
        ledger.lost(place.where, value, "NVIDIA's templates have no such parameter, and neither have our models.")
    else:
        rule(ledger, place, value)


def _fraction(ledger: Ledger, place: Place, value: str) -> None:
    try:
        fraction = float(value)
    except ValueError:
        fraction = -1.0
    if 0 < fraction <= 1:
        ledger.carried(place.where, value, f"{place.role}.kv_fraction", fraction)
    else:
        ledger.lost(place.where, value, "It is no share of the free memory; the usual one is used.")


def _gpu_ids(ledger: Ledger, place: Place, value: str) -> None:
    first, more, _ = value.partition(";")
    parts = [part.strip() for part in first.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        ledger.lost(place.where, value, "It is no list of GPUs; the first ones are used.")
        return
    ledger.carried(place.where, first, f"{place.role}.gpu_ids", tuple(map(int, parts)))
    if more:
        why = "Several instances of one engine: run one server for each set of GPUs instead."
        ledger.lost(place.where, value, why)


def _participants(ledger: Ledger, place: Place, value: str) -> None:
    ledger.changed(place.where, value, "by speculation.fast_logits", "MPI ranks are numbered anew, draft first.")


def _fast_logits(ledger: Ledger, place: Place, value: str) -> None:
    if is_true(value):
        ledger.carried(place.where, value, "speculation.fast_logits", new=True)
    else:
        ledger.kept(place.where, value, "speculation.fast_logits: false")


def _decoding_mode(ledger: Ledger, place: Place, value: str) -> None:
    if value == place.method:
        ledger.kept(place.where, value, f"speculation.method: {value}")
    else:
        why = "The mode follows from what the engine was built for."
        ledger.changed(place.where, value, f"speculation.method: {place.method}", why)


def _choices(method: str) -> Rule:
    def rule(ledger: Ledger, place: Place, value: str) -> None:
        if place.method == method and place.role == "target":
            ledger.carried(place.where, value, "speculation.tree_choices", value)
        else:
            ledger.lost(place.where, value, f"The deployment speculates by {place.method}, which has no such tree.")

    return rule


def _lookahead(key: str) -> Rule:
    def rule(ledger: Ledger, place: Place, value: str) -> None:
        if place.method != "lookahead" or place.role != "target":
            ledger.lost(place.where, value, f"The deployment speculates by {place.method}.")
        elif value.isascii() and value.isdecimal() and int(value):
            ledger.carried(place.where, value, key, int(value))
        else:
            ledger.lost(place.where, value, "It is no whole number from 1 up.")

    return rule


def _fixed(expected: str, why: str, *, aliases: tuple[str, ...] = ()) -> Rule:
    """Return the rule of a parameter that has one value in every deployment of ours."""

    def rule(ledger: Ledger, place: Place, value: str) -> None:
        if value.strip().lower() in {expected.lower(), *aliases}:
            ledger.kept(place.where, value, f"{names.ENGINE_MODELS[place.role]} {place.key}")
        else:
            ledger.changed(place.where, value, expected, why)

    return rule


def _lost(why: str) -> Rule:
    def rule(ledger: Ledger, place: Place, value: str) -> None:
        ledger.lost(place.where, value, why)

    return rule


def _lost_unless(neutral: str, why: str) -> Rule:
    def rule(ledger: Ledger, place: Place, value: str) -> None:
        if value.strip().lower() == neutral:
            ledger.kept(place.where, value, "it is so without a setting")
        else:
            ledger.lost(place.where, value, why)

    return rule


def _policy(ledger: Ledger, place: Place, value: str) -> None:
    if value == "guaranteed_no_evict":
        ledger.kept(place.where, value, f"{names.ENGINE_MODELS[place.role]} {place.key}")
    else:
        ledger.line(place.where, names.ENGINE_MODELS[place.role], place.key, value)


def _engine_dir(ledger: Ledger, place: Place, value: str) -> None:
    ledger.kept(place.where, value, f"{names.ENGINE_MODELS[place.role]} gpt_model_path: the engine stays where it is")


def _worker(ledger: Ledger, place: Place, value: str) -> None:
    if value == _WORKER:
        ledger.kept(place.where, value, "written where an orchestrator starts the ranks")
    else:
        ledger.changed(place.where, value, _WORKER, "NVIDIA's image keeps it there.")


_NOT_TEXT: Final = "Deployments of ours read and write text only."
_ENCODER: Final = "Deployments of ours have no encoder."
_ENGINE: Final[Mapping[str, Rule]] = {
    "gpt_model_path": _engine_dir,
    "gpt_model_type": _fixed(
        "inflight_fused_batching",
        "Requests are batched in flight; V1 is gone since 0.20.",
        aliases=("inflight_batching",),
    ),
    "enable_kv_cache_reuse": _fixed(
        "true", "Each round sends the whole text again; without it all of it would be computed again.", aliases=("1",)
    ),
    "exclude_input_in_output": _fixed(
        "false", "Up to 1.2.1 it breaks the draft loop (tensorrtllm_backend#678); requests ask for it.", aliases=("0",)
    ),
    "max_beam_width": _fixed("1", "Speculation works without beams."),
    "FORCE_CPU_ONLY_INPUT_TENSORS": _fixed("no", "Inputs may stay where they are."),
    "executor_worker_path": _worker,
    "kv_cache_free_gpu_mem_fraction": _fraction,
    "gpu_device_ids": _gpu_ids,
    "participant_ids": _participants,
    "num_nodes": _lost_unless("1", "Engines on several machines are not placed."),
    "batch_scheduler_policy": _policy,
    "decoding_mode": _decoding_mode,
    "medusa_choices": _choices("medusa"),
    "eagle_choices": _choices("eagle"),
    "lookahead_window_size": _lookahead("speculation.window_size"),
    "lookahead_ngram_size": _lookahead("speculation.ngram_size"),
    "lookahead_verification_set_size": _lookahead("speculation.verification_size"),
    "speculative_decoding_fast_logits": _fast_logits,
    "encoder_model_path": _lost(_ENCODER),
    "cross_kv_cache_fraction": _lost(_ENCODER),
    "enable_trt_overlap": _lost("It has no effect any more."),
}


def _tokenizer(ledger: Ledger, place: Place, value: str) -> None:
    ledger.carried(place.where, value, "target.tokenizer", value)


def _special_tokens(ledger: Ledger, place: Place, value: str) -> None:
    if is_true(value):
        ledger.kept(place.where, value, f"{names.PREPROCESSING} add_special_tokens")
    else:
        ledger.line(place.where, names.PREPROCESSING, "add_special_tokens", "false")


def _same_tokenizer(ledger: Ledger, place: Place, value: str) -> None:
    if ledger.values.get("target.tokenizer") in {value, None}:
        ledger.kept(place.where, value, "target.tokenizer")
    else:
        ledger.lost(place.where, value, "One tokenizer reads and writes: that of `preprocessing`.")


def _skip(ledger: Ledger, place: Place, value: str) -> None:
    if is_true(value):
        ledger.kept(place.where, value, "it is so without a setting")
    else:
        ledger.lost(place.where, value, "Special tokens are always left out of the text; output_ids has them.")


def _accumulate(ledger: Ledger, place: Place, value: str) -> None:
    if is_true(value):
        ledger.lost(place.where, value, "Streamed answers bring only what is new; clients put it together.")
    else:
        ledger.kept(place.where, value, "streamed answers bring only what is new")


def _engine_name(role: str) -> Rule:
    def rule(ledger: Ledger, place: Place, value: str) -> None:
        ours = names.ENGINE_MODELS[role]
        if value == ours:
            ledger.kept(place.where, value, f"{names.DECODER} {place.key}")
        else:
            ledger.changed(place.where, value, ours, f"The {role}'s model has this name in every deployment.")

    return rule


_MULTIMODAL: Final = _lost(_NOT_TEXT)
_KIND: Final = _lost("tokenizer.json says what kind it is.")
_OTHERS: Final[Mapping[str, Mapping[str, Rule]]] = {
    names.PREPROCESSING: {
        "tokenizer_dir": _tokenizer,
        "tokenizer_type": _KIND,
        "add_special_tokens": _special_tokens,
        "gpt_model_path": lambda ledger, place, value: ledger.kept(place.where, value, "only pictures need it here"),
        "engine_dir": lambda ledger, place, value: ledger.kept(place.where, value, "only pictures need it here"),
        "multimodal_model_path": _MULTIMODAL,
        "visual_model_path": _MULTIMODAL,
        "max_num_images": _MULTIMODAL,
    },
    "postprocessing": {"tokenizer_dir": _same_tokenizer, "tokenizer_type": _KIND, "skip_special_tokens": _skip},
    names.BLS: {
        "tensorrt_llm_model_name": _engine_name("target"),
        "tensorrt_llm_draft_model_name": _engine_name("draft"),
        "accumulate_tokens": _accumulate,
        "multimodal_encoders_name": _MULTIMODAL,
    },
}


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
