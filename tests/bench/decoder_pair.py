"""The decoder over the demo's pair: what its control costs beside the bare target, and what speculation gains by load.

Both are measured in turns in one run. The control is a request of no drafts through the front door; the bare target is
the engine's model, asked for the same tokens directly. The gain is that of the deployment's own way, with adaptation,
over the control.
"""

from __future__ import annotations

import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from specdeploy.bench.prompts import load_bundled
from specdeploy.triton.client import TritonClient
from specdeploy.triton.protocol import GenerateRequest, Tensor
from specdeploy.triton.repository import names
from tests.bench.smoke import served
from tests.deployments import specdeploy

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS: Final = 48
REPEATS: Final = 16
CONCURRENCY: Final = (1, 2, 4, 8, 16)
#: Blocks in which adaptation learns, before those that are measured.
LEARNING: Final = 3
BLOCKS: Final = 7
#: Of an answer whose speed by load is compared, and of a request whose drafts do not adapt.
SHORT: Final = 32
DRAFTS: Final = 4
TIMEOUT_S: Final = 600.0


def rows(recipe: Path) -> list[tuple[str, float]]:
    """Return what the control costs and what speculation gains.

    Args:
        recipe: The demo's configuration.
    """
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=recipe.parents[1] / "triton_repo") as scratch:
        place = Path(scratch)
        changes = {
            "repo.path": place / "models",
            "report.path": place,
            "speculation.adaptive": "true",
            # Requests that wait for the decoder would hide what the engines gain.
            "build.max_batch_size": max(CONCURRENCY),
        }
        demo = ("--config", str(recipe), *(word for key, to in changes.items() for word in ("--set", f"{key}={to}")))
        with served(place, *demo):
            addresses = json.loads(specdeploy("serve", "status", "--json", *demo, cwd=place).stdout)
            with TritonClient(addresses["http_url"], addresses["grpc_url"], timeout_s=TIMEOUT_S) as client:
                return [*_control(client), *(_gain(client, concurrency) for concurrency in CONCURRENCY)]


def _control(client: TritonClient) -> list[tuple[str, float]]:
    """Compare the front door without drafts with the target's model, both from the prompt's last token on."""
    prompt = load_bundled("code").prompts[0].text
    ways: dict[str, Callable[[], object]] = {
        "bare": lambda: _bare(client, prompt),
        "control": lambda: client.generate_grpc(_request(prompt, 0, stream=False)),
        "control, streamed": lambda: list(client.stream_grpc(_request(prompt, 0, stream=True))),
    }

    def seconds(name: str) -> float:
        started = time.perf_counter()
        ways[name]()
        return time.perf_counter() - started

    # The first of each has the prompt to read.
    for name in ways:
        seconds(name)
    rounds = []
    for turn in range(REPEATS):
        # What drifts falls on all alike.
        order = list(ways)[:: -1 if turn % 2 else 1]
        rounds.append({name: seconds(name) for name in order})
    return [
        (f"decoder: {name} / the bare target", median(taken[name] / taken["bare"] for taken in rounds))
        for name in list(ways)[1:]
    ]


def _bare(client: TritonClient, prompt: str) -> None:
    ids = np.asarray([client.infer(names.PREPROCESSING, _texts(prompt))["INPUT_ID"].reshape(-1)], np.int32)
    fields = {"input_lengths": ids.shape[1], "request_output_len": TOKENS}
    tensors = [
        Tensor(name=name, datatype="INT32", data=np.array([[value]], np.int32)) for name, value in fields.items()
    ]
    client.infer(names.TARGET, [Tensor(name="input_ids", datatype="INT32", data=ids), *tensors])


def _texts(prompt: str) -> list[Tensor]:
    text = Tensor(name="QUERY", datatype="BYTES", data=np.array([[prompt.encode()]], np.object_))
    length = Tensor(name="REQUEST_OUTPUT_LEN", datatype="INT32", data=np.array([[TOKENS]], np.int32))
    return [text, length]


def _request(prompt: str, drafts: int | None, *, stream: bool, tokens: int = TOKENS) -> GenerateRequest:
    return GenerateRequest(prompt=prompt, max_tokens=tokens, num_draft_tokens=drafts, stream=stream)


def _gain(client: TritonClient, concurrency: int) -> tuple[str, float]:
    """Compare throughputs in blocks that take turns, of the same prompts; the median of the ratios of pairs."""
    prompts = [prompt.text for prompt in load_bundled("code").prompts[: max(concurrency, 4)]]
    ratios = []
    with ThreadPoolExecutor(concurrency) as pool:

        def rate(drafts: int | None) -> float:
            started = time.perf_counter()
            requests = [_request(prompt, drafts, stream=True, tokens=SHORT) for prompt in prompts]
            tokens = sum(answer.num_output_tokens for answer in pool.map(client.generate_grpc, requests))
            return tokens / (time.perf_counter() - started)

        # Both engines read the prompts first, which is no part of decoding; then adaptation learns what pays.
        rate(DRAFTS)
        for _ in range(LEARNING):
            rate(None)
        for block in range(BLOCKS):
            # What drifts falls on both alike.
            found = {drafts: rate(drafts) for drafts in ((None, 0) if block % 2 else (0, None))}
            ratios.append(found[None] / found[0])
    return f"decoder: speculation / target alone, {concurrency} at once, adaptive", median(ratios)
