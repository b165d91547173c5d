"""How long an answer may or must be, as a request says it.

Triton's front door has ``max_tokens`` and ``min_tokens`` (``min_length`` before 1.0; `GenerateRequest` sends it by the
name that the model has). Until ``min_tokens`` are there the end token is not taken, so that a request where both are
equal ignores it. Of OpenAI's API only ``max_tokens`` is the standard's: vLLM adds ``min_tokens`` and ``ignore_eos``,
llama.cpp ``ignore_eos``; a server that knows neither cannot be held to a length.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from specdeploy.bench.prompts.fields import MOST_TOKENS, check_number
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from specdeploy.bench.prompts.prompt import Prompt


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputLength:
    """Lengths of the answers of a run; what a prompt says of its own goes before.

    Args:
        max_tokens: Longest answer.

        fixed: Whether every answer is as long as it may be; else it ends where the model ends it.

    Raises:
        ConfigError: ``max_tokens`` is no number of tokens.
    """

    max_tokens: int
    fixed: bool = False

    def __post_init__(self) -> None:
        check_number("max_tokens", self.max_tokens, least=1, most=MOST_TOKENS)

    def apply(self, prompt: Prompt) -> tuple[int, dict[str, object]]:
        """Return ``max_tokens`` of a request and its further inputs: ``min_tokens``, or nothing.

        Raises:
            ConfigError: The prompt's shortest answer is longer than the longest of the run.
        """
        most = self.max_tokens if prompt.max_tokens is None else prompt.max_tokens
        least = most if self.fixed else prompt.min_tokens or 0
        if least > most:
            raise ConfigError(
                f"prompt {prompt.id!r} wants an answer of at least {least} tokens, the run allows {most}",
                hint="Raise max_tokens of the run, or give the prompt a max_tokens of its own.",
            )
        return most, {"min_tokens": least} if least else {}
