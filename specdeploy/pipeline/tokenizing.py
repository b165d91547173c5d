"""The tokenizer of the target, for workloads that say how long a text is and not what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from specdeploy.bench.prompts import Tokenizer
from specdeploy.errors import ConfigError, ToolMissing
from specdeploy.pipeline.workspace import workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdeploy.config.load import LoadedConfig


class TargetTokenizer(NamedTuple):
    """The target's tokenizer, as it counts whole prompts and parts of a text."""

    prompts: Tokenizer
    """As the deployment's preprocessing counts a prompt: with the special tokens that are put around it."""
    parts: Tokenizer
    """Without them: the beginning of a prompt, or an answer."""


def tokenizer_of(loaded: LoadedConfig, what: str) -> TargetTokenizer:
    """Return the tokenizer of the deployment's target.

    Args:
        loaded: The configuration, which says where it is.

        what: What needs it, for messages.

    Raises:
        ConfigError: The target has no ``tokenizer.json``, or one that cannot be read.

        ToolMissing: The package that reads it is not installed.
    """
    place = workspace(loaded)
    file = (place.target_tokenizer or place.target) / "tokenizer.json"
    try:
        from tokenizers import Tokenizer as HubTokenizer  # noqa: PLC0415 - of the extra `cpu`, and rarely needed
    except ImportError:
        raise ToolMissing(f"{what} needs the package tokenizers", hint="pip install 'specdeploy[cpu]'") from None
    try:
        tokenizer = HubTokenizer.from_file(str(file))
    except Exception as error:  # it raises nothing more special
        raise ConfigError(
            f"{file} cannot be read: {error}", hint=f"{what} needs the target's tokenizer: see target.tokenizer"
        ) from error

    def encode(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text).ids
        return ids

    def encode_part(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids)))

    return TargetTokenizer(Tokenizer(encode=encode, decode=decode), Tokenizer(encode=encode_part, decode=decode))
