"""``specdeploy serve`` as its users run it: a tiny deployment, real servers, every switch, and everything refused."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.triton.server.state import start_ticks
from tests.deployments import specdeploy, write_deployment
from tests.integration.server_stand_ins import install_stand_ins
from tests.toolchain import install_toolchain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.server_stand_ins import StandIns

pytestmark = pytest.mark.timeout(180)
served = [pytest.mark.cpu, pytest.mark.triton]
SECRET = "open-sesame-4711"


@pytest.fixture(name="prepared", scope="module")
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment that is built and has its repository; tests start and stop their own servers."""
    folder = tmp_path_factory.mktemp("prepared")
    write_deployment(folder)
    for command in ("build", "repo"):
        done = specdeploy(command, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@contextlib.contextmanager
def serving(folder: Path, *settings: str, env: dict[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Serve for the time of the block; yield the addresses, and what was said while it started as ``said``."""
    overrides = [word for setting in settings for word in ("--set", setting)]
    done = specdeploy("serve", "--detach", "--json", *overrides, cwd=folder, env=env)
    try:
        assert done.returncode == 0, done.stderr
        yield {**json.loads(done.stdout), "said": done.stderr}
    finally:
        stopped = specdeploy("serve", "stop", cwd=folder, env=env)
    assert stopped.stdout == "stopped\n", stopped.stderr
    assert processes_of(folder) == []


def status(folder: Path, *settings: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the status document of the running server."""
    overrides = [word for setting in settings for word in ("--set", setting)]
    done = specdeploy("serve", "status", "--json", *overrides, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def generate(at: dict[str, str], *, headers: dict[str, str] | None = None, max_tokens: int = 2) -> str:
    """Send one request through the front door."""
    body = json.dumps({"text_input": "Hello", "max_tokens": max_tokens}).encode()
    url = f"http://{at['http_url']}/v2/models/ensemble/generate_stream"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers or {}), timeout=60) as response:
        return response.read().decode()


def http_status(at: dict[str, str], path: str, *, post: bool = False, headers: dict[str, str] | None = None) -> int:
    """Return the status of an answer."""
    request = urllib.request.Request(f"http://{at['http_url']}{path}", b"" if post else None, headers or {})
    try:
        return urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of living servers that name *folder*."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"{folder}/models" in line and start_ticks(int(file.parent.name)) is not None:
                found.append(line)
    return found


def eventually(condition: Callable[[], bool], *, timeout_s: float = 30) -> bool:
    """Wait until *condition* holds; say whether it did in time."""
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture(name="at", scope="class")
def _at(prepared: Path) -> Iterator[dict[str, str]]:
    """A server that the tests of a class share; also what its status was when it had started, as ``first``."""
    with serving(prepared) as at:
        yield {**at, "first": json.dumps(status(prepared))}


class TestLookedAt:
    """One real server that is looked at, and asked, by every test."""

    pytestmark = served

    def test_ready_means_that_a_request_was_answered(self, at: dict[str, str]) -> None:
        """The front door and what is behind it have served one request before anybody else's."""
        assert "every model is ready; asking ensemble for a first answer" in at["said"]
        counts = {model["name"]: model["succeeded"] for model in json.loads(at["first"])["models"]}
        assert counts["ensemble"] == counts["speculative_decoder"] == 1
        assert counts["tensorrt_llm"] >= 1
        assert counts["tensorrt_llm_draft"] >= 1

    def test_status_shows_the_acceptance_of_requests(self, at: dict[str, str], prepared: Path) -> None:
        """From the decoder's counters on the metrics page, which go on with every request."""
        before = status(prepared)["acceptance"]
        assert "text_output" in generate(at, max_tokens=24)
        after = status(prepared)["acceptance"]
        text = specdeploy("serve", "status", cwd=prepared).stdout

        assert after["drafted"] > before["drafted"]
        assert after["accepted"] > before["accepted"]
        assert after["rate"] == after["accepted"] / after["drafted"]
        assert f"({after['accepted']} of {after['drafted']} draft tokens)" in text

    def test_a_second_server_is_refused(self, at: dict[str, str], prepared: Path) -> None:
        """And the first one goes on: exit code 4."""
        done = specdeploy("serve", "--detach", cwd=prepared)

        assert done.returncode == 4
        assert "already runs from" in done.stderr
        assert http_status(at, "/v2/health/ready") == 200

    def test_a_copy_of_the_deployment_has_no_server(self, at: dict[str, str], prepared: Path, tmp_path: Path) -> None:
        """Stopping it there stops nothing here."""
        shutil.copytree(prepared, tmp_path / "copy", symlinks=True)
        looked = specdeploy("serve", "status", cwd=tmp_path / "copy")
        stopped = specdeploy("serve", "stop", cwd=tmp_path / "copy")

        assert looked.returncode == 4
        assert stopped.stdout == "no server was running\n"
        assert http_status(at, "/v2/health/ready") == 200

    def test_status_shows_models_queue_and_what_is_not_measured(self, at: dict[str, str], prepared: Path) -> None:
        """Versions, states and queues are Triton's; what this server does not measure is not shown as zero."""
        seen = status(prepared)
        text = specdeploy("serve", "status", "--probe", cwd=prepared)

        assert seen["ready"] is True
        assert seen["http_url"] == at["http_url"]
        models = {model["name"]: model for model in seen["models"]}
        assert {model["state"] for model in models.values()} == {"READY"}
        assert {model["version"] for model in models.values()} == {"1"}
        assert models["tensorrt_llm"]["queue"] == 0
        assert models["tensorrt_llm"]["kv_cache"] is None
        assert text.returncode == 0, text.stderr
        lines = {line.split()[0]: line for line in text.stdout.splitlines() if line}
        assert lines["answers"].endswith("yes")
        assert lines["tensorrt_llm"].endswith("not measured")


class TestServed:
    """On real servers of the embedded runtime, each started in its own way."""

    pytestmark = served

    def test_a_model_that_lost_its_process_is_found_by_a_probe(self, prepared: Path) -> None:
        """Triton still calls it ready; the request says that it is not, and so does the exit code."""
        with serving(prepared):
            for pid in stubs_of(status(prepared)["pid"], "preprocessing"):
                os.kill(pid, signal.SIGKILL)
            done = specdeploy("serve", "status", "--probe", "--json", cwd=prepared)

        assert done.returncode == 4
        seen = json.loads(done.stdout)
        assert (seen["ready"], seen["answers"]) == (False, False)
        assert "preprocessing" in seen["complaint"]

    def test_a_restricted_api_wants_its_header_and_serve_sends_it(self, prepared: Path) -> None:
        """Start, status and stop work; others get 403; the secret is in no state, log or printed line.

        Who has another secret is told that it is not the server's, and not that the server is not ready.
        """
        closed = (
            f"{api}:x-admin=env:ADMIN_SECRET" for api in ("health", "model-repository", "statistics", "inference")
        )
        keys, env = (f"serve.http_restricted_api=[{','.join(closed)}]",), {"ADMIN_SECRET": SECRET}
        with serving(prepared, *keys, env=env) as at:
            header = {"x-admin": SECRET}
            assert http_status(at, "/v2/health/ready") == 403
            assert http_status(at, "/v2/health/ready", headers=header) == 200
            assert http_status(at, "/v2/repository/index", post=True) == 403
            assert "text_output" in generate(at, headers=header)
            seen = status(prepared, *keys, env=env)
            assert seen["ready"] is True
            assert all(model["succeeded"] is not None for model in seen["models"])
            refused = specdeploy("smoke", "--set", keys[0], cwd=prepared, env=env)
            wrong = specdeploy("serve", "status", "--set", keys[0], cwd=prepared, env={"ADMIN_SECRET": "another"})
            files = [path for path in (prepared / "models.run").iterdir() if path.is_file()]
            assert not any(SECRET in path.read_text(errors="replace") for path in files)

        assert SECRET not in at["said"]
        assert wrong.returncode == 4
        assert "the configuration has not the header and secret that the server wants" in wrong.stdout
        assert refused.returncode == 2
        assert "serve.http_restricted_api" in refused.stderr
        unset = specdeploy("serve", "--set", keys[0], cwd=prepared)
        assert unset.returncode == 2
        assert "ADMIN_SECRET is not set" in unset.stderr

    def test_grpc_can_be_restricted(self, prepared: Path) -> None:
        """Without the header a call is refused, with it it is answered."""
        import tritonclient.grpc as triton

        with serving(prepared, f"serve.grpc_restricted_protocol=[health:key={SECRET}]") as at:
            client = triton.InferenceServerClient(at["grpc_url"])
            with contextlib.closing(client), pytest.raises(triton.InferenceServerException, match="restricted"):
                client.is_server_ready()
            with contextlib.closing(triton.InferenceServerClient(at["grpc_url"])) as client:
                assert client.is_server_ready(headers={"triton-grpc-protocol-key": SECRET})

    def test_grpc_speaks_tls(self, prepared: Path, tmp_path: Path) -> None:
        """With our certificate; a client that speaks plain text is not understood. HTTP stays as it is."""
        import tritonclient.grpc as triton

        cert, key = write_certificate(tmp_path)
        with serving(prepared, f"serve.tls_cert={cert}", f"serve.tls_key={key}") as at:
            options = {"ssl": True, "root_certificates": str(cert)}
            with contextlib.closing(triton.InferenceServerClient(at["grpc_url"], **options)) as client:
                assert client.is_server_ready()
            plain = triton.InferenceServerClient(at["grpc_url"])
            with contextlib.closing(plain), pytest.raises(triton.InferenceServerException):
                plain.is_server_ready(client_timeout=5)
            assert http_status(at, "/v2/health/ready") == 200

    @pytest.mark.parametrize("key", ["missing", "junk"])
    def test_a_key_that_is_none_is_explained(self, prepared: Path, tmp_path: Path, key: str) -> None:
        """A file that is not there is found before the start (exit code 2), one that holds no key by gRPC (4)."""
        cert, _ = write_certificate(tmp_path)
        (tmp_path / "junk").write_text("no key\n")
        keys = (f"serve.tls_cert={cert}", f"serve.tls_key={tmp_path / key}", "serve.models=[preprocessing]")
        done = specdeploy("serve", *(word for setting in keys for word in ("--set", setting)), cwd=prepared)

        assert done.returncode == (2 if key == "missing" else 4), done.stderr
        said = (
            f"the certificate or key {tmp_path}/missing cannot be read"
            if key == "missing"
            else "none that gRPC can use"
        )
        assert said in done.stderr
        assert processes_of(prepared) == []

    def test_named_models_are_loaded_with_what_they_need(self, prepared: Path) -> None:
        """The front door brings its steps and its engines; the second one, which nobody named, stays where it is."""
        with serving(prepared, "serve.models=[ensemble]") as at:
            seen = status(prepared)
            assert "text_output" in generate(at)

        states = {model["name"]: model["state"] for model in seen["models"]}
        assert states.pop("tensorrt_llm_bls") != "READY"
        assert set(states.values()) == {"READY"}
        assert seen["ready"] is True

    def test_a_server_without_its_front_door_is_ready_without_an_answer(self, prepared: Path) -> None:
        """And says so: there is nothing to ask."""
        with serving(prepared, "serve.models=[preprocessing]") as at:
            assert status(prepared)["ready"] is True
            probed = specdeploy("serve", "status", "--probe", cwd=prepared)

        assert "the front door is not loaded" in at["said"]
        assert probed.returncode == 4

    def test_log_and_metrics_switches(self, prepared: Path) -> None:
        """No metrics port is opened, info lines are left out, and status still works from the rest."""
        with serving(prepared, "serve.metrics=false", "serve.log_info=false") as at:
            seen = status(prepared)
            log = Path(seen["log"]).read_text()
        few = ("serve.models=[preprocessing]", "serve.extra_args=[--model-load-thread-count=2]")
        with serving(prepared, "serve.log_verbose=1", *few) as loud:
            verbose = Path(status(prepared)["log"]).read_text()

        assert at["metrics_url"] is None
        assert (seen["ready"], seen["metrics_url"]) == (True, None)
        assert all(model["queue"] is None for model in seen["models"])
        assert "successfully loaded" not in log
        assert loud["metrics_url"]
        assert len(verbose) > 2 * len(log)

    def test_a_local_server_serves_the_same_repository(self, prepared: Path, stand_ins: StandIns) -> None:
        """A tritonserver on PATH with its own backends, started with its strictly checked options."""
        keys = ("serve.runner=local",)
        with serving(prepared, *keys, env={"PATH": stand_ins.path}) as at:
            assert "text_output" in generate(at)
            assert status(prepared)["ready"] is True

        (call,) = stand_ins.calls("tritonserver")
        assert call["cwd"] == str(prepared / "models")

    def test_a_container_serves_the_same_repository(self, prepared: Path, stand_ins: StandIns) -> None:
        """The engines are seen inside at the paths that the repository names them by."""
        keys = ("serve.runner=container", "container.image=some:1")
        with serving(prepared, *keys, env={"PATH": stand_ins.path}) as at:
            assert "text_output" in generate(at)

        run = next(call["argv"] for call in stand_ins.calls("docker") if call["argv"][0] == "run")
        assert f"--mount=type=bind,source={prepared}/engines,target={prepared}/engines,readonly" in run
        assert stand_ins.containers() == []

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_nothing_is_left_however_the_command_ends(self, prepared: Path, number: signal.Signals) -> None:
        """Also when it is killed and can clean up nothing."""
        with in_foreground(prepared) as process:
            process.send_signal(number)
            code = process.wait(60)

        assert code == (-9 if number == signal.SIGKILL else 128 + number)
        assert eventually(lambda: processes_of(prepared) == [])
        assert specdeploy("serve", "status", cwd=prepared).returncode == 4

    def test_a_server_that_another_terminal_stops_ends_well(self, prepared: Path) -> None:
        """What somebody asked for is no failure: the command that served says what happened and exits with 0."""
        with in_foreground(prepared) as process:
            stopped = specdeploy("serve", "stop", cwd=prepared)
            _, said = process.communicate(timeout=60)
        looked = specdeploy("serve", "status", cwd=prepared)

        assert stopped.stdout == "stopped\n", stopped.stderr
        assert process.returncode == 0, said
        assert "another command stopped it" in said
        assert "of the last one: it was stopped (SIGTERM)" in looked.stderr

    @pytest.mark.parametrize("damage", ["truncated", "removed"])
    def test_a_server_without_its_state_is_stopped(self, prepared: Path, damage: str) -> None:
        """Neither is it forgotten, nor a second one started beside it."""
        with serving(prepared, "serve.models=[preprocessing]"):
            state = prepared / "models.run" / "server.json"
            if damage == "truncated":
                state.write_text(state.read_text()[:100])
            else:
                shutil.rmtree(state.parent)
            looked = specdeploy("serve", "status", cwd=prepared)
            second = specdeploy("serve", "--detach", cwd=prepared)

        assert (looked.returncode, second.returncode) == (4, 4)
        for done in (looked, second):
            assert "its server.json there is damaged or gone" in done.stderr
            assert "serve stop" in done.stderr

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("serve.models=[ensembel]", "did you mean ensemble?"),
            ("serve.host=localhost", "serve.host is 'localhost', and tritonserver binds addresses only"),
        ],
    )
    def test_what_could_not_be_served_is_refused_before_the_start(
        self, prepared: Path, setting: str, message: str
    ) -> None:
        """A model that is not there and a host that is no address: exit code 2, and nothing was started."""
        done = specdeploy("serve", "--set", setting, cwd=prepared)

        assert done.returncode == 2
        assert message in done.stderr
        assert "starting" not in done.stderr

    def test_an_option_that_this_triton_does_not_have_is_refused_by_it(self, prepared: Path) -> None:
        """Triton answers with pages of help; the first line has what it does not know, and nothing is left running."""
        done = specdeploy("serve", "--set", "serve.extra_args=[--no-such-option]", cwd=prepared)

        assert done.returncode == 4
        assert "did not start: this tritonserver does not know the option '--no-such-option'" in done.stderr
        assert processes_of(prepared) == []

    def test_a_repository_of_another_profile_is_refused(self, prepared: Path) -> None:
        """By its name and the configuration's: exit code 2."""
        manifest = prepared / "models" / "specdeploy.json"
        original = manifest.read_text()
        manifest.write_text(original.replace('"profile": "cpu"', '"profile": "llmapi"'))
        try:
            done = specdeploy("serve", cwd=prepared)
        finally:
            manifest.write_text(original)

        assert done.returncode == 2
        assert "is for profile llmapi, and the configuration is for cpu" in done.stderr

    def test_a_repository_that_is_not_there_or_not_ours(self, prepared: Path, tmp_path: Path) -> None:
        """Each has its message and exit code 2, and no run directory is left beside it."""
        (tmp_path / "foreign" / "model" / "1").mkdir(parents=True)
        absent = specdeploy("serve", "--set", f"repo.path={tmp_path}/absent", cwd=prepared)
        foreign = specdeploy("serve", "--set", f"repo.path={tmp_path}/foreign", cwd=prepared)

        assert (absent.returncode, foreign.returncode) == (2, 2)
        assert "absent is not there" in absent.stderr
        assert "specdeploy repo" in absent.stderr
        assert "is no model repository of specdeploy" in foreign.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["foreign"]


class TestRefused:
    """Before anything starts, and without a runtime, a GPU or a container engine."""

    def test_more_gpus_than_there_are(self, gpu_folder: Path, tmp_path: Path) -> None:
        """nvidia-smi shows fewer than the engines are placed on: exit code 4 with both numbers."""
        toolchain = install_toolchain(tmp_path / "toolchain", "1.2.1", gpus=1)
        done = self._serve(gpu_folder, tmp_path, env={"PATH": toolchain.env["PATH"]})

        assert done.returncode == 4
        assert "placed on GPU 1, counted from 0, and nvidia-smi shows 1 here" in done.stderr

    @pytest.mark.parametrize("gpus", ["1", "device=3"])
    def test_a_container_with_too_few_gpus(self, gpu_folder: Path, tmp_path: Path, gpus: str) -> None:
        """What the configuration itself contradicts is exit code 2."""
        self._program(tmp_path / "docker")
        keys = ("serve.runner=container", f"container.gpus={gpus}")
        done = self._serve(gpu_folder, tmp_path, *keys, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})

        assert done.returncode == 2
        assert f"container.gpus {gpus} gives the server 1" in done.stderr

    def test_visible_devices_count(self, gpu_folder: Path, tmp_path: Path) -> None:
        """CUDA_VISIBLE_DEVICES hides GPUs from the server, whatever nvidia-smi shows."""
        toolchain = install_toolchain(tmp_path / "toolchain", "1.2.1", gpus=8)
        env = {"PATH": toolchain.env["PATH"], "CUDA_VISIBLE_DEVICES": "5"}
        done = self._serve(gpu_folder, tmp_path, env=env)

        assert done.returncode == 2
        assert "CUDA_VISIBLE_DEVICES=5 gives the server 1" in done.stderr

    def test_missing_programs(self, gpu_folder: Path, tmp_path: Path) -> None:
        """Server, launcher and container engine are each named, with the other way to serve: exit code 4."""
        env = {"PATH": str(tmp_path / "empty")}
        server = specdeploy("serve", "--set", "serve.runner=local", cwd=gpu_folder, env=env)
        engine = specdeploy("serve", "--set", "container.engine=podman", cwd=gpu_folder, env=env)
        launcher = self._serve(gpu_folder, tmp_path, "serve.mpirun=no-mpirun", mpirun=False, env=env)

        assert {done.returncode for done in (server, engine, launcher)} == {4}
        assert "there is no tritonserver here" in server.stderr
        assert "podman is not on PATH" in engine.stderr
        assert "no-mpirun is not a program on PATH" in launcher.stderr

    def test_the_embedded_server_is_not_for_gpus(self, gpu_folder: Path) -> None:
        """It could never load their engines: exit code 2 before anything else is looked at."""
        done = specdeploy("serve", "--set", "serve.runner=embedded", cwd=gpu_folder)

        assert done.returncode == 2
        assert "embedded" in done.stderr

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("serve.tls_cert=c.pem", "go together"),
            ("serve.http_restricted_api=[helth:a=b]", "'helth' is no part of the API"),
            ("serve.extra_args=[--http-port=1]", "may not set --http-port"),
            ("serve.extra_args=[--http-addr=0.0.0.0]", "which stands for --http-address"),
            ("serve.extra_args=[positional]", "'positional' is neither an option"),
        ],
    )
    def test_keys_that_cannot_work(self, gpu_folder: Path, setting: str, message: str) -> None:
        """Also in a dry run: exit code 2."""
        done = specdeploy("serve", "--dry-run", "--set", setting, cwd=gpu_folder)

        assert done.returncode == 2
        assert message in done.stderr

    @pytest.mark.parametrize(
        "words", [("--json", "status"), ("--detach", "stop"), ("--set", "serve.host=::1", "status")]
    )
    def test_options_before_a_subcommand_are_refused(self, gpu_folder: Path, words: tuple[str, ...]) -> None:
        """They would be ignored: exit code 2, and where they belong."""
        done = specdeploy("serve", *words, cwd=gpu_folder)

        assert done.returncode == 2
        assert f"{words[0]} stands before {words[-1]}" in done.stderr

    def test_a_dry_run_needs_nothing(self, gpu_folder: Path, tmp_path: Path) -> None:
        """Neither a program nor a GPU; it prints the command, as text or as a document, and leaves nothing."""
        env = {"PATH": str(tmp_path)}
        before = sorted(gpu_folder.rglob("*"))
        text = specdeploy("serve", "--dry-run", cwd=gpu_folder, env=env)
        document = json.loads(specdeploy("serve", "--dry-run", "--json", cwd=gpu_folder, env=env).stdout)

        assert text.returncode == 0, text.stderr
        assert text.stdout.startswith("PYTHONDONTWRITEBYTECODE=1 docker run ")
        assert "free ports" in text.stderr
        assert document["mode"] == "leader"
        assert document["gpus"] == [0, 1]
        assert document["cleanup"] == ["docker", "rm", "--force", "--volumes", "specdeploy-NAME"]
        assert sorted(gpu_folder.rglob("*")) == before

    def _serve(
        self, folder: Path, programs: Path, *settings: str, mpirun: bool = True, env: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Serve with programs that are there and never run."""
        server = self._program(programs / "tritonserver")
        keys = [f"serve.tritonserver={server}"]
        keys += [f"serve.mpirun={self._program(programs / 'mpirun')}"] if mpirun else []
        overrides = [word for key in ["serve.runner=local", *keys, *settings] for word in ("--set", key)]
        done = specdeploy("serve", *overrides, cwd=folder, env=env)
        assert not (programs / "ran").exists()
        return done

    def _program(self, path: Path) -> Path:
        path.write_text(f"#!/bin/sh\ntouch {path.parent}/ran\n")
        path.chmod(0o755)
        return path


@pytest.fixture
def stand_ins(triton_runtime, tmp_path) -> StandIns:
    """The programs that are first on PATH where a test puts them there."""
    return install_stand_ins(tmp_path / "bin", triton_runtime)


@pytest.fixture
def gpu_folder(tmp_path: Path) -> Path:
    """A configuration for two GPUs and a repository that says it is for them."""
    folder = tmp_path / "gpu"
    (folder / "models").mkdir(parents=True)
    (folder / "engines").mkdir()
    (folder / "models" / "specdeploy.json").write_text('{"profile": "tensorrt_llm", "models": ["ensemble"]}')
    (folder / "specdeploy.yaml").write_text(
        "name: two\nprofile: tensorrt_llm\nrelease: 1.2.1\ntarget: {checkpoint: target, tp_size: 2}\n"
        "speculation: {method: lookahead}\nrepo: {path: models}\ngpu: {name: H100-80GB, count: 2}\n"
    )
    return folder


@contextlib.contextmanager
def in_foreground(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Serve one model in the foreground, as in another terminal; the block begins when it is ready."""
    argv = [sys.executable, "-u", "-m", "specdeploy", "serve", "--set", "serve.models=[preprocessing]"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, cwd=folder, **pipes) as process:
        try:
            assert process.stdout.readline().startswith("endpoint")
            yield process
        finally:
            process.kill()


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for loopback and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*argv, *names], check=True, capture_output=True, timeout=60)
    return cert, key


def stubs_of(server: int, model: str) -> list[int]:
    """Return the process of *server* that runs *model*; both are on the stub's command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = set((entry / "cmdline").read_text().split("\0"))
            if {str(server), f"{model}_0_0"} <= words:
                found.append(int(entry.name))
    assert found, f"no process serves {model}"
    return found
