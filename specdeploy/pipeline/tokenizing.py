"""The tokenizer of the target, for workloads that say how long a prompt is and not what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdeploy.bench.prompts import Synthesiser, Tokenizer
from specdeploy.errors import ConfigError, ToolMissing
from specdeploy.pipeline.workspace import workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdeploy.config.load import LoadedConfig


def synthesiser_of(loaded: LoadedConfig) -> Synthesiser:
    """Return what makes texts of a length, counted as the deployment's preprocessing counts them.

    Raises:
        ConfigError: The target has no ``tokenizer.json``, or one that cannot be read.

        ToolMissing: The package that reads it is not installed.
    """
    place = workspace(loaded)
    file = (place.target_tokenizer or place.target) / "tokenizer.json"
    try:
        from tokenizers import Tokenizer as HubTokenizer  # noqa: PLC0415 - of the extra `cpu`, and rarely needed
    except ImportError:
        raise ToolMissing(
            "a trace of lengths needs the package tokenizers", hint="pip install 'specdeploy[cpu]'"
        ) from None
    try:
        tokenizer = HubTokenizer.from_file(str(file))
    except Exception as error:  # it raises nothing more special
        raise ConfigError(
            f"{file} cannot be read: {error}",
            hint="a trace of lengths needs the target's tokenizer: see target.tokenizer",
        ) from error

    def encode(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text).ids
        return ids

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids)))

    return Synthesiser(Tokenizer(encode=encode, decode=decode), seed=loaded.config.load.seed)
