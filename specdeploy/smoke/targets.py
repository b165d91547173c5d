"""What each kind of server can be asked for, and what is expected of it: NVIDIA's templates and OpenAI-compatible ones.

A deployment of ours has every capability; its expectations are made where its configuration is read.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.config.rules import PAIRS
from specdeploy.errors import ConfigError
from specdeploy.smoke.capabilities import CONTROL, COUNTS, ENGINES, GRPC, IDS, STREAM, STREAM_END, TRITON
from specdeploy.smoke.expectations import Expectations
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdeploy.config.schema import DeployConfig
    from specdeploy.openai import Dialect
    from specdeploy.smoke.runner import ClientFactory
    from specdeploy.triton.protocol import ModelMetadata

#: NVIDIA's model between the engines and the text, which our decoder does without.
POSTPROCESSING: Final = "postprocessing"
#: Why a server is not held to a limit.
UNTOLD: Final = "the server does not say how long a sequence may be"
#: What a server may mean when it says how long a sequence may be; less or more is a way to say nothing.
_TELLS_LENGTH: Final = range(16, 1_000_000_000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitUntold(Expectations):
    """What is expected of a server that does not say how long a sequence may be.

    ``max_seq_len`` is then that of the configuration, which the server has not promised.
    """


def tells_limit(expect: Expectations) -> bool:
    """Say whether ``max_seq_len`` is the server's own limit."""
    return not isinstance(expect, LimitUntold)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A server to test.

    Args:
        client_factory: Makes a client of it.

        expectations: What is expected of it.
    """

    client_factory: ClientFactory
    expectations: Expectations


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrontDoor:
    """NVIDIA's front door as the server describes it.

    Args:
        metadata: Its inputs and outputs.

        steps: The models of its ensemble; empty for a python model.

        streams: Whether an answer can come in pieces: it, or a step of it, is decoupled.

        engine: Whether the engine model of the target has an input ``input_ids``, so that it can be asked directly.
    """

    metadata: ModelMetadata
    steps: tuple[str, ...]
    streams: bool
    engine: bool

    @property
    def takes_drafts(self) -> bool:
        """Whether a request says how much is drafted, as with NVIDIA's ``tensorrt_llm_bls``."""
        return "num_draft_tokens" in self.metadata.input_types


def openai_expectations(
    dialect: Dialect, *, about: Mapping[str, Any], model: str, config: DeployConfig
) -> Expectations:
    """Return what to expect of an OpenAI-compatible server.

    It drafts as it was started to, and no request can have the target alone: losslessness is then a matter of recorded
    answers, or of a second server.

    Args:
        dialect: What the server offers.

        about: What ``/v1/models`` says of the model; vLLM tells the longest sequence there.

        model: The model's name on the server.

        config: The deployment that the server is compared with.

    Raises:
        ConfigError: The answers that are asked for are longer than the server's longest sequence.
    """
    offered = {IDS: dialect.ids, COUNTS: dialect.counts, STREAM: True, STREAM_END: dialect.stream_end}
    told = about.get("max_model_len")
    longest = told if isinstance(told, int) and not isinstance(told, bool) and told in _TELLS_LENGTH else None
    expect = dataclasses.replace(
        of_config(config, LimitUntold if longest is None else Expectations),
        models=(model,),
        front_door=model,
        second_door=None,
        draft_model=None,
        fixed_by="the server",
        max_seq_len=config.build.max_seq_len if longest is None else longest,
        metrics=False,
        capabilities=_offered(offered),
    )
    require_room(expect)
    return expect


def nvidia_expectations(door: FrontDoor, *, config: DeployConfig, metrics: bool) -> Expectations:
    """Return what to expect of NVIDIA's templates behind one of their front doors.

    Their ``ensemble`` drafts as its engine was built to; their ``tensorrt_llm_bls`` takes ``num_draft_tokens``, and
    tells the draft counts of the last round only (until 1.2.1), which is none that could be checked.

    Args:
        door: The front door.

        config: The deployment that the templates were filled in for.

        metrics: Whether the address of the metrics endpoint is known.

    Raises:
        ConfigError: The answers that are asked for are longer than the engines' longest sequence.
    """
    outputs = door.metadata.output_types
    offered = {
        TRITON: True,
        GRPC: True,
        IDS: "output_ids" in outputs,
        # Only we count rounds, and only we count for the whole request.
        COUNTS: "num_spec_steps" in outputs,
        CONTROL: door.takes_drafts,
        ENGINES: door.engine,
        STREAM: door.streams,
        STREAM_END: "finish_reason" in outputs,
    }
    drafts = door.takes_drafts and config.speculation.method in PAIRS
    engines = (names.TARGET, names.DRAFT) if drafts else (names.TARGET,)
    called = door.steps or (names.PREPROCESSING, POSTPROCESSING, *engines)
    expect = dataclasses.replace(
        of_config(config),
        models=(door.metadata.name, *called),
        front_door=door.metadata.name,
        second_door=None,
        draft_model=names.DRAFT if drafts else None,
        fixed_by="" if door.takes_drafts else f"the engine behind {door.metadata.name}",
        metrics=metrics,
        capabilities=_offered(offered),
    )
    require_room(expect)
    return expect


def require_room(expect: Expectations) -> None:
    """Stop where the answers that are compared cannot fit, whatever the tokenizer: no check could then pass.

    Args:
        expect: What is expected of a server; where its limit is not its own, nothing is known.

    Raises:
        ConfigError: A prompt and ``max_tokens`` are longer than ``max_seq_len``. No word is less than a token.
    """
    if not tells_limit(expect):
        return
    longest = max(expect.prompts, key=lambda prompt: len(prompt.text.split()))
    words = max(len(longest.text.split()), 1)
    if words + expect.max_tokens > expect.max_seq_len:
        raise ConfigError(
            f"smoke.max_tokens is {expect.max_tokens}, which does not fit: with prompt {longest.name}, of {words} "
            f"tokens or more, a sequence has {expect.max_seq_len} at most",
            hint="lower smoke.max_tokens, or serve with a longer build.max_seq_len",
        )


def ensemble_steps(model_config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the models that an ensemble calls, each once; none for another model.

    Args:
        model_config: The JSON of Triton's ``/v2/models/NAME/config``.
    """
    steps: Iterable[Mapping[str, Any]] = (model_config.get("ensemble_scheduling") or {}).get("step") or ()
    return tuple(dict.fromkeys(str(step["model_name"]) for step in steps))


def is_decoupled(model_config: Mapping[str, Any]) -> bool:
    """Say whether a model may send several responses to one request.

    Args:
        model_config: As for :func:`ensemble_steps`.
    """
    return bool((model_config.get("model_transaction_policy") or {}).get("decoupled"))


def of_config(config: DeployConfig, kind: type[Expectations] = Expectations) -> Expectations:
    """Return what a configuration says of any server with these models; which ones it has is left open.

    Args:
        config: The deployment.

        kind: What is made of it.
    """
    return kind(
        models=(),
        num_draft_tokens=config.speculation.num_draft_tokens,
        max_seq_len=config.build.max_seq_len,
        target_precision=config.target.precision,
        max_tokens=config.smoke.max_tokens,
        request_timeout_s=config.smoke.request_timeout_s,
        samples=config.smoke.samples,
        seed=config.smoke.seed,
        alpha=config.smoke.alpha,
        tie_margin=config.smoke.tie_margin,
        clients=config.smoke.clients,
        self_draft=config.smoke.self_draft,
    )


def _offered(by_capability: Mapping[str, bool]) -> frozenset[str]:
    return frozenset(name for name, offered in by_capability.items() if offered)
