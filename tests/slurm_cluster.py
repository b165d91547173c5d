"""A real Slurm cluster of one node on the loopback interface, for tests: no systemd, no control groups, no accounting.

All of it lives in one directory: configuration, keys, state and logs. Authentication has a daemon of its own, too, so
that an installed cluster is neither needed nor disturbed. Jobs run as root; slurmd cannot start them otherwise.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Self

from specdeploy.system.files import free_port

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
GPUS = 2
_SBIN = "/usr/sbin"
_START_S = 30.0
_STOP_S = 5.0
_CONFIG = """
ClusterName=specdeploy
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=2
StateSaveLocation={root}/controller
SlurmdSpoolDir={root}/node
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
GresTypes=gpu
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=4 RealMemory=1000 Gres=gpu:{gpus}
PartitionName=main Nodes=node1 Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Say why a cluster cannot be started here, or None when it can."""
    absent = [name for name in PROGRAMS if _find(name) is None]
    if absent:
        return f"no {', '.join(absent)} on PATH; `.ci/install-slurm`"
    if os.geteuid() != 0:
        return "the daemons of a cluster must be started by root"
    return None


def _find(name: str) -> str | None:
    """Return where a program is; the daemons are often not on a user's PATH."""
    return shutil.which(name) or shutil.which(name, path=_SBIN)


class Cluster:
    """Starts the daemons when entered and stops them when left.

    Args:
        root: An empty directory for everything that the cluster writes. The path of a socket in it must be short.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._write_files()
        try:
            self._start(
                "munged",
                "--foreground",
                "--force",
                *(f"--{name}={self.root}/munge.{end}" for name, end in _MUNGE_FILES.items()),
            )
            self._await((self.root / "munge.socket").exists, "munged")
            self._start("slurmctld", "-D", "-c", "-f", str(self.config))
            self._start("slurmd", "-D", "-N", "node1", "-f", str(self.config))
            self._await(self._is_idle, "the node")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run("scancel", "--full", "--partition=main")
        with contextlib.suppress(AssertionError):
            self._await(lambda: not self.queue(), "an empty queue")
        self._stop()

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a client program against this cluster."""
        env = {**os.environ, "SLURM_CONF": str(self.config)}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)

    def queue(self) -> list[str]:
        """Return the numbers of the jobs that wait or run."""
        return self.run("squeue", "--noheader", "--array", "--format=%i").stdout.split()

    def _is_idle(self) -> bool:
        return self.run("sinfo", "--noheader", "--format=%T").stdout.split() == ["idle"]

    def _write_files(self) -> None:
        # Clients of any user reach the socket; the files beside it are readable by root alone.
        self.root.chmod(0o711)
        for name in ("controller", "node"):
            (self.root / name).mkdir()
        key = self.root / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self.config.write_text(
            _CONFIG.format(
                root=self.root,
                host=socket.gethostname().partition(".")[0],
                controller_port=free_port("127.0.0.1"),
                node_port=free_port("127.0.0.1"),
                gpus=GPUS,
            )
        )
        # A GPU is counted only with a device file; any file does where control groups do not guard it.
        for number in range(GPUS):
            (self.root / f"gpu{number}").touch()
        devices = f"File={self.root}/gpu[0-{GPUS - 1}]"
        (self.root / "gres.conf").write_text(f"AutoDetect=off\nNodeName=node1 Name=gpu {devices}\n")

    def _start(self, program: str, *args: str) -> None:
        found = _find(program)
        assert found is not None
        with (self.root / f"{program}.out").open("wb") as output:
            self._daemons.append(
                subprocess.Popen(
                    [found, *args],
                    env={**os.environ, "SLURM_CONF": str(self.config)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _await(self, condition, what: str) -> None:
        deadline = time.monotonic() + _START_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} was not ready in {_START_S:g} s:\n{self._output()}"
            assert all(daemon.poll() is None for daemon in self._daemons), f"a daemon ended:\n{self._output()}"
            time.sleep(0.05)

    def _output(self) -> str:
        names = [*self.root.glob("*.out"), *self.root.glob("*.log")]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(names))

    def _stop(self) -> None:
        """End the daemons, the last started first; munged is needed until the others are gone."""
        while self._daemons:
            daemon = self._daemons.pop()
            daemon.terminate()
            try:
                daemon.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


_MUNGE_FILES = {
    "key-file": "key",
    "socket": "socket",
    "pid-file": "pid",
    "log-file": "log",
    "seed-file": "seed",
}
