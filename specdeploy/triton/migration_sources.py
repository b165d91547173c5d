"""What a move reads beside the repository: the engines and tokenizers that it names, wherever they lie here.

A repository names folders of the machine that serves it. This one may have them under another path, so a folder of
engines and one of the tokenizer can be named instead. Reads small files only, never weights.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from specdeploy.errors import RepositoryError
from specdeploy.triton.repository.built import read_built

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdeploy.triton.repository.built import BuiltEngine

_CONFIG: Final = "config.json"
_LARGEST_BYTES: Final = 16 * 1024 * 1024


def find_folder(named: str, *, beside: Sequence[Path], instead: Path | None, what: str, cure: str) -> Path:
    """Return the folder that a repository names, as an absolute path on this machine.

    Args:
        named: As the repository writes it; a relative one is looked for in each of *beside*.
        beside: Folders that a relative path may start from.
        instead: A folder that has it under the last part, or parts, of its path; asked first, the longest one before.
        what: What it is, for the error.
        cure: What to do when it is not here.

    Raises:
        RepositoryError: It is nowhere.
    """
    parts = [part for part in PurePosixPath(named).parts if part not in {"/", ".."}]
    places = [] if instead is None else [instead.joinpath(*parts[at:]) for at in range(len(parts))]
    places += [folder / Path(named).expanduser() for folder in beside]
    for place in places:
        if place.is_dir():
            return place.resolve()
    looked = ", ".join(dict.fromkeys(map(str, places[-len(beside) - 1 :])))
    raise RepositoryError(f"{what}, {named}, is not on this machine; looked for: {looked}", hint=cure)


def read_engine(folder: Path) -> BuiltEngine:
    """Read an engine's ``config.json`` and the sizes of its files.

    Raises:
        RepositoryError: There is none, or it cannot be read; the message names the file.
    """
    path = folder / _CONFIG
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise RepositoryError(f"{path} has {path.stat().st_size} bytes, which no engine's has")
        document = json.loads(path.read_bytes())
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    except FileNotFoundError:
        raise RepositoryError(
            f"{folder} has no {_CONFIG}", hint="gpt_model_path must name the folder that trtllm-build wrote."
        ) from None
    except OSError as error:
        raise RepositoryError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RepositoryError(f"{path} is not JSON: {error}") from error
    return read_built(document, name=folder.name, size_bytes=size)
