"""The files of an export."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from specdeploy.errors import ConfigError
from specdeploy.report.exports import (
    FORMATS,
    aiperf_json,
    aiperf_records,
    csv_table,
    exports,
    github_benchmark,
    load_label,
)
from tests.unit.report.exported import closed_loop, open_loop

DOCUMENT, RECORDS = closed_loop()


def test_every_format_is_a_few_files() -> None:
    """One run of AIPerf's for each arm and load, as `aiperf plot` finds them below one folder."""
    files = exports(DOCUMENT, iter(RECORDS))
    where = {"arm": "speculation", "load": "concurrency 4"}

    assert files["load.csv"] == csv_table(DOCUMENT)
    assert files["benchmark-bigger-is-better.json"] == github_benchmark(DOCUMENT, better="higher")
    assert files["benchmark-smaller-is-better.json"] == github_benchmark(DOCUMENT, better="lower")
    folder = "aiperf/speculation-concurrency-4"
    assert files[f"{folder}/profile_export_aiperf.json"] == aiperf_json(DOCUMENT, RECORDS, **where)
    assert files[f"{folder}/profile_export.jsonl"] == aiperf_records(DOCUMENT, RECORDS, **where)
    assert len(files) == 3 + 2 * 4


@pytest.mark.parametrize("name", FORMATS)
def test_only_what_was_wanted_is_made(name: str) -> None:
    """Only AIPerf's artifacts need the records."""
    files = exports(DOCUMENT, RECORDS if name == "aiperf" else (), [name, name])

    assert files
    assert files.items() <= exports(DOCUMENT, RECORDS).items()


def test_the_clocks_offset_is_passed_on() -> None:
    """For a document that does not say when it was started."""
    assert (
        '"request_start_ns": 17'
        in exports(*open_loop(), ["aiperf"], epoch_offset_s=1.77e9)["aiperf/control-5-requests-s/profile_export.jsonl"]
    )


def test_a_label_stays_in_its_folder() -> None:
    """Whatever a load is called, its files lie in one folder of their own."""
    document, records = closed_loop()
    for number, entry in enumerate(document["arms"]):
        entry["level"] = f"../../{number}/etc"
    paths = [PurePosixPath(path) for path in exports(document, records, ["aiperf"])]

    assert all(len(path.parts) == 3 and ".." not in path.parts for path in paths)
    assert len(set(paths)) == 8


def test_two_loads_of_one_name_are_refused() -> None:
    """One would overwrite the other."""
    document, records = closed_loop()
    document["arms"][0]["level"], document["arms"][2]["level"] = "peak/1", "peak 1"

    with pytest.raises(ConfigError, match="two loads would be exported to aiperf/control-peak-1"):
        exports(document, records, ["aiperf"])


def test_an_unknown_format_is_refused() -> None:
    """With the ones that there are."""
    with pytest.raises(ConfigError, match="'xml' is no export format") as error:
        exports(DOCUMENT, RECORDS, ["csv", "xml"])

    assert "csv, github, aiperf" in error.value.hint


@pytest.mark.parametrize(
    ("entry", "label"),
    [
        ({"concurrency": 4, "rate": None}, "concurrency 4"),
        ({"concurrency": 4}, "concurrency 4"),
        ({"concurrency": None, "rate": 5.0}, "5 requests/s"),
        ({"concurrency": None, "rate": 0.25}, "0.25 requests/s"),
        ({"concurrency": None, "rate": 5.0, "level": "peak"}, "peak"),
    ],
)
def test_a_load_has_a_name(entry: dict, label: str) -> None:
    """Its own, or what it is."""
    assert load_label(entry) == label
