"""Measure the ratios that the README quotes and print them as one table.

Ratios are of two things measured alternately in this run, so that a busy or slow machine moves both. With the argument
``cross-check``, measure what ``docs/cross-check.md`` quotes instead; with ``gate-real``, how often the gate raises a
false alarm on real runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.bench import cross_check, engines, gate, gate_real, load_generator, planning, smoke, startup

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Run the benchmarks and print a table, then one JSON line."""
    if sys.argv[1:] == ["cross-check"]:
        cross_check.main()
        return
    if sys.argv[1:] == ["gate-real"]:
        gate_real.main()
        return
    demo = ROOT / "build" / "smollm2-135m.yaml"
    measured = (*startup.rows(), *planning.rows(), *engines.rows(demo), *smoke.rows(demo), *load_generator.rows())
    rows = [*measured, *gate.rows()]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name.ljust(width)}  {value:8.3f}")
    print(json.dumps(dict(rows)))


if __name__ == "__main__":
    sys.exit(main())
