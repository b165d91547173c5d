"""Checks of ensembles: every step, tensor and type, as Triton checks them after it has loaded all the engines.

The rules are those of Triton's ``ensemble_utils.cc`` (release 2.51), found here in milliseconds instead.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, NamedTuple

from specdeploy.triton.lint.loaded import Model, Repository, error, warning
from specdeploy.triton.lint.tensors import UNTYPED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.findings import Finding
    from specdeploy.triton.pbtxt import EnsembleStep, ModelConfig, Tensor

_OWN_INPUT: Final = "the ensemble's input"


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
    for directory, config in repository.configs().items():
        if config.platform == "ensemble":
            yield from _Ensemble(repository.models[directory], config, repository.models).findings()


def cycles(repository: Repository) -> Iterator[Finding]:
    """No ensemble is a step of itself, by whatever detour."""
    steps = {
        name: {step.model_name for step in config.steps}
        for name, config in repository.configs().items()
        if config.platform == "ensemble"
    }
    for name in steps:
        if name in _reachable(name, steps):
            yield error(
                "ensemble.cycle",
                f"the steps of {name} lead back to it",
                where=repository.models[name].where,
                hint="name the model that does the work, not the ensemble",
            )


def _reachable(name: str, steps: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = list(steps[name])
    while todo:
        found = todo.pop()
        if found not in seen:
            seen.add(found)
            todo += steps.get(found, ())
    return seen


class _Ensemble:
    """One ensemble and the models it may name."""

    def __init__(self, model: Model, config: ModelConfig, models: Mapping[str, Model]) -> None:
        self._model = model
        self._config = config
        self._models = models
        self._given: dict[str, list[_Use]] = {}
        self._taken: dict[str, list[_Use]] = {}

    def findings(self) -> Iterator[Finding]:
        if not self._config.steps:
            yield self._error("ensemble.no-steps", "the ensemble has no steps", "ensemble_scheduling { step [ ... ] }")
            return
        if self._config.instance_group:
            yield self._error(
                "ensemble.instance-group", "an ensemble has no instances of its own", "leave instance_group out"
            )
        self._note_own_tensors()
        complete = True
        for number, step in enumerate(self._config.steps):
            known = self._models.get(step.model_name)
            complete = complete and known is not None and known.config is not None
            yield from self._place(number, step)
            if known is not None and known.config is not None:
                yield from self._step(number, step, known.config)
        if complete:
            yield from self._flow()

    def _note_own_tensors(self) -> None:
        batched = self._config.max_batch_size > 0
        for tensor in self._config.inputs:
            self._note(self._given, tensor.name, _OWN_INPUT, tensor, batched)
        for tensor in self._config.outputs:
            self._note(self._taken, tensor.name, "the ensemble's output", tensor, batched)

    def _place(self, number: int, step: EnsembleStep) -> Iterator[Finding]:
        """Yield what is wrong with the step itself: which model, which version, and that it has maps at all."""
        known = self._models.get(step.model_name)
        if known is None:
            named = f"names {step.model_name!r}, which is not in the repository" if step.model_name else "has no model"
            yield self._error(
                "ensemble.unknown-model", f"step {number} {named}", f"one of {', '.join(sorted(self._models))}"
            )
        elif step.model_version > 0 and str(step.model_version) not in known.versions:
            yield self._error(
                "ensemble.model-version",
                f"step {number} asks for version {step.model_version} of {step.model_name}, which has "
                f"{', '.join(known.versions) or 'none'}",
                "model_version: -1 is the newest",
            )
        for field, pairs in (("input_map", step.input_map), ("output_map", step.output_map)):
            if not pairs:
                yield self._error(
                    "ensemble.map-missing",
                    f"step {number} ({step.model_name}) has no {field}",
                    "name the model's tensors and the ensemble's",
                )

    def _step(self, number: int, step: EnsembleStep, model: ModelConfig) -> Iterator[Finding]:
        label = f"step {number} ({step.model_name})"
        batched = model.max_batch_size > 0
        for inner, outer in step.input_map.items():
            yield from self._mapped(f"{label} input", inner, outer, _Side(model.inputs, batched, self._taken))
        for inner, outer in step.output_map.items():
            yield from self._mapped(f"{label} output", inner, outer, _Side(model.outputs, batched, self._given))
            if [tensor.name for tensor in model.outputs].count(inner) > 1:
                yield self._error(
                    "ensemble.produced-twice",
                    f"{label} declares its output {inner} more than once, so {outer} is given more than once",
                    "declare it once",
                )
        for tensor in model.inputs:
            if not tensor.optional and tensor.name not in step.input_map:
                yield self._error(
                    "ensemble.input-missing",
                    f"{label} does not feed the required input {tensor.name}",
                    f'input_map {{ key: "{tensor.name}" ... }}',
                )
        if model.max_batch_size < self._config.max_batch_size:
            yield self._error(
                "ensemble.batch-size",
                f"{label} takes batches of {model.max_batch_size}, the ensemble of {self._config.max_batch_size}",
                "lower the ensemble's max_batch_size",
            )
        if model.decoupled and not self._config.decoupled:
            yield warning(
                "ensemble.decoupled",
                f"{label} is decoupled and the ensemble does not say so; it behaves as decoupled all the same",
                where=self._model.where,
                hint="model_transaction_policy { decoupled: true }",
            )

    def _mapped(self, label: str, inner: str, outer: str, side: _Side) -> Iterator[Finding]:
        tensor = next((tensor for tensor in side.tensors if tensor.name == inner), None)
        if tensor is None:
            yield self._error(
                "ensemble.unknown-tensor",
                f"{label} {inner!r} is not a tensor of that model",
                f"one of {', '.join(tensor.name for tensor in side.tensors) or 'none'}",
            )
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
                yield self._error(
                    "ensemble.unproduced",
                    f"{name} is needed by {takers[0].by}, and nothing gives it",
                    "map a step's output to it",
                )
            for taker in takers:
                for giver in givers[:1]:
                    yield from self._compare(name, giver, taker)
        for name, givers in self._given.items():
            if len({giver.by for giver in givers}) > 1:
                yield self._error(
                    "ensemble.produced-twice",
                    f"{name} is given by {givers[0].by} and by {givers[1].by}",
                    "give each tensor of the ensemble a name of its own",
                )
        for tensor in self._config.inputs:
            if tensor.name not in self._taken:
                yield self._error(
                    "ensemble.input-unused", f"the input {tensor.name} goes to no step", "map it, or leave it out"
                )
        yield from self._waiting()

    def _waiting(self) -> Iterator[Finding]:
        """Yield the steps that wait for each other: each needs what only another of them gives."""
        here = {tensor.name for tensor in self._config.inputs}
        left = list(enumerate(self._config.steps))
        while ready := [(n, step) for n, step in left if here.issuperset(step.input_map.values())]:
            here |= {name for _, step in ready for name in step.output_map.values()}
            left = [item for item in left if item not in ready]
        # What nothing gives at all is a finding of its own.
        if left and all(name in self._given for _, step in left for name in step.input_map.values()):
            listed = ", ".join(f"{number} ({step.model_name})" for number, step in left)
            yield self._error(
                "ensemble.tensor-cycle", f"the steps {listed} wait for each other's outputs", "break the circle"
            )

    def _compare(self, name: str, giver: _Use, taker: _Use) -> Iterator[Finding]:
        given, taken = giver.tensor, taker.tensor
        if UNTYPED in {given.data_type, taken.data_type} or not (given.dims and taken.dims):
            return  # a finding of its own, about the model that leaves it out
        if given.data_type != taken.data_type:
            yield self._error(
                "ensemble.type-differs",
                f"{name} is {given.data_type} for {giver.by} and {taken.data_type} for {taker.by}",
                "give both the same data_type",
            )
        elif not (_fits(given.dims, taken.dims) or _fits(giver.full_dims, taker.full_dims)):
            yield self._error(
                "ensemble.shape-differs",
                f"{name} has dims {list(given.dims)} for {giver.by} and {list(taken.dims)} for {taker.by}",
                "give both the same dims; -1 fits any length",
            )
        if giver.by == _OWN_INPUT and given.optional and not taken.optional:
            yield warning(
                "ensemble.optional-differs",
                f"{name} may be left out of a request, and {taker.by} requires it",
                where=self._model.at(f'"{name}"'),
                hint="make both optional, or neither",
            )

    def _error(self, code: str, message: str, hint: str) -> Finding:
        return error(code, message, where=self._model.where, hint=hint)


def _fits(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Say whether two shapes can be the same; -1 is any length."""
    return len(one) == len(other) and all(a == b or -1 in {a, b} for a, b in zip(one, other, strict=True))
