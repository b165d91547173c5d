"""A real tritonserver with two small models of ours: a decoupled one that can misbehave, and an ensemble in front."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from specdeploy.triton.client import TritonClient
from specdeploy.triton.server import TritonServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from specdeploy.triton.runtime import Runtime
    from specdeploy.triton.server import RunningServer

INPUTS = {
    "text_input": ("TYPE_STRING", "1", False),
    "max_tokens": ("TYPE_INT32", "1", False),
    "stream": ("TYPE_BOOL", "1", True),
    "stop_words": ("TYPE_STRING", "-1", True),
    "seed": ("TYPE_UINT64", "1", True),
}
OUTPUTS = {
    "text_output": ("TYPE_STRING", "-1"),
    "output_ids": ("TYPE_INT32", "-1"),
    "finish_reason": ("TYPE_STRING", "1"),
    "num_output_tokens": ("TYPE_INT32", "1"),
}

# `text_input` says how to behave; anything else is echoed `max_tokens` times, a token for each.
MODEL = """
import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb

FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def value(request, name):
    tensor = pb.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1)


def respond(text, ids, reason, count):
    return pb.InferenceResponse(
        [
            pb.Tensor("text_output", np.array([[text.encode()]], dtype=object)),
            pb.Tensor("output_ids", np.array([ids], dtype=np.int32)),
            pb.Tensor("finish_reason", np.array([[reason.encode()]], dtype=object)),
            pb.Tensor("num_output_tokens", np.array([[count]], dtype=np.int32)),
        ]
    )


class TritonPythonModel:
    def initialize(self, args):
        self.cancelled = 0

    def execute(self, requests):
        for request in requests:
            args = (request, request.get_response_sender())
            threading.Thread(target=self.serve, args=args, daemon=True).start()

    def serve(self, request, sender):
        text = value(request, "text_input")[0].decode()
        count = int(value(request, "max_tokens")[0])
        stream = value(request, "stream")
        if text == "die":
            os._exit(1)
        elif count < 1:
            refusal = pb.TritonError("max_tokens must be at least 1", pb.TritonError.INVALID_ARG)
            sender.send(pb.InferenceResponse(error=refusal), flags=FINAL)
        elif text == "count cancellations":
            sender.send(respond("", [self.cancelled], "length", 1), flags=FINAL)
        elif text == "inputs":
            words = [word.decode() for word in value(request, "stop_words")]
            sender.send(respond("|".join([*words, str(value(request, "seed")[0])]), [0], "length", 1), flags=FINAL)
        elif stream is not None and stream[0]:
            self.stream(request, sender, text, count)
        else:
            whole = "".join(f"{text} {i} " for i in range(count))
            sender.send(respond(whole, list(range(count)), "length", count), flags=FINAL)

    def stream(self, request, sender, text, count):
        for i in range(count):
            if request.is_cancelled():
                self.cancelled += 1
                sender.send(flags=FINAL)
                return
            if text == "break" and i == 2:
                broken = pb.TritonError("the engine broke", pb.TritonError.INTERNAL)
                sender.send(pb.InferenceResponse(error=broken), flags=FINAL)
                return
            last = i == count - 1
            flags = FINAL if last and text != "end apart" else 0
            sender.send(respond(f"{text} {i} ", [i], "length" if last else "", i + 1), flags=flags)
            if text == "slow":
                time.sleep(0.05)
        if text == "end apart":
            sender.send(flags=FINAL)
"""


@contextlib.contextmanager
def plain_triton(runtime: Runtime, directory: Path) -> Iterator[RunningServer]:
    """Start a server with the two models, and stop it at the end."""
    _write_models(directory / "models")
    with TritonServer(runtime, directory / "models", run_dir=directory / "run") as server:
        yield server


def client_of(server: RunningServer, **options: Any) -> TritonClient:
    """Connect."""
    where = server.endpoints
    return TritonClient(where.http_url, where.grpc_url, metrics_url=where.metrics_url, **{"timeout_s": 20.0, **options})


def _write_models(directory: Path) -> None:
    inputs = ", ".join(
        f'{{ name: "{n}" data_type: {t} dims: [ {d} ] optional: {str(o).lower()} }}' for n, (t, d, o) in INPUTS.items()
    )
    outputs = ", ".join(f'{{ name: "{n}" data_type: {t} dims: [ {d} ] }}' for n, (t, d) in OUTPUTS.items())
    tensors = f"max_batch_size: 1\ninput [ {inputs} ]\noutput [ {outputs} ]\n"
    maps = " ".join(
        f'{kind}_map {{ key: "{n}" value: "{n}" }}'
        for kind, names in (("input", INPUTS), ("output", OUTPUTS))
        for n in names
    )
    configs = {
        "decoder": 'backend: "python"\nmodel_transaction_policy { decoupled: true }\n'
        "instance_group [ { count: 1 kind: KIND_CPU } ]\n",
        "ensemble": 'platform: "ensemble"\nensemble_scheduling { step [ { model_name: "decoder" model_version: -1 '
        f"{maps} }} ] }}\n",
    }
    for name, config in configs.items():
        version = directory / name / "1"
        version.mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(f'name: "{name}"\n{tensors}{config}', encoding="utf-8")
    (directory / "decoder" / "1" / "model.py").write_text(MODEL, encoding="utf-8")
