"""The output folder: it holds a whole checkpoint afterwards, or nothing.

Everything is first written to a scratch folder inside it, so that the last step is a rename on one file system wherever
the output is mounted from.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError, EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterator

# Renamed last: whoever finds it finds everything else.
CONFIG: Final = "config.json"


@contextlib.contextmanager
def filled_at_the_end(output: Path) -> Iterator[Path]:
    """Yield a scratch folder whose files are moved into ``output`` when the block has ended well.

    Raises:
        ConfigError: ``output`` holds something.
        EnvironmentFault: It cannot be written.
    """
    is_new = _prepare(output)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".writing-", dir=output))
    except OSError as error:
        raise _not_writable(output, error) from error
    done = False
    try:
        yield scratch
        _publish(scratch, output)
        done = True
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if is_new and not done:
            with contextlib.suppress(OSError):
                output.rmdir()


def _prepare(output: Path) -> bool:
    """Make the folder where it is missing; return whether it was."""
    try:
        if output.exists():
            if not output.is_dir() or any(output.iterdir()):
                raise ConfigError(f"--output {output} is no empty folder", hint="empty it, or choose another")
            return False
        output.mkdir(parents=True)
    except OSError as error:
        raise _not_writable(output, error) from error
    return True


def _publish(scratch: Path, output: Path) -> None:
    for path in sorted(scratch.iterdir(), key=lambda path: path.name == CONFIG):
        path.chmod(0o644)  # safetensors makes its files private
        path.replace(output / path.name)


def _not_writable(output: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(f"cannot write {output}: {error.strerror or error}", hint="check its permissions")
