"""The import graph is the architecture: these tests keep it a stack of floors."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[2] / "specdeploy"

# Lowest floor first. An entry is a module or a whole room (a package); the longest entry that matches a module counts.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "findings", "holm", "unique_keys"}),
    frozenset(
        {
            "config.schema",
            "config.template",
            "config.leaves",
            "config.values",
            "config.document",
            "config.draft_lengths",
            "config.rules",
            "config.gate_defaults",
            "checkpoint.info",
            "checkpoint.compat",
            "checkpoint.huggingface",
            "checkpoint.head",
            "checkpoint.head_compat",
            "checkpoint.trtllm",
            "checkpoint.fitness",
            "checkpoint.tokenizer",
            "planning",
            "deploy",
            "engine",
            "triton.tensors",
            "triton.pbtxt",
            "triton.repository",
            "triton.lint",
            "triton.protocol",
            "bench",
            "gate",
            "report",
        }
    ),
    frozenset({"system"}),
    frozenset(
        {
            "config.load",
            "checkpoint.read",
            "checkpoint.folder",
            "checkpoint.read_head",
            "checkpoint.read_trtllm",
            "checkpoint.read_converted",
            "checkpoint.safetensors",
            "engine.store",
            "engine.execute",
            "engine.chain",
            "triton.runtime",
            "triton.server",
            "triton.sources",
            "triton.migration_sources",
            "triton.client",
            "openai",
            "bench.driver",
            "bench.wire",
        }
    ),
    frozenset({"smoke"}),
    frozenset({"pipeline"}),
    frozenset({"cli", "__main__"}),
)
PURE = FLOORS[0] | FLOORS[1]
# They stand beside the house: run as `python -m`, or copied into what Triton serves, and imported by nobody.
LEAVES = ("cpu", "modelopt", "triton.models")
IO_MODULES = {
    "asyncio",
    "http",
    "os",
    "random",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
}


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_leaf(name: str) -> bool:
    return any(name == leaf or name.startswith(f"{leaf}.") for leaf in LEAVES)


ALL = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = {name: path for name, path in ALL.items() if name and not _is_leaf(name)}
ROOMS_WITHOUT_CODE = {"config", "checkpoint", "triton"}


def _entry(name: str) -> str | None:
    """Return the longest floor entry that covers module *name*."""
    entries = [e for floor in FLOORS for e in floor if name == e or name.startswith(f"{e}.")]
    return max(entries, key=len, default=None)


def _floor(name: str) -> int:
    entry = _entry(name)
    return next(number for number, floor in enumerate(FLOORS) if entry in floor)


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that happen when the program runs, leaving out those only for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from _runtime_nodes(node)


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in _runtime_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert not node.level, f"{path}: absolute imports only"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _ours(path: Path) -> set[str]:
    names = {name.removeprefix("specdeploy.") for name in _imports(path) if name.startswith("specdeploy.")}
    return names & ALL.keys()


def test_every_module_stands_on_exactly_one_floor() -> None:
    """A new file forces a decision about where it stands."""
    homeless = [name for name in MODULES if _entry(name) is None and name not in ROOMS_WITHOUT_CODE]

    assert homeless == []


def test_every_entry_names_something() -> None:
    """The table of floors does not outlive the rooms it lists."""
    stale = [e for floor in FLOORS for e in floor if not any(n == e or n.startswith(f"{e}.") for n in MODULES)]

    assert stale == []


@pytest.mark.parametrize("name", sorted(set(MODULES) - ROOMS_WITHOUT_CODE))
def test_imports_point_down(name: str) -> None:
    """A module imports its own floor or a lower one, and never a leaf."""
    ours = _ours(MODULES[name]) - ROOMS_WITHOUT_CODE
    upward = {other for other in ours if _is_leaf(other) or _floor(other) > _floor(name)}

    assert upward == set()


@pytest.mark.parametrize("name", sorted(n for n in MODULES if _entry(n) in PURE))
def test_pure_rooms_touch_nothing(name: str) -> None:
    """A pure room imports no module that reads a clock, a file, a socket or a process."""
    allowed = {"random"} if name == "bench.schedule" or name.startswith("bench.prompts.") else set()
    roots = {module.split(".")[0] for module in _imports(MODULES[name])}

    assert roots & IO_MODULES <= allowed


@pytest.mark.parametrize("name", sorted(ROOMS_WITHOUT_CODE))
def test_rooms_that_mix_floors_have_an_empty_front(name: str) -> None:
    """A package whose modules stand on several floors imports nothing, so that a pure import stays pure."""
    assert _imports(MODULES[name]) <= {"__future__", "__future__.annotations"}


def test_there_are_no_import_cycles() -> None:
    """Within a floor, too, imports form a tree and not a ring."""
    graph = {name: _ours(path) - {name} for name, path in MODULES.items()}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for other in graph.get(name, ()):
                # A package's front door may import its rooms, which may name the package: that is no ring.
                if not name.startswith(f"{other}."):
                    walk(other, (*trail, name))
            done.add(name)

    for name in graph:
        walk(name, ())


@pytest.mark.parametrize("name", sorted(n for n in ALL if n.startswith(("triton.models", "cpu.backend"))))
def test_what_runs_inside_triton_imports_nothing_of_ours(name: str) -> None:
    """The stock image has no specdeploy: a model's file imports only its siblings and what the image has."""
    assert not any(module.split(".")[0] == "specdeploy" for module in _imports(ALL[name]))
