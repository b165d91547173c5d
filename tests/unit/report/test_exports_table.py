"""The load test as CSV."""

from __future__ import annotations

import copy
import csv
import io
import json
import math

from specdeploy.bench.metrics import DISTRIBUTION_STATS
from specdeploy.report.exports import csv_table
from tests.unit.report.exported import closed_loop, open_loop

DOCUMENT, _ = closed_loop()


def rows(document: dict) -> list[dict[str, str]]:
    """The rows of its table."""
    return list(csv.DictReader(io.StringIO(csv_table(document), newline="")))


def find(document: dict, **names: str) -> list[dict[str, str]]:
    """The rows whose cells are these."""
    return [row for row in rows(document) if all(row[name] == value for name, value in names.items())]


def test_every_number_of_every_arm_is_the_documents_own() -> None:
    """One row for each arm, load and metric, in full precision, and no number that the document has not."""
    for entry in DOCUMENT["arms"]:
        for key, value in entry["metrics"].items():
            where = {"arm": entry["arm"], "concurrency": str(entry["concurrency"]), "metric": key, "category": ""}
            found = find(DOCUMENT, **where)
            if "values" in value:
                assert [float(row["value"]) for row in found] == value["values"]
                continue
            (row,) = found
            measured = {stat: float(row[stat]) for stat in DISTRIBUTION_STATS if row[stat]}
            assert measured == {stat: value[stat] for stat in DISTRIBUTION_STATS if stat in value}
            assert row["unit"] == value["unit"]


def test_a_list_has_a_row_for_each_position() -> None:
    """Draft positions begin with 1; a step can accept 0 drafts."""
    where = {"arm": "speculation", "load": "concurrency 4", "category": ""}
    kept = find(DOCUMENT, metric="spec_decode_per_position_acceptance", **where)
    histogram = find(DOCUMENT, metric="spec_decode_acceptance_histogram", **where)

    assert [row["position"] for row in kept] == ["1", "2", "3", "4"]
    assert [row["position"] for row in histogram] == ["0", "1", "2", "3", "4"]
    assert all(row["avg"] == "" for row in kept)


def test_the_ratios_of_the_arms_have_their_interval() -> None:
    """Speed-up and the latency ratios of each load, with the bounds and the number of pairs."""
    (row,) = find(DOCUMENT, arm="both arms", load="concurrency 1", metric="speedup")
    speedup = DOCUMENT["speedup"]["1"]

    assert [float(row[name]) for name in ("avg", "ci_low", "ci_high", "pairs")] == [
        speedup[name] for name in ("avg", "ci_low", "ci_high", "pairs")
    ]
    assert (row["unit"], row["better"]) == ("x", "higher")
    assert find(DOCUMENT, load="concurrency 1", metric="request_latency_ratio")[0]["better"] == "lower"


def test_an_open_loop_is_named_by_its_rate() -> None:
    """There is no concurrency, and no speed-up; latencies are compared."""
    document, _ = open_loop()

    assert {(row["load"], row["concurrency"], row["rate"]) for row in rows(document)} == {("5 requests/s", "", "5.0")}
    assert find(document, metric="speedup") == []
    assert len(find(document, arm="both arms", metric="request_latency_ratio")) == 1


def test_percentiles_have_their_interval() -> None:
    """A bound that so few values cannot give is absent."""
    document = copy.deepcopy(DOCUMENT)
    document["arms"][0]["metrics"]["request_latency"]["percentile_cis"] = {"p50": [1.5, 2.5], "p99": [3.5, None]}
    (row,) = find(document, arm="control", load="concurrency 1", metric="request_latency", category="")

    assert [row[f"{stat}_ci_{side}"] for stat in ("p50", "p99") for side in ("low", "high")] == [
        "1.5",
        "2.5",
        "3.5",
        "",
    ]


def test_a_category_has_rows_of_its_own() -> None:
    """After those of all prompts, which have no category."""
    document = copy.deepcopy(DOCUMENT)
    document["arms"][0]["categories"] = {"prose": {"request_count": {"unit": "requests", "avg": 7.0}}}
    found = find(document, arm="control", load="concurrency 1", metric="request_count")

    assert [row["category"] for row in found] == ["", "prose"]
    assert found[-1]["avg"] == "7.0"


def test_the_order_does_not_depend_on_the_order_of_keys() -> None:
    """A document that was sorted on its way gives the same table."""
    speedup = DOCUMENT["speedup"]
    document = {**DOCUMENT, "speedup": {"4": speedup["4"], "1": speedup["1"]}}

    assert csv_table(json.loads(json.dumps(document, sort_keys=True))) == csv_table(DOCUMENT)
    assert csv_table(document) == csv_table(DOCUMENT)


def test_lines_and_quotes_are_those_of_rfc_4180() -> None:
    """CR LF ends every line; a label with commas, quotes or line breaks is one cell."""
    document = copy.deepcopy(DOCUMENT)
    document["arms"][0]["level"] = 'peak, "noon"\r\nand after'
    text = csv_table(document)

    assert text.endswith("\r\n")
    assert text.count("\n") == text.count("\r\n")
    assert rows(document)[0]["load"] == 'peak, "noon"\r\nand after'


def test_what_a_newer_document_has_beyond_is_kept() -> None:
    """An unknown metric comes last, unknown statistics get columns; an infinity or NaN is no measurement."""
    document = copy.deepcopy(DOCUMENT)
    document["arms"][0]["metrics"]["goodness"] = {
        "unit": "x",
        "avg": 2.0,
        "p999": 3.0,
        "max": math.inf,
        "min": math.nan,
    }
    (row,) = find(document, metric="goodness")

    assert (row["avg"], row["p999"], row["max"], row["min"]) == ("2.0", "3.0", "", "")
    assert row["better"] == "none"


def test_a_run_that_measured_nothing_is_a_header() -> None:
    """No arms, no rows."""
    (header,) = csv_table({"arms": [], "speedup": {}}).splitlines()

    assert header.startswith("arm,load,concurrency,rate,category,metric,unit,better,position,value,avg,")
