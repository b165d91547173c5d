"""One load test out of the results of its shards."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math

import pytest

from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.merge import Part, merge
from specdeploy.bench.records import LoadRun
from specdeploy.bench.schedule import LoadSettings
from specdeploy.bench.shards import Shard, block_starts, fingerprint
from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.findings import Finding
from tests.unit.bench.simulated import CONTEXT, Simulator

CLOSED = LoadSettings(concurrency=(3,), requests=24, pairs=2)
OPEN = LoadSettings(shape="poisson", rates=(4.0,), requests=24, pairs=2)
NOTICED = Finding(severity="warning", code="load.kv-cache-flatters", message="few prompts")
BOOTED_S = 1_769_000_000.0


def moved(record, by_s: float):
    """A record on a clock that began so much earlier."""
    times = {key: getattr(record, key) + by_s for key in ("intended_s", "sent_s", "first_s", "last_s", "ended_s")}
    return dataclasses.replace(record, **times, chunk_s=tuple(moment + by_s for moment in record.chunk_s))


@functools.cache
def simulated(settings=CLOSED):
    """An unsharded run, when each of its blocks began, and its plan."""
    run, plan = Simulator().run(settings)
    # Of a closed loop the records come in the order of the index.
    counted, starts = iter(run.records), []
    for block in plan.blocks:
        own = [next(counted) for _ in block.prompts]
        starts.append(min(record.intended_s for record in own) - min(block.offsets_s, default=0.0))
    return dataclasses.replace(run, started_s=starts[0], block_starts_s=tuple(starts)), plan


def split(settings=CLOSED, of: int = 3, **apart: float) -> list[Part]:
    """The results of so many shards; see `_split`."""
    return list(_split(settings, of, **apart))


@functools.cache
def _split(settings, of: int, *, clock_s: float = 0.0, late_s: float = 0.0) -> tuple[Part, ...]:
    """The run as so many shards would have measured it.

    Args:
        settings: Of the run.
        of: How many.
        clock_s: How far apart their monotonic clocks are.
        late_s: The last shard did everything so much later.
    """
    run, plan = simulated(settings)
    begin = 0
    blocks = []
    for block in plan.blocks:
        blocks.append(run.records[begin : begin + len(block.prompts)])
        begin += len(block.prompts)
    parts = []
    for number in range(1, of + 1):
        shard = Shard(number=number, of=of)
        by_s = clock_s * number + (late_s if number == of else 0.0)
        records = [
            moved(records[index], by_s)
            for block, records in zip(plan.blocks, blocks, strict=True)
            for index in shard.indices(block)
        ]
        own = LoadRun(
            records=tuple(records),
            started_s=run.started_s + by_s,
            duration_s=run.duration_s,
            block_starts_s=tuple(start_s + by_s for start_s in run.block_starts_s),
        )
        part = dataclasses.replace(plan, shard=shard)
        context = dataclasses.replace(CONTEXT, client={"cpu_s": 1.5, "processes": 1})
        document = build_load_report(own, part, context, (NOTICED,)) | {
            "shard": {
                "number": number,
                "of": of,
                "schedule": fingerprint(part),
                "start_at": BOOTED_S + 100.0,
                "epoch_offset_s": BOOTED_S - clock_s * number,
                "records": len(records),
                "blocks": block_starts(part, own),
                "findings": [NOTICED.as_dict()],
            }
        }
        parts.append(
            Part(source=f"shard-{number}.json", document=json.loads(json.dumps(document)), records=own.records)
        )
    return tuple(parts)


def changed(part: Part, path: str, value: object) -> Part:
    """A part whose document says something else."""
    document = copy.deepcopy(dict(part.document))
    *folders, key = path.split(".")
    place = document
    for folder in folders:
        place = place[folder]
    place[key] = value
    return dataclasses.replace(part, document=document)


def codes(document: dict) -> list[str]:
    """Codes of its findings."""
    return [finding["code"] for finding in document["findings"]]


def leaves(value, path=""):
    """Every value of a document, by its path, but for dates."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for name, item in items for key, leaf in leaves(item, f"{path}.{name}").items()}
    return {} if path in {".created", ".started_at"} else {path: value}


def same(one: dict, other: dict, *, but: tuple[str, ...] = ()) -> bool:
    """Whether two documents say the same but for rounding, and but for keys that end so."""
    ours, theirs = ({k: v for k, v in leaves(document).items() if not k.endswith(but)} for document in (one, other))
    assert ours.keys() == theirs.keys()
    differing = [
        key
        for key, value in ours.items()
        if not (
            value == pytest.approx(theirs[key], rel=1e-6, abs=1e-6)
            if isinstance(value, float)
            else value == theirs[key]
        )
    ]
    assert differing == []
    return True


def unsharded(settings=CLOSED, of: int = 3) -> dict:
    """The document of the run as one generator would have measured it."""
    run, plan = simulated(settings)
    context = dataclasses.replace(CONTEXT, client={"cpu_s": 1.5 * of, "processes": of})
    return build_load_report(run, plan, context, (NOTICED,))


class TestWhole:
    """All shards are there."""

    @pytest.mark.parametrize("settings", [CLOSED, OPEN], ids=["closed", "open"])
    @pytest.mark.parametrize("of", [1, 2, 3])
    def test_the_document_is_that_of_one_generator(self, settings, of: int) -> None:
        """On one clock every number is the same: percentiles, intervals, blocks, speed-up, acceptance."""
        document, records = merge(split(settings, of))
        about = document.pop("shards")

        assert sorted(records, key=repr) == sorted(simulated(settings)[0].records, key=repr)
        assert same(document, unsharded(settings, of))
        assert document["created"] == document["started_at"] == "2026-01-21T12:55:00.000000+00:00"
        assert (about["of"], about["present"]) == (of, list(range(1, of + 1)))
        assert (about["start_skew_s"], about["largest_skew_s"]) == ((0.0, 0.0) if of > 1 else (None, None))
        assert sum(shard["requests"] for shard in about["shards"]) == 96

    def test_percentiles_are_those_of_all_records(self) -> None:
        """And not an average of the shards' own, which are others."""
        parts = split()
        of_shards = {part.document["arms"][0]["metrics"]["request_latency"]["p99"] for part in parts}
        p99 = merge(parts).document["arms"][0]["metrics"]["request_latency"]["p99"]

        assert p99 == unsharded()["arms"][0]["metrics"]["request_latency"]["p99"]
        assert p99 not in of_shards
        assert p99 != pytest.approx(sum(of_shards) / 3, rel=1e-6)

    def test_clocks_that_began_at_other_times(self) -> None:
        """Records come onto the clock of the first shard; what was measured stays the same but for rounding."""
        document, records = merge(split(clock_s=12345.678))
        by_place = {(record.pair, record.arm, record.index): record for record in records}
        about = document.pop("shards")

        assert same(document, unsharded(), but=("start_s", "started_s"))
        for record in simulated()[0].records:
            there = by_place[record.pair, record.arm, record.index]
            assert there.chunk_s == pytest.approx(moved(record, 12345.678).chunk_s, abs=1e-6)
            assert there.intended_s == pytest.approx(record.intended_s + 12345.678, abs=1e-6)
        assert document["started_s"] == pytest.approx(100.0 + 12345.678)
        assert about["largest_skew_s"] == pytest.approx(0.0, abs=1e-6)
        assert not document["degraded"]

    def test_what_the_generators_used_is_summed(self) -> None:
        """CPU time and processes."""
        assert merge(split()).document["client"] == {"cpu_s": 4.5, "processes": 3}

    def test_the_order_of_the_files_does_not_matter(self) -> None:
        """They say themselves which they are."""
        assert merge(split()[::-1]) == merge(split())

    def test_it_is_json(self) -> None:
        """As every document."""
        document = merge(split()).document

        assert json.loads(json.dumps(document, allow_nan=False)) == document


class TestDegraded:
    """Runs whose numbers are less than they seem."""

    def test_a_shard_that_began_late(self) -> None:
        """The skew is reported, and one that is not small marks the run."""
        document = merge(split(late_s=1.5)).document

        assert document["degraded"]
        assert codes(document) == [NOTICED.code, "load.shards-apart"]
        assert document["shards"]["start_skew_s"] == pytest.approx(1.5)
        assert document["shards"]["largest_skew_s"] == pytest.approx(1.5)
        assert "1.500 s of" in document["findings"][1]["message"]
        assert "--start-at" in document["findings"][1]["hint"]

    def test_a_small_skew_is_only_reported(self) -> None:
        """A few milliseconds of a block of seconds."""
        document = merge(split(late_s=0.01)).document

        assert document["shards"]["start_skew_s"] == pytest.approx(0.01)
        assert (document["degraded"], codes(document)) == (False, [NOTICED.code])

    def test_a_shard_whose_generator_was_late(self) -> None:
        """Too few of all requests to show in a percentile, and still not what was asked for."""
        parts = split()
        document = merge([*parts[:2], changed(parts[2], "degraded", value=True)]).document

        assert document["degraded"]
        assert "shard 3/3" in document["findings"][1]["message"]

    def test_machines_that_differ(self) -> None:
        """A warning that says in what."""
        parts = split()
        document = merge([*parts[:2], changed(parts[2], "environment.python", "3.12.1")]).document

        assert not document["degraded"]
        assert codes(document) == [NOTICED.code, "load.shards-differ"]
        assert "python ('3.11.9' and '3.12.1')" in document["findings"][1]["message"]


class TestPartial:
    """Shards that are missing or ended early."""

    def test_a_missing_shard_is_no_run(self) -> None:
        """Unless what is there is wanted; then the whole says what is missing."""
        parts = split()
        with pytest.raises(CannotDecide, match=r"of 3 shards 1, 3 are missing") as refused:
            merge(parts[1:2])
        document, records = merge([parts[0], parts[2]], partial=True)

        assert "--partial" in refused.value.hint
        assert (document["partial"], document["stop_reason"]) == (True, "of 3 shards 2 is missing")
        assert len(records) == sum(len(part.records) for part in (parts[0], parts[2]))
        assert document["shards"]["present"] == [1, 3]

    def test_a_shard_that_ended_early_makes_the_whole_partial(self) -> None:
        """With its reason."""
        parts = split()
        stopped = changed(changed(parts[1], "partial", value=True), "stop_reason", "terminated")
        document = merge([parts[0], stopped, parts[2]]).document

        assert (document["partial"], document["stop_reason"]) == (True, "shard 2/3: terminated")

    def test_nothing(self) -> None:
        """There is nothing to decide."""
        with pytest.raises(CannotDecide, match="no shards"):
            merge([])


class TestRefused:
    """What is not one run."""

    @pytest.mark.parametrize(
        ("path", "value", "said"),
        [
            ("plan.seed", 9, r"differ in the load \(seed: 0 and 9\)"),
            ("deployment.name", "other", r"deployment \(name: 'smollm2' and 'other'\)"),
            ("objectives", ["request_latency <= 1ms"], "objectives"),
            ("shard.schedule", "0", "prompts or schedule"),
            ("shard.start_at", 1.0, r"common start \(1769000100.0 and 1.0\)"),
            ("shard.of", 4, r"number of shards \(3 and 4\)"),
        ],
    )
    def test_shards_of_several_runs(self, path: str, value: object, said: str) -> None:
        """Both files are named, and what differs, with the values."""
        parts = split()
        with pytest.raises(ConfigError, match=said) as refused:
            merge([*parts[:2], changed(parts[2], path, value)])

        assert "shard-1.json and shard-3.json" in refused.value.message

    def test_a_shard_that_is_there_twice(self) -> None:
        """Both files are named."""
        parts = split()
        with pytest.raises(ConfigError, match=r"shard 1/3 is there twice: shard-1\.json and again\.json"):
            merge([*parts, dataclasses.replace(parts[0], source="again.json")])

    def test_requests_that_two_shards_sent(self) -> None:
        """Whatever their documents say."""
        first, *_, last = split()
        stolen = dataclasses.replace(
            first, source=last.source, document={**first.document, "shard": {**first.document["shard"], "number": 3}}
        )
        with pytest.raises(ConfigError, match="was sent by two shards"):
            merge([first, stolen], partial=True)

    @pytest.mark.parametrize(
        ("path", "value", "said"),
        [
            ("kind", "smoke", "no result of a shard"),
            ("shard", None, "no result of a shard"),
            ("schema_version", "0.9", "schema version '0.9', and not '1.0'"),
            ("shard.records", 7, r"is of 7 requests, and the records beside it are \d+"),
            ("shard.epoch_offset_s", None, "damaged"),
            ("shard.blocks", [{}], "damaged: KeyError"),
            ("shard.findings", [{"no": 1}], "damaged"),
            ("client", {}, "damaged: KeyError: 'cpu_s'"),
            ("started_s", "soon", "damaged"),
            ("started_s", math.nan, "damaged"),
            ("started_s", 1e308, "damaged"),
            ("duration_s", True, "damaged"),
            ("client.cpu_s", math.inf, "damaged"),
            ("environment", [], "damaged: TypeError: environment is list"),
            ("shard.number", "1", "damaged"),
            ("shard.blocks", [{"arm": [], "pair": 0, "concurrency": 1, "rate": None, "start_s": 0.0}], "damaged"),
            ("objectives", 5, "damaged"),
            ("stop_reason", None, "damaged"),
            ("plan", {}, "damaged"),
        ],
    )
    def test_what_is_no_result_of_a_shard(self, path: str, value: object, said: str) -> None:
        """Named by its file, with what to do."""
        with pytest.raises(ConfigError, match=said) as refused:
            changed(split()[0], path, value)

        assert refused.value.message.startswith("shard-1.json")
        assert refused.value.hint
