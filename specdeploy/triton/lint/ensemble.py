"""Checks of ensembles: every step, tensor and type, as Triton checks them after it has loaded all the engines.

The rules are those of Triton's ``ensemble_utils.cc`` (release 2.51), found here in milliseconds instead.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, NamedTuple

from specdeploy.triton.lint.loaded import Repository, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.findings import Finding
    from specdeploy.triton.pbtxt import EnsembleStep, ModelConfig, Tensor


_UNTYPED: Final = "TYPE_INVALID"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Use:
    """One place where an ensemble's tensor is given or taken."""

    by: str
    tensor: Tensor
    batched: bool

    @property
    def full_dims(self) -> tuple[int, ...]:
        return (-1, *self.tensor.dims) if self.batched else self.tensor.dims


class _Side(NamedTuple):
    """The inputs or the outputs of a step's model, and where their use is noted."""

    tensors: tuple[Tensor, ...]
    batched: bool
    uses: dict[str, list[_Use]]


def ensembles(repository: Repository) -> Iterator[Finding]:
    """Every ensemble has steps, whose models, tensors and types fit together."""
    configs = repository.configs()
    for directory, config in configs.items():
        if config.platform == "ensemble":
            where = repository.models[directory].where
            yield from _Ensemble(config, configs, set(repository.models), where).findings()


class _Ensemble:
    """One ensemble and the models it may name."""

    def __init__(self, config: ModelConfig, known: Mapping[str, ModelConfig], models: set[str], where: str) -> None:
        self._config = config
        self._known = known
        self._models = models
        self._where = where
        self._given: dict[str, list[_Use]] = {}
        self._taken: dict[str, list[_Use]] = {}

    def findings(self) -> Iterator[Finding]:
        if not self._config.steps:
            yield error("ensemble.no-steps", "the ensemble has no steps", where=self._where)
            return
        self._note_own_tensors()
        complete = True
        for number, step in enumerate(self._config.steps):
            known = self._known.get(step.model_name)
            complete = complete and known is not None
            if step.model_name not in self._models:
                yield self._error(
                    "ensemble.unknown-model", f"step {number} names {step.model_name!r}, which is not in the repository"
                )
            elif known is not None:
                yield from self._step(number, step, known)
        if complete:
            yield from self._flow()

    def _note_own_tensors(self) -> None:
        batched = self._config.max_batch_size > 0
        for tensor in self._config.inputs:
            self._note(self._given, tensor.name, "the ensemble's input", tensor, batched)
        for tensor in self._config.outputs:
            self._note(self._taken, tensor.name, "the ensemble's output", tensor, batched)

    def _step(self, number: int, step: EnsembleStep, model: ModelConfig) -> Iterator[Finding]:
        label = f"step {number} ({step.model_name})"
        batched = model.max_batch_size > 0
        for inner, outer in step.input_map.items():
            yield from self._mapped(f"{label} input", inner, outer, _Side(model.inputs, batched, self._taken))
        for inner, outer in step.output_map.items():
            yield from self._mapped(f"{label} output", inner, outer, _Side(model.outputs, batched, self._given))
        for tensor in model.inputs:
            if not tensor.optional and tensor.name not in step.input_map:
                yield self._error("ensemble.input-missing", f"{label} does not feed the required input {tensor.name}")
        if model.max_batch_size < self._config.max_batch_size:
            yield self._error(
                "ensemble.batch-size",
                f"{label} takes batches of {model.max_batch_size}, the ensemble of {self._config.max_batch_size}",
            )
        if model.decoupled and not self._config.decoupled:
            yield warning(
                "ensemble.decoupled",
                f"{label} is decoupled and the ensemble does not say so; it behaves as decoupled all the same",
                where=self._where,
                hint="model_transaction_policy { decoupled: true }",
            )

    def _mapped(self, label: str, inner: str, outer: str, side: _Side) -> Iterator[Finding]:
        tensor = next((tensor for tensor in side.tensors if tensor.name == inner), None)
        if tensor is None:
            yield self._error("ensemble.unknown-tensor", f"{label} {inner!r} is not a tensor of that model")
        else:
            self._note(side.uses, outer, f"{label} {inner}", tensor, side.batched)

    @staticmethod
    def _note(uses: dict[str, list[_Use]], name: str, by: str, tensor: Tensor, batched: bool) -> None:
        uses.setdefault(name, []).append(_Use(by=by, tensor=tensor, batched=batched))

    def _flow(self) -> Iterator[Finding]:
        """Yield what is wrong between the steps, once all of them are known."""
        for name, takers in self._taken.items():
            givers = self._given.get(name, [])
            if not givers:
                yield self._error("ensemble.unproduced", f"{name} is needed by {takers[0].by}, and nothing gives it")
            for taker in takers:
                for giver in givers[:1]:
                    yield from self._compare(name, giver, taker)
        for name, givers in self._given.items():
            if len(givers) > 1:
                yield self._error("ensemble.produced-twice", f"{name} is given by {givers[0].by} and by {givers[1].by}")
        for tensor in self._config.inputs:
            if tensor.name not in self._taken:
                yield self._error("ensemble.input-unused", f"the input {tensor.name} goes to no step")

    def _compare(self, name: str, giver: _Use, taker: _Use) -> Iterator[Finding]:
        given, taken = giver.tensor, taker.tensor
        if _UNTYPED in {given.data_type, taken.data_type}:
            return  # a finding of its own, about the model that leaves it out
        if given.data_type != taken.data_type:
            yield self._error(
                "ensemble.type-differs",
                f"{name} is {given.data_type} for {giver.by} and {taken.data_type} for {taker.by}",
            )
        elif not (_fits(given.dims, taken.dims) or _fits(giver.full_dims, taker.full_dims)):
            yield self._error(
                "ensemble.shape-differs",
                f"{name} has dims {list(given.dims)} for {giver.by} and {list(taken.dims)} for {taker.by}",
            )
        if giver.by == "the ensemble's input" and given.optional and not taken.optional:
            yield warning(
                "ensemble.optional-differs",
                f"{name} may be left out of a request, and {taker.by} requires it",
                where=self._where,
            )

    def _error(self, code: str, message: str) -> Finding:
        return error(code, message, where=self._where)


def _fits(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Say whether two shapes can be the same; -1 is any length."""
    return len(one) == len(other) and all(a == b or -1 in {a, b} for a, b in zip(one, other, strict=True))
