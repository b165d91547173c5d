"""Measure the ratios that the README and the documentation quote, and print them as one table.

Ratios are of two things measured alternately in this run, so that a busy or slow machine moves both. Arguments choose
parts: ``make bench ARGS="decoder gate"``. Two that are never among all of them print tables of their own:
``cross-check``, what ``docs/cross-check.md`` quotes, and ``gate-real``, how often the gate raises a false alarm on real
runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench import (
    cross_check,
    decoder,
    decoder_pair,
    engines,
    gate,
    gate_real,
    load_generator,
    planning,
    smoke,
    startup,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEMO: Final = Path(__file__).parents[2] / "build" / "smollm2-135m.yaml"
PARTS: Final[Mapping[str, Callable[[], list[tuple[str, float]]]]] = {
    "startup": startup.rows,
    "planning": planning.rows,
    "engines": lambda: engines.rows(DEMO),
    "decoder": decoder.rows,
    "decoder-pair": lambda: decoder_pair.rows(DEMO),
    "smoke": lambda: smoke.rows(DEMO),
    "load": load_generator.rows,
    "gate": gate.rows,
}
ALONE: Final[Mapping[str, Callable[[], None]]] = {"cross-check": cross_check.main, "gate-real": gate_real.main}


def main(wanted: list[str]) -> None:
    """Run the benchmarks and print a table, then one JSON line."""
    unknown = sorted({*wanted} - {*PARTS, *ALONE})
    if unknown:
        sys.exit(f"there is no benchmark {', '.join(unknown)}; there are {', '.join([*PARTS, *ALONE])}")
    for name in wanted:
        if name in ALONE:
            ALONE[name]()
    chosen = [name for name in PARTS if name in wanted or not wanted]
    rows = [row for name in chosen for row in PARTS[name]()]
    if rows:
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            print(f"{name.ljust(width)}  {value:8.3f}")
        print(json.dumps(dict(rows)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
