"""The shape of ``specdeploy.yaml``: frozen values with their defaults, and nothing that reads a file.

Every default of the configuration lives here and nowhere else. ``describe`` in a field's metadata is the comment that
``specdeploy init`` writes above the key.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeAlias

Precision: TypeAlias = Literal["fp32", "int8", "int4"]
Profile: TypeAlias = Literal["cpu"]
Method: TypeAlias = Literal["draft_target"]


def option(  # a field's type is what its annotation says, as with `dataclasses.field` itself
    default: Any = dataclasses.MISSING,  # noqa: ANN401
    *,
    describe: str,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:  # noqa: ANN401
    """Declare one key: its default (none means required), its comment, and the least and greatest value it accepts.

    For a list the bounds are those of each item.
    """
    metadata = {"describe": describe, "minimum": minimum, "maximum": maximum}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One of the two checkpoints and how its engine is compiled."""

    checkpoint: str = option(describe="Hugging Face checkpoint folder, relative to this file.")
    precision: Precision = option("fp32", describe="Weights of the engine: fp32, int8 or int4.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeculationConfig:
    """How the deployment speculates unless a request says otherwise."""

    method: Method = option("draft_target", describe="The speculative method.")
    num_draft_tokens: int = option(
        4, describe="Tokens that the draft proposes each round; a request may ask for another number.", minimum=1
    )
    use_draft_logits: bool = option(
        True, describe="Sampled requests: accept by rejection sampling on the draft's logits (false: by token match)."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildConfig:
    """Limits that the engines are built for, and where they go."""

    engines_dir: str = option("engines", describe="Where compiled engines are kept.")
    max_seq_len: int = option(1024, describe="Longest prompt plus answer, in tokens.", minimum=16)
    max_batch_size: int = option(4, describe="Sequences whose KV cache each engine holds at once.", minimum=1)
    timeout_s: float = option(1800.0, describe="A build step that runs longer is ended (seconds).", minimum=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepositoryConfig:
    """The generated Triton model repository."""

    path: str = option("triton_repo/models", describe="Where the Triton model repository is written.")
    release: str = option("1.2.1", describe="TensorRT-LLM release whose tensor names the front door uses.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """How the server is started."""

    host: str = option("127.0.0.1", describe="Address that the server binds.")
    http_port: int = option(0, describe="0 takes a free port.", minimum=0, maximum=65535)
    grpc_port: int = option(0, describe="0 takes a free port.", minimum=0, maximum=65535)
    metrics_port: int = option(0, describe="0 takes a free port.", minimum=0, maximum=65535)
    startup_timeout_s: float = option(120.0, describe="Not ready after this many seconds is an error.", minimum=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmokeConfig:
    """The smoke test."""

    max_tokens: int = option(32, describe="Length of the answers that are compared.", minimum=4)
    request_timeout_s: float = option(60.0, describe="Every call ends within this many seconds.", minimum=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """The load test: speculation against control, in interleaved pairs."""

    prompts: str = option("code", describe="A bundled prompt set (code, chat) or a JSONL file with a `text` per line.")
    concurrency: tuple[int, ...] = option((1,), describe="Requests in flight, one measurement for each.", minimum=1)
    requests: int = option(6, describe="Requests in each half of a pair.", minimum=1)
    pairs: int = option(5, describe="Pairs (control, speculation) at each concurrency.", minimum=1)
    warmup_requests: int = option(2, describe="Requests before each concurrency that are not measured.", minimum=0)
    max_tokens: int = option(64, describe="Longest answer, in tokens.", minimum=2)
    temperature: float = option(0.0, describe="0 decodes greedily.", minimum=0)
    top_p: float = option(1.0, describe="Nucleus of sampled requests; unused at temperature 0.", minimum=0, maximum=1)
    seed: int = option(0, describe="Seed of the prompt order and of sampled requests.", minimum=0)
    request_timeout_s: float = option(120.0, describe="A request that takes longer counts as an error.", minimum=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateConfig:
    """What CI insists on."""

    rules: tuple[str, ...] = option(
        (
            "error_rate <= 0",
            "spec_decode_acceptance_length >= 2",
            "speedup@1 >= 1.0",
        ),
        describe="`metric[.statistic][@concurrency] comparison number[unit]`, one rule a line.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Where results go."""

    path: str = option("reports", describe="Folder of smoke.json, load.json, gate.json and report.html.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeployConfig:
    """One deployment: everything that ``specdeploy.yaml`` says, resolved.

    Paths are as written; ``base_dir`` of the loader's result says what they are relative to.
    """

    name: str = option(describe="Name of the deployment, used in reports.")
    profile: Profile = option("cpu", describe="Engine profile: cpu.")
    target: ModelConfig = option(describe="The large model, whose distribution every answer has.")
    draft: ModelConfig = option(describe="The small model that proposes tokens; it shares the target's tokenizer.")
    speculation: SpeculationConfig = option(SpeculationConfig(), describe="How the deployment speculates.")
    build: BuildConfig = option(BuildConfig(), describe="Engine limits and the engine store.")
    repo: RepositoryConfig = option(RepositoryConfig(), describe="The Triton model repository.")
    serve: ServeConfig = option(ServeConfig(), describe="How the server is started.")
    smoke: SmokeConfig = option(SmokeConfig(), describe="The smoke test.")
    load: LoadConfig = option(LoadConfig(), describe="The load test: speculation against control, in pairs.")
    gate: GateConfig = option(GateConfig(), describe="What CI insists on.")
    report: ReportConfig = option(ReportConfig(), describe="Where results go.")
