"""The CPU backend inside a real tritonserver, with a tiny target and draft: tensors in, tensors out."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from specdeploy.triton.pbtxt import InstanceGroup, ModelConfig, render
from specdeploy.triton.sources import backend_sources
from specdeploy.triton.tensors import release_tensors
from tests.tiny import perturb_checkpoint, write_tiny_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.cpu, pytest.mark.triton]

TENSORS = release_tensors("1.2.1").models["tensorrt_llm"]
TYPES = {tensor.name: tensor.data_type.removeprefix("TYPE_") for tensor in TENSORS.inputs}
NUMPY = {"INT32": np.int32, "FP32": np.float32, "BOOL": np.bool_, "UINT64": np.uint64}
MAX_SEQ_LEN = 256
START_S, CALL_S, STOP_S = 60, 30, 20
PROMPT = [10, 40, 77, 120, 5, 200]


def compile_engine(checkpoint: Path, output: Path) -> None:
    """Compile a checkpoint as the build does."""
    argv = [sys.executable, "-m", "specdeploy.cpu.compile", "--checkpoint", str(checkpoint), "--precision", "fp32"]
    subprocess.run([*argv, "--output", str(output), "--threads", "1"], check=True, timeout=120, capture_output=True)


def write_model(repository: Path, name: str, engine: str, *, decoupled: bool = False, **parameters: str) -> None:
    """Write an engine model: the templates' tensors, the parameters that the CPU backend reads."""
    config = ModelConfig(
        name=name,
        backend="tensorrtllm",
        max_batch_size=1,
        inputs=TENSORS.inputs,
        outputs=TENSORS.outputs,
        instance_group=(InstanceGroup(count=1, kind="KIND_CPU"),),
        decoupled=decoupled,
        parameters={
            "gpt_model_type": "inflight_fused_batching",
            "gpt_model_path": engine,
            "specdeploy_max_sequences": "3",
            "specdeploy_max_seq_len": str(MAX_SEQ_LEN),
            **parameters,
        },
    )
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(render(config), encoding="utf-8")


def write_backends(tritonserver: Path, directory: Path) -> None:
    """Make a backend directory: Triton's python backend with its stub, and ours beside it."""
    home = tritonserver.parents[1]
    shutil.copytree(home / "backends" / "python", directory / "python")
    stub = home / "python_backend_stubs" / "3.11" / "triton_python_backend_stub"
    (directory / "python" / stub.name).symlink_to(stub)
    for path, code in backend_sources().items():
        file = directory / "tensorrtllm" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(code)


class Server:
    """A tritonserver process and a client of it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        from tritonclient import grpc

        self.process = process
        self.log = log
        self.client = grpc.InferenceServerClient(f"127.0.0.1:{port}")

    def await_ready(self) -> None:
        """Return when every model is ready; fail with the log when the server ends or takes too long."""
        deadline = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                if self.client.is_server_ready(client_timeout=2):
                    return
            time.sleep(0.05)
        pytest.fail(f"tritonserver is not ready:\n{self.log.read_text()[-3000:]}")

    def stop(self) -> None:
        """End the server and every process of its session."""
        self.client.close()
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def inputs(self, prompt: list[int], count: int, **values: object) -> list[object]:
        """Return Triton inputs, each with the batch dimension."""
        from tritonclient import grpc

        given = {"input_ids": prompt, "input_lengths": [len(prompt)], "request_output_len": [count], **values}
        made = []
        for name, value in given.items():
            array = np.asarray(value, NUMPY[TYPES[name]])
            made.append(grpc.InferInput(name, [1, *array.shape], TYPES[name]))
            made[-1].set_data_from_numpy(array[None])
        return made

    def infer(self, model: str, prompt: list[int], count: int, **values: object) -> dict[str, np.ndarray]:
        """Return the outputs of one request, new ids only."""
        values = {"exclude_input_in_output": [True], **values}
        result = self.client.infer(model, self.inputs(prompt, count, **values), client_timeout=CALL_S)
        names = [tensor.name for tensor in result.get_response().outputs]
        return {name: result.as_numpy(name) for name in names}

    def ids(self, model: str, prompt: list[int], count: int, **values: object) -> list[int]:
        """Return the new ids of one request."""
        return self.infer(model, prompt, count, **values)["output_ids"].reshape(-1).tolist()

    def streamed_ids(self, model: str, prompt: list[int], count: int) -> list[int]:
        """Return the new ids of one streamed request, joined up to the response that is flagged as final."""
        results: queue.SimpleQueue[tuple[object, object]] = queue.SimpleQueue()
        self.client.start_stream(callback=lambda result, error: results.put((result, error)))
        try:
            inputs = self.inputs(prompt, count, streaming=[True])
            self.client.async_stream_infer(model, inputs, enable_empty_final_response=True)
            got: list[int] = []
            final = False
            while not final:
                result, error = results.get(timeout=CALL_S)
                assert error is None
                got += result.as_numpy("output_ids").reshape(-1).tolist()
                final = result.get_response().parameters["triton_final_response"].bool_param
        finally:
            self.client.stop_stream()
        return got


@pytest.fixture(scope="module")
def engines(tmp_path_factory) -> Path:
    """A folder with a tiny target engine and a draft that often agrees with it."""
    root = tmp_path_factory.mktemp("engines")
    target = write_tiny_checkpoint(root / "checkpoint-target", seed=7)
    draft = perturb_checkpoint(target, root / "checkpoint-draft", 0.02)
    compile_engine(target, root / "target")
    compile_engine(draft, root / "draft")
    shutil.copytree(root / "target", root / "damaged")
    (root / "damaged" / "model.onnx").write_bytes(b"not a network")
    return root


@pytest.fixture(scope="module")
def server(triton_runtime, engines, tmp_path_factory):
    """A tritonserver with the target, the draft, a decoupled target, and models that cannot be loaded."""
    from specdeploy.system.files import free_port

    root = tmp_path_factory.mktemp("server")
    models = root / "repository"
    write_model(models, "target", str(engines / "target"))
    write_model(models, "draft", os.path.relpath(engines / "draft", models))
    write_model(models, "streaming", str(engines / "target"), decoupled=True)
    write_model(models, "missing", str(engines / "nowhere"))
    write_model(models, "damaged", str(engines / "damaged"))
    write_model(models, "too_long", str(engines / "target"), specdeploy_max_seq_len="100000")
    write_backends(triton_runtime.tritonserver, root / "backends")
    query = [str(triton_runtime.python), "-c", "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"]
    libraries = subprocess.run(query, check=True, timeout=CALL_S, capture_output=True, text=True).stdout.strip()
    port = free_port("127.0.0.1")
    argv = [
        str(triton_runtime.tritonserver),
        f"--model-repository={models}",
        f"--backend-directory={root / 'backends'}",
        "--model-control-mode=explicit",
        "--load-model=target",
        "--load-model=draft",
        "--load-model=streaming",
        "--disable-auto-complete-config",
        "--log-verbose=1",
        "--allow-gpu-metrics=false",
        "--pinned-memory-pool-byte-size=0",
        "--allow-http=false",
        "--allow-metrics=false",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={port}",
    ]
    search = f"{triton_runtime.python.parent}{os.pathsep}{os.environ['PATH']}"
    log = root / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"LD_LIBRARY_PATH": libraries, "PATH": search},
            start_new_session=True,
        )
    running = Server(process, port, log)
    try:
        running.await_ready()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def plain(engines) -> list[int]:
    """48 greedy tokens after ``PROMPT``, decoded with the runtime's library alone."""
    import onnxruntime_genai as og

    model = og.Model(str(engines / "target"))
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=MAX_SEQ_LEN)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array(PROMPT, np.int32))
    ids: list[int] = []
    for _ in range(48):
        ids.append(int(np.argmax(generator.get_logits().reshape(-1))))
        generator.append_tokens(np.array(ids[-1:], np.int32))
    return ids


def test_the_log_says_that_this_is_a_stand_in(server: Server) -> None:
    """Nobody takes a rehearsal on a CPU for TensorRT-LLM."""
    assert "CPU stand-in for the TensorRT-LLM backend, not TensorRT-LLM" in server.log.read_text()


def test_plain_requests_decode_greedily(server: Server, plain: list[int]) -> None:
    """The ids are those of the bare engine, with the prompt in front by default."""
    assert server.ids("target", PROMPT, 48) == plain
    echoed = server.infer("target", PROMPT, 4, exclude_input_in_output=[False])
    assert echoed["output_ids"].tolist() == [[PROMPT + plain[:4]]]
    assert echoed["sequence_length"].tolist() == [[len(PROMPT) + 4]]


def test_draft_and_target_together_write_what_the_target_writes(server: Server, plain: list[int]) -> None:
    """The loop of a decoder over both engines, each round one request to either."""
    got: list[int] = []
    accepted = 0
    while len(got) < 48:
        room = 48 - len(got)
        draft = server.ids("draft", PROMPT + got, min(4, room))
        answer = server.infer("target", PROMPT + got, room, draft_input_ids=draft, return_perf_metrics=[True])
        accepted += answer["total_accepted_draft_tokens"].item()
        got += answer["output_ids"].reshape(-1).tolist()

    assert got == plain
    assert accepted > 0


def test_draft_logits_travel_from_engine_to_engine(server: Server) -> None:
    """generation_logits of the draft go into the target's verification of a sampled request."""
    how = {"runtime_top_p": [0.9], "seed": [5]}
    drafted = server.infer("draft", PROMPT, 4, return_generation_logits=[True], return_log_probs=[True], **how)
    ids = drafted["output_ids"].reshape(-1).tolist()
    assert drafted["generation_logits"].shape == (1, 1, 4, 300)
    assert drafted["output_log_probs"].shape == (1, 1, 4)

    verified = server.ids(
        "target", PROMPT, 8, draft_input_ids=ids, draft_logits=drafted["generation_logits"].reshape(4, -1), **how
    )

    assert 1 <= len(verified) <= 5
    assert verified[:-1] == ids[: len(verified) - 1]


def test_an_empty_draft_is_a_plain_request(server: Server, plain: list[int]) -> None:
    """A tensor without elements reaches the backend and asks for nothing."""
    assert server.ids("target", PROMPT, 6, draft_input_ids=[]) == plain[:6]


def test_many_requests_at_once_are_each_answered_right(server: Server, plain: list[int]) -> None:
    """Four times as many callers as sequences, plain and verifying, wait their turn in one instance."""

    def call(n: int) -> list[int]:
        drafts = {"draft_input_ids": plain[n : n + 3]} if n % 2 else {}
        return server.ids("target", PROMPT + plain[:n], 8, **drafts)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(call, range(24), timeout=CALL_S))

    assert answers == [plain[n : n + (4 if n % 2 else 8)] for n in range(24)]


def test_long_prompts_come_in_chunks_and_are_reused_in_blocks(server: Server) -> None:
    """A prompt longer than a prefill chunk; the second request finds it in the cache and writes the same."""
    prompt = [3 + (7 * n) % 290 for n in range(200)]
    first = server.infer("target", prompt, 5, return_perf_metrics=[True])
    second = server.infer("target", prompt, 5, return_perf_metrics=[True])

    assert second["output_ids"].tolist() == first["output_ids"].tolist()
    assert first["kv_cache_alloc_total_blocks"].item() == 4
    assert second["kv_cache_reused_blocks"].item() == 3


def test_a_wrong_request_is_refused_and_the_engine_serves_on(server: Server, plain: list[int]) -> None:
    """The error names the input and both numbers, has the right class, and harms nobody."""
    from tritonclient.utils import InferenceServerException

    with pytest.raises(
        InferenceServerException, match=r"\(6 \+ 251\) exceeds maximum sequence length \(256\)"
    ) as caught:
        server.ids("target", PROMPT, 251)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    with pytest.raises(InferenceServerException, match="beam_width"):
        server.ids("target", PROMPT, 4, beam_width=[2])
    with pytest.raises(InferenceServerException, match="streaming"):
        server.ids("target", PROMPT, 4, streaming=[True])
    assert server.ids("target", PROMPT, 4) == plain[:4]


def test_only_the_outputs_asked_for_are_sent(server: Server) -> None:
    """Requested outputs are honoured, which old stubs crash on otherwise; without these two there is no answer."""
    from tritonclient import grpc
    from tritonclient.utils import InferenceServerException

    def outputs(*names: str) -> list[str]:
        wanted = [grpc.InferRequestedOutput(name) for name in names]
        result = server.client.infer("target", server.inputs(PROMPT, 2), outputs=wanted, client_timeout=CALL_S)
        return [tensor.name for tensor in result.get_response().outputs]

    assert outputs("output_ids", "sequence_length") == ["output_ids", "sequence_length"]
    with pytest.raises(InferenceServerException, match="output_ids tensor must be present in list of output tensors"):
        outputs("sequence_length")


def test_a_request_that_stops_another_needs_its_id(server: Server) -> None:
    """And has no outputs, whether there was one under way or not."""
    from tritonclient.utils import InferenceServerException

    def stop(name: str) -> list[str]:
        inputs = server.inputs([1], 1, stop=[True])
        result = server.client.infer("target", inputs, request_id=name, client_timeout=CALL_S)
        return [tensor.name for tensor in result.get_response().outputs]

    assert stop("nobody") == []
    with pytest.raises(InferenceServerException, match="request ID is not provided"):
        stop("")


def test_a_cancelled_request_stops_being_decoded(server: Server, plain: list[int]) -> None:
    """The engine drops requests that are cancelled while they are decoded; it is free for the next one."""
    from tritonclient import grpc

    chunks: queue.SimpleQueue[object] = queue.SimpleQueue()
    server.client.start_stream(callback=lambda result, error: chunks.put(error or result))
    try:
        for _ in range(12):
            server.client.async_stream_infer("streaming", server.inputs(PROMPT, 240, streaming=[True]))
        # A request that is cancelled before it reaches the engine never does: wait until one is being decoded.
        assert isinstance(chunks.get(timeout=CALL_S), grpc.InferResult)
    finally:
        server.client.stop_stream(cancel_requests=True)

    deadline = time.monotonic() + CALL_S
    while "streaming: a request was cancelled" not in server.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert server.streamed_ids("streaming", PROMPT, 4) == plain[:4]


def test_a_decoupled_engine_streams_token_by_token(server: Server, plain: list[int]) -> None:
    """Each response holds the new id; joined they are the plain answer, and the final flag comes once."""
    assert server.streamed_ids("streaming", PROMPT, 6) == plain[:6]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("missing", "there is no engine in"),
        ("damaged", "cannot be loaded"),
        ("too_long", "specdeploy_max_seq_len is 100000"),
    ],
)
def test_an_unusable_engine_is_refused_at_load(server: Server, model: str, said: str) -> None:
    """The model does not load, the message says why, and the server and its other models live on."""
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match=said):
        server.client.load_model(model, client_timeout=CALL_S)
    assert server.client.is_model_ready("target", client_timeout=CALL_S)
