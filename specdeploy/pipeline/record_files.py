"""Raw records on the disk: written as requests end, and read one at a time, however many there are."""

from __future__ import annotations

import functools
import hashlib
import struct
import tempfile
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any

from specdeploy.bench.records import record_from_line, record_to_line
from specdeploy.bench.table import RecordTable, TableWriter
from specdeploy.errors import ConfigError
from specdeploy.system.files import close_quietly, explained, json_bytes, new_files, require_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from specdeploy.bench.records import RequestRecord


class RecordFile:
    """A `RecordStore` that writes records to a file as they come, and the numbers of each into columns on the disk.

    ``document`` is set to what is told of them, where that is kept beside them.

    Args:
        path: What the file is called in the end; for messages.

        file: Where the lines go.

        columns: Where the columns go.
    """

    def __init__(self, path: Path, file: IO[bytes], columns: TableWriter) -> None:
        self._path = path
        self._file = file
        self._columns = columns
        self._at = 0
        self._sha256 = hashlib.sha256()
        self.document: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._columns)

    def add(self, record: RequestRecord) -> None:
        """Take a record.

        Raises:
            ConfigError: The disk is full.
        """
        line = record_to_line(record).encode()
        with explained(self._path):
            self._columns.add(record, self._at)
            self._file.write(line)
        self._sha256.update(line)
        self._at += len(line)

    @property
    def sha256(self) -> str:
        """SHA-256 of the file, with all that is in it so far: ties what is told of the records to them."""
        return self._sha256.hexdigest()

    def since(self, start: int) -> RecordTable:
        """Return the records that came after the first ``start``."""
        with explained(self._path):
            return self._columns.table(functools.partial(_look_up, self._file), start=start)


@contextmanager
def record_file(path: Path, document: Path | None = None) -> Iterator[RecordFile]:
    """Make a file of records that has its name when the block ends well, with all of them; else nothing is left.

    Args:
        path: The file.

        document: Where `RecordFile.document` is written; it and the records take their names together, so that nobody
            reads one beside the other of another run.

    Raises:
        ConfigError: It cannot be written.
    """
    paths = (path,) if document is None else (path, document)
    with ExitStack() as stack:
        with explained(path):
            file, *beside = stack.enter_context(new_files(*paths))
            columns = TableWriter(functools.partial(_scratch, stack, path.parent))
        store = RecordFile(path, file, columns)
        yield store
        for target in beside:
            with explained(paths[-1]):
                target.write(json_bytes(store.document))
                target.flush()
        with explained(path):
            # Publishes the files, which the system may refuse at this late moment, too.
            stack.close()


@contextmanager
def reading_records(path: Path, document: Mapping[str, Any] | None = None) -> Iterator[RecordTable]:
    """Read a file of records; what is looked up in full is read again as long as the block lasts.

    Args:
        path: The file.

        document: What is told of them. If it has ``records_sha256``, they have to be those. None is not asked.

    Raises:
        ConfigError: It is not there, a line is no record, or they are those of another document; names it.
    """
    with ExitStack() as stack:
        try:
            require_regular(path)
            file = stack.enter_context(path.open("rb"))
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read: {error.strerror}", hint="The raw records belong beside their document."
            ) from error
        columns, at, sha256 = TableWriter(functools.partial(_scratch, stack)), 0, hashlib.sha256()
        for number, line in enumerate(file, start=1):
            if line.strip():
                _add(columns, path, (number, line), at)
            at += len(line)
            sha256.update(line)
        if (told := (document or {}).get("records_sha256")) is not None and told != sha256.hexdigest():
            raise ConfigError(
                f"{path} holds other records than those that its document was made of: records_sha256 is {told!r}, and "
                f"theirs {sha256.hexdigest()}",
                hint="Both are written by one run and belong together; measure again.",
            )
        yield columns.table(functools.partial(_look_up, file))


def _scratch(stack: ExitStack, folder: Path | None = None) -> IO[bytes]:
    """Make a file without a name that is gone with the stack."""
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by the stack
    stack.callback(close_quietly, file)
    return file


def _add(columns: TableWriter, path: Path, line: tuple[int, bytes], at: int) -> None:
    try:
        columns.add(record_from_line(*line), at)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error
    except (ArithmeticError, AttributeError, TypeError, ValueError, struct.error) as error:
        raise ConfigError(
            f"{path}: records line {line[0]} is damaged: {type(error).__name__}: {error}", hint="Measure again."
        ) from error


def _look_up(file: IO[bytes], number: int, at: int) -> RequestRecord:
    """Read the line that begins at a byte of a file, and go back to where the file was."""
    end = file.tell()
    file.seek(at)
    try:
        return record_from_line(number + 1, file.readline())
    finally:
        file.seek(end)
