"""Many requests of every kind at once, with clients that leave, drafts that fail and readers that are slow.

``SPECDEPLOY_SOAK=10000 pytest tests/integration/test_decoder_soak.py`` makes it a long one.
"""

from __future__ import annotations

import collections
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdeploy.triton.client import RequestFailed
from specdeploy.triton.protocol import join_chunks
from specdeploy.triton.repository import names
from tests.integration.test_decoder import (
    PROMPT,
    SLOTS,
    WAYS,
    ask,
    asking_for,
    config,
    decoder_tensors,
    reference,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.triton

REQUESTS = int(os.environ.get("SPECDEPLOY_SOAK", "240"))
CLIENTS = 16
TOKENS = 16
DOORS = (names.ENSEMBLE, names.BLS, names.DECODER)
PAGE = os.sysconf("SC_PAGE_SIZE")
# The process allocates what it needs for as many requests as it decodes at once, and keeps it.
GROWTH_LIMIT = 24 * 2**20


@pytest.fixture(scope="module")
def client(triton_runtime, tmp_path_factory) -> Iterator:
    """A client of a server of its own."""
    with serving(triton_runtime, tmp_path_factory.mktemp("soak"), config()) as connected:
        connected.folder = tmp_path_factory.getbasetemp()
        yield connected


def prompt(number: int) -> str:
    """Return one of a few prompts: after ``@`` the draft fails, after ``#`` the target."""
    return f"{'@#'[number % 2] if number % 11 in {3, 4} else ''}{PROMPT} {number % 23}"


def answered(client, number: int) -> str:
    """Ask and compare with the target's own answer."""
    text, tokens = prompt(number), 1 + number % TOKENS
    way = list(WAYS)[number % len(WAYS)]
    request = ask(text, tokens, num_draft_tokens=(None, 0, 1, 7)[number // 4 % 4])
    model = DOORS[number // 16 % len(DOORS)]
    answer = WAYS[way](client, request, model=model)
    assert list(answer.ids) == reference(text, tokens), (way, model, text)
    return "answered"


def slowly_read(client, number: int) -> str:
    """Take a stream's chunks with pauses."""
    text, pause = prompt(number), threading.Event()
    chunks = []
    for chunk in (client.stream_grpc, client.stream_http)[number % 2](ask(text, TOKENS)):
        chunks.append(chunk)
        pause.wait(0.02)
    assert list(join_chunks(chunks).ids) == reference(text, TOKENS)
    return "answered"


def left(client, number: int) -> str:
    """Take the first chunk and leave: the front door, or the decoder itself with ids or text, which then stops."""
    request = ask(prompt(number), TOKENS)
    if number % 4 == 0:
        chunks = client.send_tensors(decoder_tensors(prompt(number), stream=True, tokens=TOKENS), model=names.DECODER)
    elif number % 4 == 1:
        chunks = client.stream_grpc(request, model=names.DECODER)
    elif number % 4 == 2:
        chunks = client.stream_http(request, model=names.DECODER)
    else:
        chunks = client.stream_grpc(request)
    next(chunks)
    chunks.close()
    return "left"


def left_at_once(client, number: int) -> str:
    """Do not wait for anything."""
    tensors = decoder_tensors(prompt(number), stream=bool(number % 2), tokens=TOKENS)
    with pytest.raises(RequestFailed):
        list(client.send_tensors(tensors, model=names.DECODER, timeout_s=0.001))
    return "left"


def outcome(client, kind: Callable, number: int) -> str:
    """Return what became of a request; one whose target fails must get the error."""
    try:
        return kind(client, number)
    except RequestFailed as error:
        if not (prompt(number).startswith("#") and "out of memory, says the test" in error.message):
            raise
        return "failed"


def memory(folder: Path) -> int:
    """Return the bytes that the decoder's process holds."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode()
            if str(folder) in command and f"{names.DECODER}/1/model.py" in command:
                return int((process / "statm").read_text().split()[1]) * PAGE
        except OSError:
            continue
    raise AssertionError("the decoder's process is gone")


def finished(client) -> int:
    """Return the requests that the decoder is done with."""
    counts = client.statistics(names.DECODER)
    return counts.success_count + counts.failure_count


def test_nothing_is_lost_and_nothing_is_kept(client) -> None:
    """Every request is answered right, refused with the engine's error, or given up; then all slots are free again."""
    kinds = (answered, answered, answered, slowly_read, left, left_at_once)
    chance = random.Random(8)
    plan = [(chance.choice(kinds), chance.randrange(1000)) for _ in range(REQUESTS)]
    warm_up = REQUESTS // 4

    with ThreadPoolExecutor(CLIENTS) as pool:
        outcomes = collections.Counter(pool.map(lambda entry: outcome(client, *entry), plan[:warm_up]))
        before = memory(client.folder)
        outcomes += collections.Counter(pool.map(lambda entry: outcome(client, *entry), plan[warm_up:]))
        assert sum(outcomes.values()) == REQUESTS
        assert min(outcomes[kind] for kind in ("answered", "failed", "left")) > 0
        # Nobody that asks now is behind one that will never end: as many answers at once as there are slots.
        assert list(pool.map(lambda number: answered(client, 11 * number), range(SLOTS))) == ["answered"] * SLOTS

    # Those that left at once may never have reached the decoder; what has, it is done with, exactly once.
    seen = [finished(client)]
    for _ in asking_for(10):
        seen.append(finished(client))
        if len(seen) > 5 and len(set(seen[-5:])) == 1:
            break
    assert outcomes["answered"] + outcomes["failed"] + SLOTS <= seen[-1] <= REQUESTS + SLOTS + 1
    assert memory(client.folder) - before < GROWTH_LIMIT
