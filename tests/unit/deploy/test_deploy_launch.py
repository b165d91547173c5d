"""Command lines of servers: what every one has, what each way of starting ranks adds, and what may not be changed."""

from __future__ import annotations

import dataclasses

import pytest

from specdeploy.config.schema import ServeConfig
from specdeploy.deploy.access import Access
from specdeploy.deploy.flags import Listening, Served, extra_words, front_flags, worker_flags
from specdeploy.deploy.launch import Launch, launch
from specdeploy.errors import ConfigError
from specdeploy.planning.placement import EnginePlacement, Placement

PORTS = Listening(host="127.0.0.1", http_port="8000", grpc_port="8001", metrics_port="8002")
TARGET, DRAFT = (EnginePlacement(role=role, gpu_ids=gpus) for role, gpus in (("target", (0, 1)), ("draft", (0, 1))))
LEADER = Placement(mode="leader", spawn=True, processes=2, engines=(TARGET, DRAFT))
SPAWNING = Placement(
    mode="orchestrator", spawn=True, processes=1, engines=(TARGET, EnginePlacement(role="draft", gpu_ids=(0,)))
)
SINGLE = Placement(mode="single", spawn=True, processes=1, engines=(EnginePlacement(role="target", gpu_ids=(0,)),))


def served(*, gpus: bool = True, access: Access | None = None, rate_limit: bool = False, **keys) -> Served:
    """Return something to serve, with keys of `serve` changed."""
    return Served(
        serve=ServeConfig(**keys),
        repository="/r/models",
        listening=PORTS,
        gpus=gpus,
        rate_limit=rate_limit,
        access=access or Access(),
    )


def ranks(argv: tuple[str, ...]) -> list[list[str]]:
    """Return the parts of a line of mpirun."""
    lines: list[list[str]] = [[]]
    for word in argv:
        if word == ":":
            lines.append([])
        else:
            lines[-1].append(word)
    return lines


def test_every_address_and_port_is_given() -> None:
    """Triton's own defaults listen on every network."""
    flags = front_flags(served())

    for use, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        assert f"--{use}-address=127.0.0.1" in flags
        assert f"--{use}-port={port}" in flags
    assert "--disable-auto-complete-config" in flags


def test_metrics_can_be_left_out() -> None:
    """Then no port is opened for them."""
    flags = front_flags(served(metrics=False))

    assert "--allow-metrics=false" in flags
    assert not any(flag.startswith(("--metrics-", "--allow-gpu-metrics")) for flag in flags)


@pytest.mark.parametrize(
    ("gpus", "wanted", "expected"), [(True, True, "true"), (True, False, "false"), (False, True, "false")]
)
def test_metrics_of_gpus_need_gpus(gpus: bool, wanted: bool, expected: str) -> None:
    """On a CPU they are off whatever is asked for."""
    assert f"--allow-gpu-metrics={expected}" in front_flags(served(gpus=gpus, gpu_metrics=wanted))


def test_the_log_says_as_much_as_asked() -> None:
    """By default what Triton itself does, for the progress lines are read from it."""
    assert not any(flag.startswith("--log") for flag in front_flags(served()))
    assert {"--log-info=false", "--log-verbose=2"} <= set(front_flags(served(log_info=False, log_verbose=2)))


def test_named_models_are_loaded_and_no_others() -> None:
    """Explicit model control; without names every model of the repository is loaded."""
    flags = front_flags(served(models=("ensemble", "tensorrt_llm")))

    assert [flag for flag in flags if "load-model" in flag or "control" in flag] == [
        "--model-control-mode=explicit",
        "--load-model=ensemble",
        "--load-model=tensorrt_llm",
    ]
    assert not any("control" in flag for flag in front_flags(served()))


def test_the_rate_limiter_is_on_when_models_name_resources() -> None:
    """Triton ignores the resources otherwise."""
    assert "--rate-limit=execution_count" in front_flags(served(rate_limit=True))
    assert "--rate-limit=execution_count" not in front_flags(served())


def test_one_process_starts_where_relative_engine_paths_begin() -> None:
    """NVIDIA's backend resolves them against the server's working directory."""
    started = launch(served(), SINGLE, "p_")

    assert started.argv[0] == "tritonserver"
    assert started.cwd == "/r/models"
    assert started.env == {"PYTHONDONTWRITEBYTECODE": "1"}
    assert "--backend-config=python,shm-region-prefix-name=p_0_" in started.argv


def test_the_leader_serves_and_the_other_ranks_hold_engines() -> None:
    """They load the engines and nothing else, open no port, and share no memory names with the leader."""
    leader, worker = ranks(launch(served(mpirun="/opt/mpirun"), LEADER, "p_").argv)

    assert leader[:5] == ["/opt/mpirun", "--allow-run-as-root", "-n", "1", "tritonserver"]
    assert worker[:3] == ["-n", "1", "tritonserver"]
    assert {"--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"} <= set(worker)
    assert {"--load-model=tensorrt_llm", "--load-model=tensorrt_llm_draft"} <= set(worker)
    assert not any("port" in word for word in worker)
    assert "--backend-config=python,shm-region-prefix-name=p_1_" in worker


def test_mpirun_takes_options_of_its_own() -> None:
    """Such as more ranks than processors; an open quotation is an error with its key."""
    argv = launch(served(mpirun="/opt/mpirun --oversubscribe"), LEADER, "p_").argv

    assert argv[:4] == ("/opt/mpirun", "--oversubscribe", "--allow-run-as-root", "-n")
    with pytest.raises(ConfigError, match=r"serve\.mpirun: No closing quotation"):
        launch(served(mpirun="mpirun 'x"), LEADER, "p_")


def test_an_orchestrator_that_spawns_keeps_off_the_gpus() -> None:
    """Its workers need their memory; NVIDIA's launcher gives the same options."""
    started = launch(served(), SPAWNING, "p_")

    assert started.env == {
        "TRTLLM_ORCHESTRATOR": "1",
        "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    assert len(ranks(started.argv)) == 1
    assert {
        "--pinned-memory-pool-byte-size=0",
        "--enable-peer-access=false",
        "--cuda-memory-pool-byte-size=0:0",
        "--cuda-memory-pool-byte-size=1:0",
    } <= set(started.argv)


def test_an_orchestrator_beside_its_workers_starts_them_with_it() -> None:
    """With fast logits: one process for itself, one for each rank of each engine, none spawned."""
    beside = dataclasses.replace(SPAWNING, spawn=False, processes=4)
    started = launch(served(), beside, "p_")

    assert started.env["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] == "0"
    assert len(ranks(started.argv)) == 4
    assert not any("memory-pool" in word for word in started.argv)


def test_a_worker_obeys_the_log_and_exit_settings() -> None:
    """They hold for all ranks; restrictions and certificates for none but the one that listens."""
    access = Access(tls_cert="/c", tls_key="/k")
    flags = worker_flags(served(access=access, log_verbose=1, exit_timeout_s=9), ("tensorrt_llm",))

    assert {"--log-verbose=1", "--exit-timeout-secs=9"} <= set(flags)
    assert not any("ssl" in flag for flag in flags)


@pytest.mark.parametrize(
    ("line", "key"),
    [("--http-port=1", "serve.http_port"), ("--load-model x", "serve.models"), ("--log-file=x", "leave it out")],
)
def test_extra_arguments_may_not_take_over(line: str, key: str) -> None:
    """What specdeploy sets and reads is set by its keys, which the hint names."""
    with pytest.raises(ConfigError, match=r"serve\.extra_args may not set --") as caught:
        extra_words((line,))

    assert key in caught.value.hint


@pytest.mark.parametrize(
    ("line", "option", "key"),
    [
        ("--http-addr=0.0.0.0", "--http-address", "serve.host"),
        ("--log-fil=/tmp/x", "--log-file", "leave it out"),
        ("--model-repo=/x", "--model-repository", "repo.path"),
        ("--load x", "--load-model", "serve.models"),
    ],
)
def test_a_shortened_option_is_the_option(line: str, option: str, key: str) -> None:
    """Tritonserver takes every beginning that fits one option only."""
    with pytest.raises(ConfigError, match=rf"serve\.extra_args may not set --\S+, which stands for {option}") as caught:
        extra_words((line,))

    assert key in caught.value.hint


@pytest.mark.parametrize("line", [":", "--id=a : -n 1 touch /tmp/x", "--id :"])
def test_extra_arguments_start_no_other_program(line: str) -> None:
    """A lone colon begins the next program of mpirun."""
    with pytest.raises(ConfigError, match="has a lone ':'"):
        extra_words((line,))


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (("positional",), "positional"),
        (("--id=a b",), "b"),
        (("--id a b",), "b"),
        (("--", "x"), "--"),
        (("--id", "a", "-"), "-"),
    ],
)
def test_a_word_that_belongs_to_no_option_is_named(lines: tuple[str, ...], word: str) -> None:
    """Tritonserver would end with its help and no word of the cause."""
    with pytest.raises(ConfigError, match=f"serve.extra_args: {word!r} is neither an option"):
        extra_words(lines)


def test_extra_arguments_are_words_as_a_shell_has_them() -> None:
    """One option a line, with its values; an open quotation is an error."""
    assert extra_words(("--trace-config 'mode=a b'", "--model-load-thread-count=2")) == (
        "--trace-config",
        "mode=a b",
        "--model-load-thread-count=2",
    )
    with pytest.raises(ConfigError, match="No closing quotation"):
        extra_words(("--id='x",))


def test_an_option_and_its_value_may_stand_on_two_lines() -> None:
    """Words are words, however the lines fall."""
    assert extra_words(("--id", "a", "--strict-readiness=false")) == ("--id", "a", "--strict-readiness=false")


SHOWN = [
    (("docker", "--env=HF_TOKEN=hf_s3cret", "i"), ("docker", "--env=HF_TOKEN=***", "i")),
    (("docker", "--env", "HF_TOKEN=s3cret"), ("docker", "--env", "HF_TOKEN=***")),
    (("docker", "-e", "A=s3cret", "-eB=s3cret", "-e=C=s3cret"), ("docker", "-e", "A=***", "-eB=***", "-e=C=***")),
    (("mpirun", "-x", "TOK=s3\ncret", "-n", "1"), ("mpirun", "-x", "TOK=***", "-n", "1")),
    (("docker", "--env=TOKEN", "--env=HOME=/tmp", "-x", "A"), ("docker", "--env=TOKEN", "--env=HOME=/tmp", "-x", "A")),
    (("t", "--exit-timeout-secs=5", "--env-file=x=y"), ("t", "--exit-timeout-secs=5", "--env-file=x=y")),
]


@pytest.mark.parametrize(("argv", "shown"), SHOWN)
def test_values_of_variables_are_not_shown(argv: tuple[str, ...], shown: tuple[str, ...]) -> None:
    """They may be secrets of the user's: neither text nor document has them, and what is run does."""
    command = Launch(argv=argv)

    assert "s3" not in command.shown()
    assert command.as_dict()["argv"] == list(shown)
    assert command.argv == argv


def test_a_command_is_shown_as_one_would_type_it() -> None:
    """Its folder, its variables and its words, quoted where a shell needs it."""
    command = Launch(argv=("a", "b c"), env={"X": "1 2"}, cwd="/r d", path="/v/bin")

    assert command.shown() == "cd '/r d' && PATH=/v/bin:\"$PATH\" X='1 2' a 'b c'"


def test_the_environment_is_ours_with_changes() -> None:
    """What leads a server astray is dropped, what it needs is set, and its folder comes first on PATH."""
    command = Launch(argv=("a",), env={"X": "1"}, without=frozenset({"PYTHONPATH"}), path="/v/bin")

    assert command.environment({"PATH": "/bin", "PYTHONPATH": "/x", "HOME": "/h"}) == {
        "PATH": "/v/bin:/bin",
        "HOME": "/h",
        "X": "1",
    }


@pytest.mark.parametrize(
    ("draft", "ordered"), [((0,), True), ((1,), False), ((0, 1), True)], ids=["shared", "apart", "leader"]
)
def test_engines_that_wait_for_each_other_load_in_one_order(draft: tuple[int, ...], ordered: bool) -> None:
    """Those that share a GPU take fractions of what the other has left; the ranks of a leader load together."""
    if len(draft) == 2:
        placement = LEADER
    else:
        engines = (EnginePlacement(role="target", gpu_ids=(0,)), EnginePlacement(role="draft", gpu_ids=draft))
        placement = Placement(mode="single", spawn=True, processes=1, engines=engines)
    lines = ranks(launch(served(), placement, "p_").argv)

    assert ["--model-load-thread-count=1" in line for line in lines] == [ordered] * placement.processes


def test_who_sets_the_number_of_loading_threads_has_it() -> None:
    """Triton would refuse the option a second time, or take the last."""
    own = served(extra_args=("--model-load-thread-count=4",))
    words = ranks(launch(own, LEADER, "p_").argv)[0]

    assert [word for word in words if "thread-count" in word] == ["--model-load-thread-count=4"]
