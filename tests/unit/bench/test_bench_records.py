"""Records on disk."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.records import (
    INTERRUPTED,
    WARMUP_PAIR,
    RequestRecord,
    records_from_jsonl,
    records_to_jsonl,
)
from specdeploy.errors import ConfigError
from tests.unit.bench.simulated import failed, record

NUMBERS = st.floats(-5e10, 5e10)
COUNTS = st.integers(0, 2**40)


def in_order(record: RequestRecord) -> RequestRecord:
    """Return a record that was sent before anything came of it."""
    came = [record.first_s, record.last_s, record.ended_s, *record.chunk_s]
    return dataclasses.replace(record, sent_s=min(moment_s for moment_s in came if moment_s is not None))


RECORDS = st.builds(
    RequestRecord,
    arm=st.sampled_from(["control", "speculation"]),
    pair=st.integers(-1, 9),
    index=COUNTS,
    concurrency=COUNTS,
    prompt_id=st.text(),
    category=st.text(),
    intended_s=NUMBERS,
    sent_s=NUMBERS,
    first_s=st.none() | NUMBERS,
    last_s=st.none() | NUMBERS,
    ended_s=NUMBERS,
    chunk_s=st.lists(NUMBERS).map(tuple),
    chunk_tokens=st.lists(COUNTS).map(tuple),
    output_ids=st.lists(COUNTS).map(tuple),
    input_tokens=st.none() | COUNTS,
    histogram=st.lists(COUNTS).map(tuple),
    error=st.none() | st.text(),
    error_message=st.text(),
).map(in_order)


@given(st.lists(RECORDS, max_size=4))
def test_records_survive_the_file(records: list[RequestRecord]) -> None:
    """What is read is what was written, to the last bit of every time."""
    assert records_from_jsonl(records_to_jsonl(records)) == tuple(records)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 is list"),
        ('{"arm": "control"}', "missing"),
        ('{"colour": 1}', "colour"),
    ],
)
def test_a_damaged_file_is_refused(text: str, word: str) -> None:
    """A cut or foreign file is an error that names the line or the field."""
    with pytest.raises(ConfigError) as caught:
        records_from_jsonl(text)

    assert word in caught.value.message


def test_what_counts() -> None:
    """Failures count; warm-up, and requests that we cut off ourselves, do not."""
    cases = [record(), failed(), record(pair=WARMUP_PAIR), failed(INTERRUPTED)]

    assert [item.counts for item in cases] == [True, True, False, False]
