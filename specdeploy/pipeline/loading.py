"""From a running deployment to ``load.json``: what is sent, over which wire, and what is kept of it."""

from __future__ import annotations

import contextlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.goodput import parse_objectives
from specdeploy.bench.schedule import kv_reuse_findings
from specdeploy.bench.shards import fingerprint
from specdeploy.bench.wire.codec import OpenAICodec, TritonCodec
from specdeploy.bench.wire.grpc import GrpcCodec, GrpcWire
from specdeploy.bench.wire.http import HttpWire
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding
from specdeploy.gate.fingerprint import ABSENT, differences, fingerprint_of
from specdeploy.pipeline.load_findings import deployment_findings
from specdeploy.pipeline.measurement import FRONT_DOOR, Line, Lines, Measurement, plan_of
from specdeploy.pipeline.shards import ALONE
from specdeploy.pipeline.subject import configured, connect, deployment
from specdeploy.smoke.targets import ensemble_steps, is_decoupled
from specdeploy.system.host import probe_host
from specdeploy.triton.client.failures import RequestFailed
from specdeploy.triton.repository import names
from specdeploy.triton.repository.models import fixed_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from specdeploy.bench.driver import Progress
    from specdeploy.bench.further import Earlier
    from specdeploy.bench.schedule import LoadPlan
    from specdeploy.config.load import LoadedConfig
    from specdeploy.config.schema import DeployConfig
    from specdeploy.pipeline.measurement import OnTrial
    from specdeploy.pipeline.openai_server import OpenAIServer
    from specdeploy.pipeline.serving import Addresses
    from specdeploy.pipeline.shards import Generator
    from specdeploy.triton.client import TritonClient


#: What a load test that cannot go on has in its document, and what to call it.
_NOT_WHOLE: Final = {
    "partial": "it ended early",
    "degraded": "its load generator was late",
    "search": "it searched for a load",
    "shards": "it is of several generators",
}
#: What is planned where another server answers for the control; no request says how much is drafted.
AGAINST_ANOTHER: Final[Mapping[str, Any]] = MappingProxyType({"compare": True, "own_control": False})
#: Parameters of a decoder that tell two deployments apart.
_TOLD: Final = ("num_draft_tokens", "engine_speculates")


def preflight(loaded: LoadedConfig, **changes: Any) -> LoadPlan:  # noqa: ANN401 - settings of a plan
    """Read everything that a load test takes from the user, send nothing, and return what is planned.

    Args:
        loaded: The configuration.

        changes: As for :func:`plan_of`.

    Raises:
        ConfigError: The load, the prompts or an objective cannot be used.
    """
    plan = plan_of(loaded, **changes)
    parse_objectives(loaded.config.load.slo)
    return plan


def load(
    loaded: LoadedConfig,
    endpoints: Addresses,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    generator: Generator = ALONE,
    on_trial: OnTrial | None = None,
    control: Addresses | None = None,
) -> dict[str, Any]:
    """Measure a deployment, by default speculation against control, and keep ``load.json`` and the raw records.

    Args:
        loaded: The load, and where its results go.

        endpoints: Where the deployment is.

        on_progress: Called after every request.

        generator: Which part of the load is sent from here, and when.

        on_trial: If it is given, the highest load that keeps the objectives is searched for, and it hears of each.

        control: Another deployment that answers for the control, drafting as it was set up to, such as that of the
            last release. None is this one, asked for no drafts.

    Raises:
        ConfigError: The prompts cannot be read, or the deployment has no control to compare with.

        ServerFault: The server is not there.
    """
    method = fixed_by(loaded.config)
    if method and loaded.config.load.compare and control is None:
        raise ConfigError(
            f"{method} drafts always as it was built to, so this deployment has no control to compare with",
            hint="set load.compare: false, or compare with another deployment by --control-http and --control-grpc; "
            "draft_target and ngram have their own control",
        )
    plan = plan_of(loaded, **_changes(control))
    findings = _findings(loaded, plan, own=_answers_both(endpoints, control))
    run = _measurement(loaded, endpoints, control, on_progress, generator)
    return run.once(generator.part_of(plan), findings) if on_trial is None else run.search(on_trial, findings)


def _measurement(
    loaded: LoadedConfig,
    endpoints: Addresses,
    control: Addresses | None,
    on_progress: Callable[[Progress], None] | None,
    generator: Generator,
) -> Measurement:
    """Return what measures a deployment, against itself or another one."""

    def connect_all() -> Lines:
        return Lines(line_to(loaded, endpoints), None if control is None else line_to(loaded, control))

    # The counters of a server hold the requests of all shards.
    triton = endpoints if generator.shard is None else None
    about = _about(loaded, control)
    return Measurement(loaded, connect_all, triton, about, on_progress, generator, _changes(control))


def _changes(control: Addresses | None) -> Mapping[str, Any]:
    """Return what another deployment as the control changes about a plan."""
    return {} if control is None else AGAINST_ANOTHER


def _answers_both(endpoints: Addresses, control: Addresses | None) -> bool:
    """Say whether one server answers for both arms: what one has left in its KV cache, another does not find."""
    return control is None or control.http_url == endpoints.http_url


def misfit(loaded: LoadedConfig, document: Mapping[str, Any], control: Addresses | None = None) -> str:
    """Say why a load test cannot go on; empty for a whole one, of what the configuration says, from here.

    Args:
        loaded: The configuration.

        document: The ``load.json`` of the load test.

        control: The other deployment that is to answer for the control.

    Raises:
        ConfigError: The load, the prompts or the document cannot be used.

        ServerFault: The control is not there.
    """
    for key, words in _NOT_WHOLE.items():
        if document.get(key):
            return words
    plan = plan_of(loaded, **_changes(control))
    now = {
        "deployment": _about(loaded, control),
        "environment": probe_host().as_dict(),
        "plan": plan.to_dict() | {"schedule": fingerprint(plan)},
        "client": {"processes": 1},
    }
    others = differences(fingerprint_of(document), fingerprint_of(now))
    return "; ".join(f"{field} was {there} and is {here}" for field, there, here in others[:1])


def known_differences(loaded: LoadedConfig, document: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """Return in which fields of its fingerprint a deployment is known to be another one now than was measured.

    What either does not tell is not known: a machine that only judges has no repository. Of another server than ours
    the configuration says nothing. The load may be another one than it says: a run is judged by its own.

    Args:
        loaded: The configuration.

        document: The ``load.json`` of the load test.

    Returns:
        Each field, with the value that was measured and the one now.

    Raises:
        ConfigError: The document cannot be used.
    """
    measured = document.get("deployment")
    if not isinstance(measured, dict) or measured.get("profile") == "openai":
        return ()
    found = differences(fingerprint_of(document), fingerprint_of({"deployment": configured(loaded)}))
    named = ("name", str(measured.get("name") or ABSENT), loaded.config.name)
    return tuple(one for one in (named, *found) if ABSENT not in one[1:] and one[1] != one[2])


def other_control(document: Mapping[str, Any]) -> str:
    """Return where another server was that answered for the control of a load test; empty where none did.

    Args:
        document: The ``load.json`` of the load test.
    """
    measured = document.get("deployment")
    control = measured.get("control") if isinstance(measured, dict) else None
    if not isinstance(control, dict):
        return ""
    said = str(control.get("server") or control.get("name") or "another server")
    # Anybody's words: no line of a log may begin with them.
    return said if said.isprintable() else repr(said)


def go_on(
    loaded: LoadedConfig,
    endpoints: Addresses,
    earlier: Earlier,
    pairs: int,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    control: Addresses | None = None,
) -> str:
    """Measure further pairs of a load test and keep both as one; return why that ended early, and nothing is changed.

    Args:
        loaded: The load, and where its results go.

        endpoints: Where the deployment is.

        earlier: The load test.

        pairs: How many more at each load.

        on_progress: Called after every request.

        control: The other deployment that answered for the control; None where it was this one.

    Raises:
        ServerFault: The server is not there.
    """
    # Other prompts first, so that no part lives off the KV cache of the one before.
    seed = loaded.config.load.seed + len(earlier.document.get("repeats") or ()) + 1
    plan = plan_of(loaded, first_pair=earlier.pairs, pairs=pairs, seed=seed, **_changes(control))
    run = _measurement(loaded, endpoints, control, on_progress, ALONE)
    return run.further(earlier, plan, _findings(loaded, plan, own=_answers_both(endpoints, control)))


def _findings(loaded: LoadedConfig, plan: LoadPlan, *, own: bool = True) -> tuple[Finding, ...]:
    """Return what speaks against a plan; ``own`` says that one server answers for both arms."""
    reused = kv_reuse_findings(plan, max_sequences=loaded.config.build.max_batch_size) if own else ()
    return (*reused, *deployment_findings(loaded.config, plan))


def _about(loaded: LoadedConfig, control: Addresses | None) -> dict[str, Any]:
    about = deployment(loaded) | {"protocol": loaded.config.load.protocol}
    return about if control is None else about | {"control": _about_control(loaded, control)}


def load_openai(
    loaded: LoadedConfig,
    server: OpenAIServer,
    control: OpenAIServer | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    generator: Generator = ALONE,
    on_trial: OnTrial | None = None,
) -> dict[str, Any]:
    """Measure an OpenAI-compatible server, against another one without speculation if there is one.

    Args:
        loaded: The load, and where its results go.

        server: What is measured.

        control: The same target without speculation; None measures the server alone.

        on_progress: As for :func:`load`.

        generator: As for :func:`load`.

        on_trial: As for :func:`load`.

    Raises:
        ConfigError: As :func:`load`; or the two servers are not of one kind.

        ServerFault: A server is not there.
    """
    if control is not None and control.dialect.chat != server.dialect.chat:
        raise ConfigError(
            "one of the two servers has /v1/completions and the other only /v1/chat/completions",
            hint="compare servers that are asked in the same way",
        )
    changes = {"compare": control is not None, "own_control": False, "chat": server.dialect.chat}

    def connect_all() -> Lines:
        return Lines(_openai_line(server), None if control is None else _openai_line(control))

    about = {
        "name": server.shown_model,
        "profile": "openai",
        "server": server.address.host,
        "control": None if control is None else {"name": control.shown_model, "server": control.address.host},
    }
    findings = _uncounted([server] if control is None else [server, control])
    run = Measurement(loaded, connect_all, None, about, on_progress, generator, changes)
    if on_trial is not None:
        return run.search(on_trial, findings)
    return run.once(generator.part_of(plan_of(loaded, **changes)), findings)


def _uncounted(servers: Iterable[OpenAIServer]) -> tuple[Finding, ...]:
    """Say which servers do not tell how many tokens a streamed answer has."""
    silent = [server.address.host for server in servers if not server.dialect.totals]
    if not silent:
        return ()
    return (
        Finding(
            severity="warning",
            code="load.tokens-uncounted",
            message=f"{' and '.join(silent)} does not say how many tokens a streamed answer has, so what is made of "
            "tokens is not measured: throughput, inter-token latency, and the speed-up",
            hint="compare the latencies, or ask a server that keeps to stream_options.include_usage",
        ),
    )


def _about_control(loaded: LoadedConfig, control: Addresses) -> dict[str, Any]:
    """Say of another deployment where it is and, as far as its decoder tells, how it drafts.

    Raises:
        ServerFault: It is not there, or has no front door.
    """
    with contextlib.closing(connect(control, loaded.config.load.request_timeout_s)) as client:
        client.metadata(FRONT_DOOR)
        try:
            parameters = client.model_config(names.DECODER).get("parameters") or {}
        except RequestFailed:
            # Another front door may do without one.
            parameters = {}
    told = {name: value.get("string_value") for name, value in parameters.items() if isinstance(value, dict)}
    return {"server": control.http_url, **{name: told[name] for name in _TOLD if told.get(name)}}


def _openai_line(server: OpenAIServer) -> Line:
    codec = OpenAICodec(server.address, model=server.model, dialect=server.dialect, api_key=server.api_key)
    return Line(HttpWire(server.address.host, tls=server.address.tls), codec)


def line_to(loaded: LoadedConfig, endpoints: Addresses) -> Line:
    """Return how a Triton is reached; it is asked for its inputs now, so that no measured request waits for them."""
    wanted = loaded.config.load
    with contextlib.closing(connect(endpoints, wanted.request_timeout_s)) as client:
        inputs, streams = client.metadata(FRONT_DOOR).input_types, _streams(client, loaded.config)
    if wanted.protocol == "http":
        codec = TritonCodec(endpoints.http_url, model=FRONT_DOOR, inputs=inputs, streams=streams)
        return Line(HttpWire(endpoints.http_url), codec)
    return Line(GrpcWire(endpoints.grpc_url), GrpcCodec(model=FRONT_DOOR, inputs=inputs, streams=streams))


def _streams(client: TritonClient, config: DeployConfig) -> bool:
    """Say whether the front door can answer in pieces; of one that does not tell, the configuration does."""
    try:
        door = client.model_config(FRONT_DOOR)
        return any(is_decoupled(found) for found in (door, *map(client.model_config, ensemble_steps(door))))
    except RequestFailed:
        return config.repo.decoupled
