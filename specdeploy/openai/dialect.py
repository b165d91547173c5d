"""What a server offers beyond OpenAI's API, found out by asking it once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.triton.client import RequestFailed
from specdeploy.triton.protocol import GenerateRequest, join_chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.openai.client import OpenAIClient
    from specdeploy.triton.protocol import Chunk

#: Repeats itself, so that whatever drafts has something to draft. 16 tokens are several rounds.
_QUESTION: Final = GenerateRequest(prompt="1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2,", max_tokens=16)
#: Statuses of a route that is not there.
_NO_ROUTE: Final = frozenset({404, 405, 501})
#: Statuses with which a strict server refuses a field that it does not know.
_REFUSED: Final = frozenset({400, 422})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """What to ask a server for, and what its answers carry.

    Args:
        chat: Whether ``/v1/chat/completions`` must be used, because ``/v1/completions`` is not there. The server then
            puts its chat template around the prompt.

        usage: Whether ``stream_options`` may be sent, so that the end of a stream tells the numbers of tokens.

        ids: Whether to ask for token ids by ``return_token_ids``.

        counts: Whether answers say how many tokens were drafted and accepted.

        stream_end: Whether the last piece of a stream says why the answer ended.

        totals: Whether a stream tells how many tokens the answer has.
    """

    chat: bool = False
    usage: bool = True
    ids: bool = True
    counts: bool = False
    stream_end: bool = True
    totals: bool = True


#: From the one that offers most to the plainest.
_GUESSES: Final = tuple(
    Dialect(chat=chat, usage=usage, ids=ids)
    for chat in (False, True)
    # OpenAI's own field is kept where only vLLM's is refused: without it nothing tells the number of tokens.
    for usage, ids in ((True, True), (True, False), (False, False))
)


def ask_dialect(connect: Callable[[Dialect], OpenAIClient]) -> Dialect:
    """Ask for one short greedy stream and return what the server offers.

    A server may refuse what it does not know, ignore it, or lack a route, so that up to six requests are made, one of
    which is answered. A route that is not there is asked once.

    Args:
        connect: Makes a client that speaks a dialect.

    Raises:
        RequestFailed: The server cannot be reached, or fails at the plainest request, too.
    """
    refusal: RequestFailed | None = None
    absent: set[bool] = set()
    for guess in _GUESSES:
        if guess.chat in absent:
            continue
        try:
            with connect(guess) as client:
                chunks = list(client.stream_http(_QUESTION))
        except RequestFailed as error:
            if error.status not in _NO_ROUTE | _REFUSED:
                raise
            if error.status in _NO_ROUTE:
                absent.add(guess.chat)
            # The first refusal of a kind of route is about the request; later ones only about what was tried instead.
            refusal = error if refusal is None or refusal.status in _NO_ROUTE else refusal
        else:
            return _seen(guess, chunks)
    assert refusal is not None  # noqa: S101 - there is a guess, and each ends in a return or here
    raise refusal


def _seen(guess: Dialect, chunks: list[Chunk]) -> Dialect:
    if not chunks:
        raise RequestFailed("protocol", "the server ended a stream without any piece of an answer")
    whole = join_chunks(chunks)
    return dataclasses.replace(
        guess,
        ids=guess.ids and bool(whole.ids),
        counts=whole.total_draft_tokens is not None and whole.total_accepted_draft_tokens is not None,
        stream_end=bool(whole.finish_reason),
        totals=bool(whole.ids) or whole.num_output_tokens is not None,
    )
