"""A request as the body of ``/v1/completions`` or ``/v1/chat/completions``. Pure.

Field names are those of OpenAI's API reference; ``top_k`` and ``return_token_ids`` are vLLM's, and others took over the
first. What a server of this kind cannot be asked for is refused here: most of them ignore fields that they do not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.openai.dialect import Dialect
    from specdeploy.triton.protocol import GenerateRequest

#: Field that a Triton front door calls otherwise -> its name here.
_RENAMED: Final = {"text_input": "prompt", "stop_words": "stop"}
#: Further inputs of a Triton front door that mean the same here.
_SHARED: Final = frozenset({"presence_penalty", "frequency_penalty", "min_tokens"})


def make_body(request: GenerateRequest, *, model: str, dialect: Dialect, stream: bool) -> dict[str, Any]:
    """Return the body for a request.

    Args:
        request: What is asked for; ``request.stream`` is not looked at.

        model: Name of the model on the server.

        dialect: What the server understands beyond OpenAI's API.

        stream: Whether the answer shall come in pieces.

    Raises:
        ConfigError: A number of drafts or an input that such a server has no field for.
    """
    if request.num_draft_tokens is not None:
        raise ConfigError(
            f"an OpenAI-compatible server cannot be asked for num_draft_tokens ({request.num_draft_tokens})",
            hint="it drafts as it was started to; the target alone is another server",
        )
    unknown = sorted(request.extra.keys() - _SHARED)
    if unknown:
        raise ConfigError(
            f"an OpenAI-compatible server has no field for {', '.join(unknown)}",
            hint=f"beyond prompt, length, sampling and stop words it takes {', '.join(sorted(_SHARED))}",
        )
    fields = {"max_tokens": request.max_tokens, **_sampling(request), **request.extra}
    if request.extra.get("min_tokens") == request.max_tokens:
        # llama.cpp knows no other way to hold an answer to its length; vLLM takes either.
        fields["ignore_eos"] = True
    if request.stop_words:
        fields["stop"] = list(request.stop_words)
    return addressed({"prompt": request.prompt, **fields}, model=model, dialect=dialect, stream=stream)


def addressed(fields: Mapping[str, object], *, model: str, dialect: Dialect, stream: bool) -> dict[str, Any]:
    """Complete fields that are sent as they are, however wrong, to the body of a request.

    Args:
        fields: By the names of a Triton front door or of OpenAI's API.

        model: As in :func:`make_body`.

        dialect: As in :func:`make_body`.

        stream: As in :func:`make_body`.
    """
    body: dict[str, Any] = {_RENAMED.get(name, name): value for name, value in fields.items()}
    if dialect.chat and "prompt" in body:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    if dialect.ids:
        body["return_token_ids"] = True
    if stream and dialect.usage:
        body["stream_options"] = {"include_usage": True}
    return {"model": model, **body, "stream": stream}


def _sampling(request: GenerateRequest) -> dict[str, Any]:
    if request.greedy:
        return {"temperature": 0}
    asked = {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k, "seed": request.seed}
    return {name: value for name, value in asked.items() if value is not None}
