"""The split of a plan over several generators."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import signal
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.driver import INTERRUPTED_BY_USER, build_request, run_load
from specdeploy.bench.prompts import Prefixes, load_bundled
from specdeploy.bench.schedule import LoadSettings, plan_load
from specdeploy.bench.shards import WHOLE, Shard, block_starts, fingerprint, parse_shard
from specdeploy.errors import ConfigError
from tests.unit.bench.fakes import FakeClock, FakeServer

CODE = load_bundled("code")
LOADS = st.one_of(
    st.builds(
        lambda concurrency, requests: {"concurrency": tuple(concurrency), "requests": requests},
        st.lists(st.integers(1, 9), min_size=1, max_size=2, unique=True),
        st.integers(1, 30),
    ),
    st.builds(
        lambda shape, requests: {"shape": shape, "rates": (5.0, 20.0), "requests": requests},
        st.sampled_from(["constant", "poisson", "gamma"]),
        st.integers(1, 30),
    ),
)


def plan(**settings):
    """A plan of the bundled prompts."""
    return plan_load(LoadSettings(**{"pairs": 2, "warmup_requests": 3, **settings}), CODE)


def shards(wanted, of):
    """The plan of each of so many generators."""
    return [dataclasses.replace(wanted, shard=Shard(number=number + 1, of=of)) for number in range(of)]


def sent(wanted):
    """Everything that a plan sends: where it belongs, when, and what."""
    return [
        (number, index, block.offsets_s[index] if block.is_open else None, build_request(wanted, block, index))
        for number, block in enumerate(wanted.blocks)
        for index in wanted.shard.indices(block)
    ]


@given(load=LOADS, of=st.integers(1, 7), seed=st.integers(0, 2**32), sampled=st.booleans())
def test_the_shards_together_are_the_plan(load, of: int, seed: int, sampled: bool) -> None:
    """Each request of the whole is one shard's: the same prompt, sampled alike, at the same index and time."""
    whole = plan(**load, seed=seed, temperature=0.7 if sampled else 0.0, distinct=sampled)
    parts = shards(whole, of)
    together = [item for part in parts for item in sent(part)]

    assert [index for _, index, *_ in sent(whole)] == [i for block in whole.blocks for i in range(len(block.prompts))]
    assert sorted(together, key=lambda item: item[:2]) == sent(whole)
    assert [part.total_requests for part in parts] == [len(sent(part)) for part in parts]
    assert {fingerprint(part) for part in parts} == {fingerprint(whole)}


@given(concurrency=st.integers(1, 20), of=st.integers(1, 9), requests=st.integers(1, 100))
def test_a_closed_loop_is_split_as_evenly_as_it_goes(concurrency: int, of: int, requests: int) -> None:
    """As many slots as the whole has; requests in proportion to them; a shard without a slot sends nothing."""
    whole = plan(concurrency=(concurrency,), requests=requests, warmup_requests=0)
    block = whole.blocks[0]
    slots = [part.shard.in_flight(block) for part in shards(whole, of)]
    counts = [part.shard.count(block) for part in shards(whole, of)]

    assert sum(slots) == block.in_flight
    assert max(slots) - min(slots) <= 1
    assert all(
        abs(count - requests * own / block.in_flight) < own + 1 for count, own in zip(counts, slots, strict=True)
    )
    assert [part.shard.takes_part(block) for part in shards(whole, of)] == [bool(own) for own in slots]


def test_a_load_by_time_never_meets() -> None:
    """However many requests each shard sends, no two of them are the same one, and the rounds have no gap."""
    whole = plan(concurrency=(5,), duration_s=10.0)
    block = whole.blocks[-1]
    firsts = [list(itertools.islice(part.shard.indices(block), 60)) for part in shards(whole, 3)]
    seen = Counter(index for first in firsts for index in first)

    assert max(seen.values()) == 1
    assert set(range(100)) <= seen.keys()
    assert [part.total_requests for part in shards(whole, 3)] == [None] * 3
    assert list(Shard(number=9, of=9).indices(block)) == []


def test_connections_are_those_of_the_share() -> None:
    """A shard opens what its own requests need."""
    closed, open_loop = plan(concurrency=(5,)), plan(shape="constant", rates=(20.0,))

    assert [part.connections for part in (closed, *shards(closed, 2))] == [5, 3, 2]
    assert [part.connections for part in (open_loop, *shards(open_loop, 4))] == [40, 10, 10, 10, 10]


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"requests": 5}, {"pairs": 3}, {"concurrency": (2,)}, {"shape": "constant", "rates": (2.0,)}],
    ids=str,
)
def test_another_plan_has_another_fingerprint(change) -> None:
    """Whatever is sent otherwise, or at another time."""
    assert fingerprint(plan(**change)) != fingerprint(plan())


@given(of=st.integers(1, 5), share=st.sampled_from([0.3, 1.0]), requests=st.integers(1, 20))
def test_the_shards_have_the_prefixes_of_the_plan(of: int, share: float, requests: int) -> None:
    """Which request begins with which common prefix follows from the whole, not from who sends it."""
    settings = LoadSettings(requests=requests, pairs=2, prefix_tokens=2, prefix_count=2, prefix_share=share)
    whole = plan_load(settings, CODE, prefixes=Prefixes(("Be kind.", "Be brief.")))
    together = [item for part in shards(whole, of) for item in sent(part)]

    assert sorted(together, key=lambda item: item[:2]) == sent(whole)
    assert {fingerprint(part) for part in shards(whole, of)} == {fingerprint(whole)}
    assert fingerprint(whole) != fingerprint(plan_load(settings, CODE))


def test_other_texts_under_the_same_name_have_another_fingerprint() -> None:
    """A file of prompts that was edited between two shards is noticed."""
    edited = dataclasses.replace(
        CODE, prompts=tuple(dataclasses.replace(prompt, text=f"{prompt.text} ") for prompt in CODE.prompts)
    )

    assert fingerprint(plan_load(plan().settings, edited)) != fingerprint(plan())


def test_a_shard_is_read_as_it_is_written() -> None:
    """From 1 on."""
    assert parse_shard(" 2/8 ") == Shard(number=2, of=8)
    assert str(Shard(number=2, of=8)) == "2/8"
    assert Shard() == WHOLE


@pytest.mark.parametrize(
    ("text", "said"),
    [("0/2", "no shard 0/2"), ("3/2", "no shard 3/2"), ("1/0", "no shard 1/0"), ("2", "cannot read"), ("-1/2", "read")],
)
def test_what_is_no_shard_is_refused(text: str, said: str) -> None:
    """With the value that was seen and what to write."""
    with pytest.raises(ConfigError, match=said) as refused:
        parse_shard(text)

    assert "1/" in refused.value.hint


class TestRun:
    """The driver with a shard's plan, against a scripted server."""

    def run(self, wanted, begin=None):
        """Run it."""
        clock = FakeClock()
        server = FakeServer(clock)
        return run_load(wanted, server, server, clock, begin=begin), server

    def test_shards_send_what_the_whole_sends(self) -> None:
        """Each record has its place in the whole plan; a shard without a slot ends at once."""
        whole = plan(concurrency=(2,), requests=5)
        runs = [self.run(part)[0] for part in shards(whole, 3)]
        place = lambda record: (record.pair, record.arm, record.index, record.prompt_id, record.concurrency)  # noqa: E731

        assert sorted(place(record) for run in runs for record in run.records) == sorted(
            place(record) for record in self.run(whole)[0].records
        )
        assert [len(run.records) for run in runs] == [14, 9, 0]
        assert not any(run.partial for run in runs)

    def test_it_is_known_when_each_block_began(self) -> None:
        """Of those blocks that the shard had a part in."""
        wanted = dataclasses.replace(plan(concurrency=(2,), warmup_requests=1), shard=Shard(number=2, of=2))
        run, _ = self.run(wanted)
        starts = block_starts(wanted, run)

        assert len(run.block_starts_s) == len(wanted.blocks) == 5
        assert [(start["pair"], start["arm"]) for start in starts] == [
            (0, "control"),
            (0, "speculation"),
            (1, "speculation"),
            (1, "control"),
        ]
        assert [start["start_s"] for start in starts] == list(run.block_starts_s[1:])

    def test_blocks_begin_when_they_are_told(self) -> None:
        """Each asks once, when it is ready; the run begins with the first."""
        clock = FakeClock()
        server, asked = FakeServer(clock), []

        async def begin(number: int) -> float:
            asked.append(number)
            return clock.advance(10.0)

        run = run_load(plan(pairs=1, warmup_requests=0), server, server, clock, begin=begin)

        assert asked == [0, 1]
        assert (run.started_s, run.block_starts_s[0]) == (1010.0, 1010.0)
        assert run.block_starts_s[1] == pytest.approx(1010.0 + 6 * 0.3 + 10.0)

    def test_who_cannot_say_when_ends_the_run(self) -> None:
        """The fault is the caller's, and the wire is closed."""
        clock = FakeClock()
        server = FakeServer(clock)

        async def begin(_number: int) -> float:
            raise ConfigError("nobody is there")

        with pytest.raises(ConfigError, match="nobody"):
            run_load(plan(), server, server, clock, begin=begin)
        assert (server.sent, server.closed) == ([], 1)

    def struck(self, number: int):
        """Run a plan whose second block is waited for while a signal comes; return what it gave."""
        clock = FakeClock()
        server = FakeServer(clock)

        async def begin(block: int) -> float:
            if block:
                asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), number)
            return clock.monotonic() + 3600.0 * block

        return run_load(plan(warmup_requests=0), server, server, clock, begin=begin)

    def test_ctrl_c_while_a_block_is_waited_for(self) -> None:
        """The run ends at once, with what it has."""
        run = self.struck(signal.SIGINT)

        assert (run.stop_reason, len(run.records)) == (INTERRUPTED_BY_USER, 6)

    def test_sigterm_while_a_block_is_waited_for(self) -> None:
        """The run ends and says so; whoever asked for it keeps the results first, and then acts on the signal."""
        seen = []

        def handler(number: int, _frame: object) -> None:
            seen.append(number)

        before = signal.signal(signal.SIGTERM, handler)
        try:
            run = self.struck(signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) is handler
        finally:
            signal.signal(signal.SIGTERM, before)

        assert (seen, run.stop_reason, len(run.records)) == ([], "terminated", 6)
