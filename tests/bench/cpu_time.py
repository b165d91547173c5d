"""The CPU time of a program and of everything that it starts, whoever waits for it.

Run as ``python -m tests.bench.cpu_time FILE COMMAND...``; writes the seconds, user and system together, to FILE.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def main(output: str, command: list[str]) -> int:
    """Run the command and return its exit status."""
    # Workers that outlive their parent become our children, so that their time is counted, too.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    code = subprocess.run(command, check=False).returncode
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(output).write_text(f"{used.ru_utime + used.ru_stime}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
