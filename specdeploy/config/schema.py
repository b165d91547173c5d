"""The shape of ``specdeploy.yaml``: frozen values with their defaults, and nothing that reads a file.

Every default of the configuration lives here and nowhere else. ``describe`` in a field's metadata is the comment that
``specdeploy init`` writes above the key.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdeploy.config.draft_lengths import spell_entry
from specdeploy.gate.spelling import spell_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Precision: TypeAlias = Literal[
    "auto",
    "fp32",
    "fp16",
    "bf16",
    "int8",
    "int4",
    "fp8",
    "nvfp4",
    "int8_sq",
    "int8_wo",
    "int4_wo",
    "int4_awq",
    "w4a8_awq",
]
KvCache: TypeAlias = Literal["auto", "fp8", "int8"]
Profile: TypeAlias = Literal["cpu", "tensorrt_llm", "llmapi"]
Method: TypeAlias = Literal["draft_target", "medusa", "eagle", "redrafter", "lookahead", "ngram", "eagle3", "mtp"]
Converter: TypeAlias = Literal["scripts", "modelopt"]
RunnerName: TypeAlias = Literal["local", "container", "slurm"]
ServeRunner: TypeAlias = Literal["auto", "embedded", "local", "container"]
ContainerEngine: TypeAlias = Literal["docker", "podman", "apptainer"]
LogitsType: TypeAlias = Literal["float32", "float16"]
Layout: TypeAlias = Literal["directory", "object_store"]
LoadShape: TypeAlias = Literal["closed", "constant", "poisson", "gamma", "trace"]
LoadProtocol: TypeAlias = Literal["grpc", "http"]
ServingMode: TypeAlias = Literal["auto", "single", "leader", "orchestrator"]

#: The longest time-out (seconds): a week. Clocks of the operating system cannot wait for any number of seconds.
_LONGEST_S: Final = 604_800


def option(  # a field's type is what its annotation says, as with `dataclasses.field` itself
    default: Any = dataclasses.MISSING,  # noqa: ANN401
    *,
    describe: str,
    minimum: float | None = None,
    maximum: float | None = None,
    spell: Callable[[Sequence[tuple[str, str]]], str] | None = None,
) -> Any:  # noqa: ANN401
    """Declare one key: its default (none means required), its comment, and the least and greatest value it accepts.

    For a list the bounds are those of each item. ``spell`` makes the text of an item that YAML made a mapping of.
    """
    metadata = {"describe": describe, "minimum": minimum, "maximum": maximum, "spell": spell}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One of the two checkpoints and how its engine is compiled."""

    checkpoint: str = option(describe="Hugging Face checkpoint folder, relative to this file.")
    tokenizer: str = option("", describe="Folder of the tokenizer; for a TensorRT-LLM checkpoint, which holds none.")
    precision: Precision = option(
        "auto",
        describe="Weights of the engine: fp32, int8, int4 on a CPU; bf16, fp8, int4_awq, ... on GPUs. auto: as stored.",
    )
    kv_cache: KvCache = option("auto", describe="KV cache of a GPU engine: auto (as the weights compute), fp8 or int8.")
    tp_size: int = option(1, describe="GPUs that share every layer (tensor parallelism).", minimum=1)
    pp_size: int = option(1, describe="Stages of layers, on a GPU each (pipeline parallelism).", minimum=1)
    ep_size: int = option(1, describe="GPUs that share the experts of a mixture (expert parallelism).", minimum=1)
    gpu_ids: tuple[int, ...] = option(
        (), describe="GPUs that the engine's ranks are served on, in their order. Empty: the first ones.", minimum=0
    )
    kv_fraction: float = option(
        0.0,
        describe="Of the GPU memory that is free when the engine loads (target first): its KV cache. 0: as planned.",
        minimum=0,
        maximum=1,
    )
    extra_convert_args: tuple[str, ...] = option(
        (), describe="Further arguments of the converter, such as `--use_parallel_embedding`, one a line."
    )
    extra_build_args: tuple[str, ...] = option(
        (), describe="Further arguments of trtllm-build, one a line, checked against the release's own."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftConfig(ModelConfig):
    """The draft: a checkpoint, the head of a method that has one, or nothing."""

    checkpoint: str = option(
        "", describe="Draft checkpoint, or the head's folder (medusa, eagle, redrafter, eagle3); lookahead needs none."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeculationConfig:
    """How the deployment speculates unless a request says otherwise."""

    method: Method = option(
        "draft_target", describe="draft_target; on GPUs also medusa, eagle, redrafter, lookahead, ngram, eagle3, mtp."
    )
    num_draft_tokens: int = option(
        4, describe="Tokens that the draft proposes each round; a request may ask for another number.", minimum=1
    )
    max_draft_tokens: int = option(
        0, describe="The most that a request may ask for; a GPU engine is built for it. 0: num_draft_tokens.", minimum=0
    )
    use_draft_logits: bool = option(
        True, describe="Sampled requests: accept by rejection sampling on the draft's logits (false: by token match)."
    )
    adaptive: bool = option(
        False,
        describe="Requests that name no number draft as much as pays, by acceptance, cost and load; at most "
        "num_draft_tokens.",
    )
    draft_len_schedule: tuple[str, ...] = option(
        (),
        describe="`requests: drafts`, one a line: from so many requests decoded at once, at most so many drafts.",
        spell=spell_entry,
    )
    fast_logits: bool = option(
        False, describe="Draft logits go from GPU to GPU over MPI, not through Triton; orchestrator mode, no spawning."
    )
    tree_choices: str = option(
        "", describe="medusa, eagle: paths of the tree, such as {0},{0,0},{1}. Empty: the backend's own tree."
    )
    tree_tokens: int = option(63, describe="medusa, eagle: tokens of the largest tree.", minimum=1)
    num_heads: int = option(4, describe="medusa: heads that are used.", minimum=1)
    tree_depth: int = option(4, describe="eagle: depth of the tree, so most tokens accepted in a step.", minimum=1)
    num_beams: int = option(5, describe="redrafter: beams.", minimum=1)
    beam_tokens: int = option(5, describe="redrafter: tokens of a beam.", minimum=1)
    window_size: int = option(7, describe="lookahead: window (W).", minimum=1)
    ngram_size: int = option(7, describe="lookahead: n-gram (N). ngram: longest match.", minimum=1)
    verification_size: int = option(7, describe="lookahead: verification set (G).", minimum=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildConfig:
    """Limits that the engines are built for, where they are built, and where they go."""

    engines_dir: str = option("engines", describe="Where compiled engines are kept.")
    max_seq_len: int = option(1024, describe="Longest prompt plus answer, in tokens.", minimum=16)
    max_batch_size: int = option(4, describe="Sequences whose KV cache each engine holds at once.", minimum=1)
    timeout_s: float = option(
        1800.0, describe="A build step that runs longer is ended (seconds).", minimum=1, maximum=_LONGEST_S
    )
    runner: RunnerName = option("local", describe="Where build steps run: local, container or slurm.")
    full_hash: bool = option(
        False, describe="Identify checkpoints by every byte, not by headers, sizes and samples; reads all of them."
    )
    keep_converted: bool = option(
        False, describe="Keep converted checkpoints, so that another engine of the same one skips the conversion."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuConfig:
    """The GPUs that the engines are for: an engine runs on the architecture that it was built on."""

    name: str = option(
        "auto", describe="Such as H100-80GB, or a compute capability such as 9.0. auto: what nvidia-smi shows here."
    )
    count: int = option(0, describe="GPUs in the machine. 0: what nvidia-smi shows here.", minimum=0)
    memory_gb: float = option(0.0, describe="Memory of one, in 10^9 bytes. 0: by its name, or as seen.", minimum=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorrtLlmConfig:
    """How TensorRT-LLM's own programs are used; for the profile tensorrt_llm."""

    converter: Converter = option(
        "scripts", describe="scripts: convert_checkpoint.py and quantize.py of the image. modelopt: nvidia-modelopt."
    )
    examples_dir: str = option("/app/examples", describe="Where the image keeps those scripts.")
    python: str = option("python3", describe="The interpreter that runs them.")
    max_num_tokens: int = option(8192, describe="Tokens that one pass may hold, padding removed.", minimum=1)
    logits_dtype: LogitsType = option("float32", describe="Of both engines; Triton's logits_datatype follows it.")
    calib_dataset: str = option(
        "", describe="Local texts that quantisation calibrates on: a folder (scripts) or a file (modelopt)."
    )
    calib_size: int = option(512, describe="Texts that are used of it.", minimum=1)
    workers: int = option(0, describe="Ranks that are built at once. 0: all of them.", minimum=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlmApiConfig:
    """What goes into the LLM API's configuration beside what follows from this file; for the profile llmapi."""

    args: tuple[str, ...] = option(
        (), describe="`key.path=value`, such as `kv_cache_config.free_gpu_memory_fraction=0.8`, one a line."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContainerConfig:
    """The container that build steps run in; for build.runner container."""

    engine: ContainerEngine = option("docker", describe="docker, podman or apptainer.")
    image: str = option("", describe="Tag or digest. Empty: NVIDIA's Triton image of the release.")
    gpus: str = option("all", describe="all, a number, or device=0,1.")
    shm_size: str = option("2g", describe="Shared memory; several ranks talk through it.")
    user: str = option("", describe="uid:gid that the files belong to. Empty: yours.")
    extra_args: tuple[str, ...] = option((), describe="Further arguments of the engine's run, one a line.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """The cluster's queue that build steps go to; for build.runner slurm."""

    partition: str = option("", describe="Partition. Empty: the cluster's default; so for the next three.")
    account: str = option("", describe="Account.")
    qos: str = option("", describe="Quality of service.")
    time_limit: str = option("", describe="Such as 02:00:00. Empty: build.timeout_s.")
    gres: str = option("gpu:{gpus}", describe="Generic resources of a step that needs GPUs; {gpus} is their number.")
    cpus_per_task: int = option(0, describe="Processors. 0: the cluster's default.", minimum=0)
    mem: str = option("", describe="Memory, such as 128G. Empty: the cluster's default.")
    container_image: str = option("", describe="Image for pyxis (--container-image). Empty: no container.")
    extra_lines: tuple[str, ...] = option((), describe="Further options of sbatch, such as `--exclusive`, one a line.")
    poll_s: float = option(5.0, describe="Seconds between two looks at the queue.", minimum=0.05)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepositoryConfig:
    """The generated Triton model repository."""

    path: str = option("triton_repo/models", describe="Where the Triton model repository is written.")
    engine_root: str = option(
        "", describe="Folder of the engines where the repository is served. Empty: as here, relative to the repository."
    )
    layout: Layout = option(
        "directory", describe="object_store: no empty file, and engines by absolute path; needs repo.engine_root."
    )
    serving_mode: ServingMode = option(
        "auto", describe="How a GPU server holds several ranks: one process, leader (mpirun), orchestrator. auto: fits."
    )
    decoupled: bool = option(
        True, describe="Answers can be streamed. false: one response each, also over gRPC infer and HTTP infer."
    )
    max_queue_size: int = option(
        -1,
        describe="Requests that may wait; more are refused. 0: no limit. -1: 16 for each decoded at once, 128 at least",
        minimum=-1,
    )
    queue_timeout_ms: int = option(
        0, describe="A request that waits longer is refused (milliseconds). 0: no limit.", minimum=0
    )
    priority_levels: int = option(
        0, describe="Priorities that a request may name, 1 first; the middle one is the default. 0: none.", minimum=0
    )
    rate_limits: tuple[str, ...] = option(
        (), describe="`MODEL RESOURCE=COUNT`: what an instance holds while it executes, one a line."
    )
    warmup: bool = option(False, describe="Each engine answers a short request before it counts as ready.")
    preprocessing_instances: int = option(1, describe="Processes that tokenise.", minimum=1)
    parameters: tuple[str, ...] = option(
        (), describe="`MODEL KEY=VALUE`: further parameters of a model's backend, checked against the release's."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """How the server is started."""

    host: str = option("127.0.0.1", describe="Address that the server binds.")
    http_port: int = option(0, describe="0 takes a free port.", minimum=0, maximum=65535)
    grpc_port: int = option(0, describe="0 takes a free port.", minimum=0, maximum=65535)
    metrics_port: int = option(0, describe="0 takes a free port.", minimum=0, maximum=65535)
    startup_timeout_s: float = option(
        120.0, describe="Not ready after this many seconds is an error.", minimum=1, maximum=_LONGEST_S
    )
    runner: ServeRunner = option(
        "auto",
        describe="embedded (cpu only), local or container. auto: for cpu embedded, else local where it is on PATH.",
    )
    tritonserver: str = option("tritonserver", describe="The server's program; for runner local, and in the image.")
    mpirun: str = option(
        "mpirun", describe="What starts the ranks of engines on several GPUs; may have options, as --oversubscribe."
    )
    tls_cert: str = option(
        "", describe="Certificate of the gRPC endpoint, in PEM; with tls_key. tritonserver has no TLS for HTTP."
    )
    tls_key: str = option("", describe="Its private key.")
    tls_ca: str = option("", describe="Certificate of the authority that clients must be signed by (mutual TLS).")
    http_restricted_api: tuple[str, ...] = option(
        (), describe="`api,api:header=secret`, such as `model-repository:x-admin=env:ADMIN_SECRET`, one a line."
    )
    grpc_restricted_protocol: tuple[str, ...] = option(
        (), describe="The same for gRPC; env:NAME takes the secret from the environment."
    )
    metrics: bool = option(True, describe="Serve Prometheus metrics.")
    gpu_metrics: bool = option(True, describe="Those of the GPUs, too.")
    log_info: bool = option(True, describe="Log more than warnings and errors.")
    log_verbose: int = option(0, describe="Verbosity of the log; 0 is none, 1 and above more and more.", minimum=0)
    models: tuple[str, ...] = option(
        (), describe="Load only these, their steps and engines (explicit model control). Empty: all."
    )
    warmup: bool = option(True, describe="Ready only after one request through the front door has been answered.")
    exit_timeout_s: int = option(
        5, describe="Seconds that a stopping server waits for its requests.", minimum=0, maximum=_LONGEST_S
    )
    extra_args: tuple[str, ...] = option((), describe="Further arguments of tritonserver, one a line.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmokeConfig:
    """The smoke test."""

    max_tokens: int = option(32, describe="Length of the answers that are compared.", minimum=4)
    request_timeout_s: float = option(
        60.0, describe="Every call ends within this many seconds.", minimum=1, maximum=_LONGEST_S
    )
    samples: int = option(
        200,
        describe="Sampled answers with drafts, and as many without, for the comparison of distributions.",
        minimum=0,
    )
    seed: int = option(
        0,
        describe="Seed of the sampled answers: the same one repeats a run, another one takes a new sample.",
        minimum=0,
    )
    alpha: float = option(
        0.01,
        describe="How often a lossless deployment may fail that comparison by chance.",
        minimum=0.0001,
        maximum=0.2,
    )
    tie_margin: float = option(
        0.0,
        describe="Logits of the target's two best tokens that are this near are a tie. 0: by its precision.",
        minimum=0,
    )
    clients: int = option(10, describe="Clients at the same time.", minimum=2)
    self_draft: bool = option(
        default=False, describe="The draft is the target itself: nearly every draft must be accepted."
    )
    quick_s: float = option(
        7.0, describe="What `smoke --quick` may take, and each of its requests 0.4 of that (seconds).", minimum=1
    )
    golden: str = option("", describe="File of recorded answers (`smoke record`) that answers must equal.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """The load test: speculation against control, in interleaved pairs."""

    prompts: str = option(
        "code",
        describe="code, chat, summarisation, translation, reasoning, multilingual, mixed, synthetic; or a file.",
    )
    input_tokens_mean: int = option(
        0, describe="Of synthetic prompts: their mean length, in tokens.", minimum=0, maximum=10_000_000
    )
    input_tokens_stddev: float = option(
        0.0, describe="Its standard deviation. 0: all are alike.", minimum=0, maximum=10_000_000
    )
    output_tokens_mean: int = option(
        0,
        describe="Mean length of their answers, each of which has just its own. 0: as of other prompts.",
        minimum=0,
        maximum=10_000_000,
    )
    output_tokens_stddev: float = option(
        0.0, describe="Its standard deviation. 0: all are alike.", minimum=0, maximum=10_000_000
    )
    shape: LoadShape = option(
        "closed",
        describe="closed keeps requests in flight; constant, poisson, gamma and trace send by a schedule.",
    )
    concurrency: tuple[int, ...] = option(
        (1,), describe="Of a closed shape: requests in flight, one measurement for each.", minimum=1
    )
    rates: tuple[float, ...] = option(
        (),
        describe="Of constant, poisson, gamma: requests per second, one measurement for each.",
        minimum=0,
        maximum=1e6,
    )
    stages: tuple[str, ...] = option(
        (), describe="In place of rates: one changing load, such as `5 for 60s` and `5..20 for 120s`, one a line."
    )
    burstiness: float = option(1.0, describe="Of gamma: 1 is poisson, less comes in bursts, more is even.", minimum=0)
    requests: int = option(6, describe="Requests in each half of a pair.", minimum=1)
    duration_s: float = option(
        0.0, describe="Seconds of each half of a pair, in place of a number of requests. 0: by number.", minimum=0
    )
    compare: bool = option(
        True, describe="Measure the target alone beside speculation, in pairs; false measures speculation alone."
    )
    pairs: int = option(5, describe="Pairs (control, speculation) at each concurrency.", minimum=1)
    warmup_requests: int = option(2, describe="Requests before each concurrency that are not measured.", minimum=0)
    max_tokens: int = option(64, describe="Longest answer, in tokens.", minimum=2)
    fixed_length: bool = option(
        False, describe="Every answer has max_tokens (for speed); else it ends where the model ends it."
    )
    recorded_length: bool = option(
        False, describe="An answer may be as long as the one that the ShareGPT file has, in place of max_tokens."
    )
    distinct: bool = option(
        False, describe="Every request begins with a line of its own, so that no KV cache of another one is reused."
    )
    prefix_tokens: int = option(
        0,
        describe="Length of common prefixes, as of system prompts, that requests begin with. 0: none.",
        minimum=0,
        maximum=10_000_000,
    )
    prefix_count: int = option(
        1, describe="How many such prefixes there are, used equally often.", minimum=1, maximum=10_000
    )
    prefix_share: float = option(
        1.0, describe="The share of requests that begin with one of them.", minimum=0, maximum=1
    )
    slo: tuple[str, ...] = option(
        (), describe="What a good request keeps, such as `time_to_first_token <= 300ms`, one a line: goodput."
    )
    least_good: float = option(
        0.99, describe="Of --search: the share of good requests that a load has to have.", minimum=0, maximum=1
    )
    protocol: LoadProtocol = option("grpc", describe="How Triton is asked: grpc streams, or http generate_stream.")
    temperature: float = option(0.0, describe="0 decodes greedily.", minimum=0)
    top_p: float = option(1.0, describe="Nucleus of sampled requests; unused at temperature 0.", minimum=0, maximum=1)
    seed: int = option(
        0, describe="Seed of the prompt order, of schedules, of made texts and of sampled requests.", minimum=0
    )
    request_timeout_s: float = option(
        120.0, describe="A request that takes longer counts as an error.", minimum=1, maximum=_LONGEST_S
    )
    telemetry_s: float = option(
        1.0,
        describe="Seconds between two looks at the server's metrics while it works; 0 takes none.",
        minimum=0,
        maximum=_LONGEST_S,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateConfig:
    """What CI insists on."""

    rules: tuple[str, ...] = option(
        (),
        describe="`metric[.statistic][@load] comparison number[unit]`, or `metric: 5%`, one a line; none: usual ones.",
        spell=spell_rule,
    )
    baseline: str = option(
        "gate-baseline.json", describe="File of earlier runs, made by `specdeploy gate baseline update`."
    )
    baseline_runs: int = option(
        5, describe="From how many different days a baseline needs runs before anything is compared with it.", minimum=3
    )
    confidence: float = option(
        0.95, describe="Of claims about percentiles, and of regressions.", minimum=0.5, maximum=0.9999
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
    profile: Profile = option("cpu", describe="Engine profile: cpu, tensorrt_llm or llmapi.")
    release: str = option(
        "1.2.1", describe="TensorRT-LLM release: it builds the engines and names the front door's tensors."
    )
    target: ModelConfig = option(describe="The large model, whose distribution every answer has.")
    draft: DraftConfig = option(
        DraftConfig(), describe="The small model that proposes tokens; it shares the target's tokenizer."
    )
    speculation: SpeculationConfig = option(SpeculationConfig(), describe="How the deployment speculates.")
    build: BuildConfig = option(BuildConfig(), describe="Engine limits, where engines are built, and their store.")
    gpu: GpuConfig = option(GpuConfig(), describe="The GPUs that the engines are for.")
    tensorrt_llm: TensorrtLlmConfig = option(TensorrtLlmConfig(), describe="TensorRT-LLM's own programs.")
    llmapi: LlmApiConfig = option(LlmApiConfig(), describe="The LLM API's configuration.")
    container: ContainerConfig = option(ContainerConfig(), describe="The container of build.runner container.")
    slurm: SlurmConfig = option(SlurmConfig(), describe="The queue of build.runner slurm.")
    repo: RepositoryConfig = option(RepositoryConfig(), describe="The Triton model repository.")
    serve: ServeConfig = option(ServeConfig(), describe="How the server is started.")
    smoke: SmokeConfig = option(SmokeConfig(), describe="The smoke test.")
    load: LoadConfig = option(LoadConfig(), describe="The load test: speculation against control, in pairs.")
    gate: GateConfig = option(GateConfig(), describe="What CI insists on.")
    report: ReportConfig = option(ReportConfig(), describe="Where results go.")
