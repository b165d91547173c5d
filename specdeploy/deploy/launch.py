"""From what is to be served and where its ranks go to the one command line that starts it all.

Knows NVIDIA's ways: one process, a leader with ranks beside it, an orchestrator. The LLM API takes the first, however
many GPUs it uses: it starts its own workers. Starts nothing. Where the parts are from:

* ranks, their options and the orchestrator's: launch_triton_server.py of TensorRT-LLM 1.2
* ``--allow-run-as-root``: images run as root unless told otherwise, and mpirun refuses that by itself
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from typing import TYPE_CHECKING, Final

from specdeploy.deploy.access import BLOTTED
from specdeploy.deploy.flags import extra_words, front_flags, worker_flags
from specdeploy.errors import ConfigError
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdeploy.config.schema import ServeConfig
    from specdeploy.deploy.flags import Served
    from specdeploy.planning.placement import Placement

# Carried by everything that a server starts, so that its last child can be found, wherever it has got to.
MARK: Final = "SPECDEPLOY_SERVER"
# The same for the run directory, whose servers can then be found without the file that describes them.
RUN_MARK: Final = "SPECDEPLOY_RUN_DIR"
# Where programs are looked for when nobody says.
_PATH: Final = "/bin:/usr/bin"
_LOAD_THREADS: Final = "--model-load-thread-count"
# Options whose next word is NAME=VALUE: of container engines and of mpirun.
_TAKE_VARIABLE: Final = frozenset({"--env", "-e", "--x", "-x"})
_VARIABLE: Final = re.compile(r"(?P<before>)(?P<name>[A-Za-z_]\w*)=.*", re.DOTALL)
_SETS_VARIABLE: Final = re.compile(r"(?P<before>--env=|-e=?|-x=?)(?P<name>[A-Za-z_]\w*)=.*", re.DOTALL)
# Every container of ours gets them, and they are no secrets.
_HARMLESS: Final = frozenset({"PYTHONUNBUFFERED", "HOME", "USER", "LOGNAME"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """One command that starts a server, whatever processes it consists of.

    Args:
        argv: Program and arguments.
        env: Variables set on top of the inherited environment.
        without: Variables of the inherited environment that it must not see.
        path: Folder that comes first on its PATH; empty is none.
        cwd: Working directory; empty keeps ours.
        cleanup: A command to run when it has ended, however it did; empty is none.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    without: frozenset[str] = frozenset()
    path: str = ""
    cwd: str = ""
    cleanup: tuple[str, ...] = ()

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the whole environment of the command."""
        kept = {name: value for name, value in inherited.items() if name not in self.without}
        first = {"PATH": f"{self.path}:{inherited.get('PATH', _PATH)}"} if self.path else {}
        return {**kept, **first, **self.env}

    def shown(self) -> str:
        """Return the command as one would type it: its directory, its variables, then its words.

        Values of variables that somebody hands to a container or to ranks are blotted out: they may be secrets.
        """
        folder = f"cd {shlex.quote(self.cwd)} && " if self.cwd else ""
        path = f'PATH={shlex.quote(self.path)}:"$PATH" ' if self.path else ""
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in sorted(self.env.items()))
        return f"{folder}{path}{variables}{shlex.join(blotted(self.argv))}"

    def as_dict(self) -> dict[str, object]:
        """Return plain data for ``--json``; secrets are blotted out as in :meth:`shown`."""
        return {
            "argv": list(blotted(self.argv)),
            "env": dict(sorted(self.env.items())),
            "path": self.path or None,
            "cwd": self.cwd or None,
            "cleanup": list(self.cleanup) or None,
        }


def blotted(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without the values of variables that are set on it (``--env``, ``-e``, ``-x``)."""
    shown, names_variable = [], False
    for word in argv:
        found = (_VARIABLE if names_variable else _SETS_VARIABLE).fullmatch(word)
        harmless = found is None or found["name"] in _HARMLESS
        shown.append(word if found is None or harmless else f"{found['before']}{found['name']}={BLOTTED}")
        names_variable = word in _TAKE_VARIABLE
    return tuple(shown)


def launch(served: Served, placement: Placement, shm_prefix: str) -> Launch:
    """Return how a tritonserver that brings its own backends is started: one of this machine, or of an image.

    Args:
        served: What, and how.
        placement: Where the ranks go.
        shm_prefix: What the names of the server's shared memory begin with.

    Raises:
        ConfigError: ``serve.extra_args`` sets what another key sets.
    """
    ranks = tuple(_ranks(served, placement, shm_prefix))
    env = _orchestrator_env(placement) if placement.mode == "orchestrator" else {}
    # Nothing is written into the repository, by the models' Python neither.
    env |= {"PYTHONDONTWRITEBYTECODE": "1"}
    # A relative path of an engine starts where NVIDIA's backend runs.
    return Launch(
        argv=ranks[0] if placement.mode == "single" else _mpirun(served, ranks), env=env, cwd=served.repository
    )


def needs_mpirun(placement: Placement) -> bool:
    """Say whether ranks are started by mpirun."""
    return placement.mode != "single"


def engine_models(placement: Placement) -> tuple[str, ...]:
    """Return the names of the models whose ranks are placed."""
    return tuple(names.ENGINE_MODELS[engine.role] for engine in placement.engines)


def mpirun_words(serve: ServeConfig) -> tuple[str, ...]:
    """Return mpirun and the options that it is given.

    Raises:
        ConfigError: A quotation is open, or there is no word.
    """
    try:
        words = tuple(shlex.split(serve.mpirun))
    except ValueError as error:
        raise ConfigError(f"serve.mpirun: {error}: {serve.mpirun}", hint="close the quotation") from None
    if not words:
        raise ConfigError("serve.mpirun names no program", hint="leave it out for mpirun")
    return words


def _ranks(served: Served, placement: Placement, shm_prefix: str) -> Iterator[tuple[str, ...]]:
    program = served.serve.tritonserver
    pools = tuple(_no_pools(placement)) if placement.mode == "orchestrator" and placement.spawn else ()
    order = tuple(_in_turn(served, placement))
    yield (program, *front_flags(served), *order, *pools, _shared_memory(shm_prefix, 0))
    for rank in range(1, placement.processes):
        yield (program, *worker_flags(served, engine_models(placement)), *order, _shared_memory(shm_prefix, rank))


def _in_turn(served: Served, placement: Placement) -> Iterator[str]:
    """Yield what makes engines load one after the other, the target first: Triton takes models by their names.

    Engines that share a GPU take fractions of what is free when they load. The ranks of a leader have to load them in
    one order.
    """
    gpus = [gpu for engine in placement.engines for gpu in engine.gpu_ids]
    shared = len(set(gpus)) < len(gpus)
    chosen = any(word.startswith(_LOAD_THREADS) for word in extra_words(served.serve.extra_args))
    if (shared or placement.mode == "leader") and len(placement.engines) > 1 and not chosen:
        yield f"{_LOAD_THREADS}=1"


def _no_pools(placement: Placement) -> Iterator[str]:
    """Yield what keeps an orchestrator off the GPUs: they belong to the processes that its backend spawns."""
    yield "--pinned-memory-pool-byte-size=0"
    yield "--enable-peer-access=false"
    yield from (f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in placement.gpus)


def _shared_memory(prefix: str, rank: int) -> str:
    # Ranks must not meet in each other's regions, and what a killed server leaves must be told from others'.
    return f"--backend-config=python,shm-region-prefix-name={prefix}{rank}_"


def _mpirun(served: Served, ranks: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    words = [*mpirun_words(served.serve), "--allow-run-as-root"]
    for number, rank in enumerate(ranks):
        words += [*([":"] if number else []), "-n", "1", *rank]
    return tuple(words)


def _orchestrator_env(placement: Placement) -> dict[str, str]:
    return {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1" if placement.spawn else "0"}
