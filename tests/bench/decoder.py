"""What the decoder costs: its rounds over engines that answer at once, and many requests over engines that take 10 ms.

The rounds are compared with the two calls to the engines that each of them makes, made in turn by a model that does
nothing else, in the same server; throughput with that of one request at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from specdeploy.config.schema import BuildConfig, DeployConfig, ModelConfig
from specdeploy.triton import pbtxt, runtime
from specdeploy.triton.client import TritonClient
from specdeploy.triton.protocol import GenerateRequest, Tensor, join_chunks
from specdeploy.triton.repository import names
from specdeploy.triton.server import TritonServer
from tests.scripted_engines import write_repository

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE: Final = Path(__file__).parent
DRAFTS: Final = 4
CLIENTS: Final = 64
DELAY_MS: Final = 10.0
SHORT, LONG = 64, 4096
ROUNDS: Final = 60
REPEATS: Final = 21
PAIRS: Final = 3
#: Requests of each client of a closed loop.
WAVES: Final = 5
#: All drafts but every fifth are right, so that a round is of four drafts and the target's own token.
PER_ROUND: Final = 5
ANSWER: Final = 64
BARE: Final = "bare_calls"
#: The engines' tokens, as ``null_engine.py`` has them.
FIRST, TOKENS = 40, 50
TIMEOUT_S: Final = 120.0
MAX_SEQ_LEN: Final = 8192


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundCost:
    """What a round takes, and how many times what its two calls to the engines take by themselves."""

    round_s: float
    ratio: float


def rows() -> list[tuple[str, float]]:
    """Return the decoder's costs."""
    with _serving(delay_ms=0.0) as (client, _):
        short, streamed, long = (_round_cost(client, *kind) for kind in ((SHORT, False), (SHORT, True), (LONG, False)))
    with _serving(delay_ms=DELAY_MS) as (client, models):
        # What drifts falls on both alike.
        pairs = [(_throughput(client, 1), _throughput(client, CLIENTS)) for _ in range(PAIRS)]
        first = _first_token_in_rounds(client, clients=8)
        memory_mb = _memory_mb(models)
    gain = median(many / alone for alone, many in pairs)
    return [
        ("decoder: a round / its two calls to the engines by themselves", short.ratio),
        ("decoder: a streamed round / the same", streamed.ratio),
        (f"decoder: a round after {LONG} tokens / the same with them", long.ratio),
        ("decoder: a round, ms", short.round_s * 1e3),
        (f"decoder: {CLIENTS} requests at once / one at a time, engines of {DELAY_MS:.0f} ms", gain),
        (f"decoder: requests/s of {CLIENTS} at once", median(many for _, many in pairs)),
        ("decoder: first token of 8 clients, in rounds of theirs", first),
        (f"decoder: memory after {CLIENTS} at once, MB", memory_mb),
    ]


def _round_cost(client: TritonClient, prompt: int, stream: bool) -> RoundCost:
    """Measure rounds and bare calls in turn; what a request costs beside its rounds is in neither."""
    _decode(client, prompt, PER_ROUND * ROUNDS, stream=stream)
    rounds_s, ratios = [], []
    for _ in range(REPEATS):
        few, many = (_decode(client, prompt, PER_ROUND * rounds, stream=stream) for rounds in (2, ROUNDS + 2))
        # The ids grow from round to round: in the middle they are as long as they are here.
        bare_s = _bare(client, prompt + PER_ROUND * ROUNDS // 2)
        rounds_s.append((many - few) / ROUNDS)
        ratios.append((many - few) / bare_s)
    return RoundCost(round_s=median(rounds_s), ratio=median(ratios))


def _bare(client: TritonClient, ids: int) -> float:
    asked = [_row("input_ids", FIRST + np.arange(ids) % TOKENS), _row("rounds", [ROUNDS]), _row("drafts", [DRAFTS])]
    return float(client.infer(BARE, asked)["seconds"][0])


def _row(name: str, values: object) -> Tensor:
    return Tensor(name=name, datatype="INT32", data=np.asarray(values, np.int32))


def _decode(client: TritonClient, prompt: int, tokens: int, *, stream: bool = False) -> float:
    """Return the seconds of one answer, which has been checked."""
    # No two of these are one token.
    request = GenerateRequest(prompt="0" * prompt, max_tokens=tokens, num_draft_tokens=DRAFTS, stream=stream)
    started = time.perf_counter()
    answer = join_chunks(list(client.stream_grpc(request))) if stream else client.generate_grpc(request)
    taken = time.perf_counter() - started
    expected = (FIRST + np.arange(prompt, prompt + tokens) % TOKENS).tolist()
    if list(answer.ids) != expected or answer.num_spec_steps > tokens // PER_ROUND + 2:
        raise RuntimeError(f"a wrong answer: {answer}")
    return taken


def _throughput(client: TritonClient, clients: int) -> float:
    """Return requests a second of a closed loop, from when the first wave is answered until the last one is sent."""

    def one(_: int) -> float:
        _decode(client, SHORT, ANSWER)
        return time.perf_counter()

    with ThreadPoolExecutor(clients) as pool:
        ends_s = sorted(pool.map(one, range(WAVES * clients)))
    counted_s = ends_s[clients - 1 : 1 - clients or None]
    return (len(counted_s) - 1) / (counted_s[-1] - counted_s[0])


def _first_token_in_rounds(client: TritonClient, clients: int) -> float:
    """Return how long the first token takes, in rounds of the same streams: both as so many clients see them."""

    def one(_: int) -> tuple[float, float]:
        request = GenerateRequest(prompt="0" * SHORT, max_tokens=ANSWER, num_draft_tokens=DRAFTS)
        started_s = time.monotonic()
        times_s = [chunk.received_s for chunk in client.stream_grpc(request)]
        return times_s[0] - started_s, (times_s[-1] - times_s[0]) / (len(times_s) - 1)

    with ThreadPoolExecutor(clients) as pool:
        firsts_s, rounds_s = zip(*pool.map(one, range(8 * clients)), strict=True)
    return median(firsts_s) / median(rounds_s)


def _memory_mb(models: Path) -> float:
    """Return what the decoder's process holds by itself, and its share of what it has with others."""
    (process,) = (path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if _runs(path, models / names.DECODER))
    (pss,) = re.findall(r"^Pss: +(\d+) kB", (process / "smaps_rollup").read_text(), re.MULTILINE)
    return int(pss) / 1e3


def _runs(command: Path, model: Path) -> bool:
    with contextlib.suppress(OSError):
        return str(model).encode() in command.read_bytes() and b"stub" in command.read_bytes()
    return False


@contextlib.contextmanager
def _serving(*, delay_ms: float) -> Iterator[tuple[TritonClient, Path]]:
    """Serve the generated repository over null engines."""
    found = runtime.find_runtime()
    if found is None:
        raise RuntimeError("the embedded Triton runtime is not installed")
    with tempfile.TemporaryDirectory() as scratch:
        models = Path(scratch, "models")
        _write_repository(models, delay_ms)
        with (
            TritonServer(found, models, run_dir=Path(scratch, "run")) as server,
            TritonClient(server.endpoints.http_url, server.endpoints.grpc_url, timeout_s=TIMEOUT_S) as client,
        ):
            yield client, models


def _write_repository(models: Path, delay_ms: float) -> None:
    checkpoint = ModelConfig(checkpoint="nowhere")
    build = BuildConfig(max_batch_size=CLIENTS, max_seq_len=MAX_SEQ_LEN)
    bare = {
        f"{BARE}/config.pbtxt": pbtxt.render(_bare_config()).encode(),
        f"{BARE}/1/model.py": (HERE / "bare_calls.py").read_bytes(),
    }
    write_repository(
        models,
        DeployConfig(name="null", target=checkpoint, draft=checkpoint, build=build),
        HERE / "null_engine.py",
        lambda _: {"delay_ms": str(delay_ms)},
        more=bare,
    )


def _bare_config() -> pbtxt.ModelConfig:
    return pbtxt.ModelConfig(
        name=BARE,
        backend="python",
        inputs=tuple(
            pbtxt.Tensor(name=name, data_type="TYPE_INT32", dims=(-1,)) for name in ("input_ids", "rounds", "drafts")
        ),
        outputs=(pbtxt.Tensor(name="seconds", data_type="TYPE_FP64", dims=(1,)),),
        instance_group=(pbtxt.InstanceGroup(),),
    )
