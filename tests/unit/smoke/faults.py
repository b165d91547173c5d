"""Ways to break a fake deployment, for the tests that show that each check fails."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

from specdeploy.smoke import SmokeReport, run_smoke
from tests.unit.smoke.deployment import EXPECT, Context, FakeDeployment

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.smoke import CheckResult
    from specdeploy.triton.protocol import Chunk

#: Check, what is broken, how, and a part of the reason that must be given.
Fault: TypeAlias = "tuple[str, str, Callable[[FakeDeployment], None], str]"


def smoke(deployment: FakeDeployment, **options: Any) -> SmokeReport:
    """Run the smoke test without waiting between two looks at a counter."""
    expect = options.pop("expect", EXPECT)
    client = options.pop("client", lambda of: of.client())
    return run_smoke(lambda: client(deployment), expect, sleep=lambda seconds: None, **options)


def outcome(check: str, deployment: FakeDeployment, **options: Any) -> CheckResult:
    """Run one check."""
    (result,) = smoke(deployment, only=[check], **options).checks
    return result


def require_found(fault: Fault) -> None:
    """Break a sound deployment, and make sure that the check notices, and says what it saw."""
    check, _, break_it, reason = fault
    deployment = FakeDeployment()
    break_it(deployment)

    report = smoke(deployment, only=[check])

    (result,) = report.checks
    assert result.status == "fail", result
    assert reason in result.reason
    assert report.exit_code == 1


def ids_of(faults: tuple[Fault, ...]) -> list[str]:
    """Return the names of tests."""
    return [f"{check}: {what}" for check, what, *_ in faults]


def ignoring(*inputs: str) -> Callable[[FakeDeployment], None]:
    """Answer as if these inputs had not been sent."""

    def break_it(deployment: FakeDeployment) -> None:
        def change(chunks: list[Chunk], context: Context) -> list[Chunk]:
            extra = {name: value for name, value in context.request.extra.items() if name not in inputs}
            if extra == context.request.extra:
                return chunks
            request = dataclasses.replace(context.request, extra=extra)
            return deployment.answer(request, context.model, context.wire, main_thread=True)

        deployment.change = change

    return break_it


def replace(chunk: Chunk, **fields: Any) -> Chunk:
    """Change a chunk."""
    return dataclasses.replace(chunk, **fields)


def last(chunks: list[Chunk], **fields: Any) -> list[Chunk]:
    """Change the last chunk."""
    return [*chunks[:-1], replace(chunks[-1], **fields)]


def every(chunks: list[Chunk], **fields: Any) -> list[Chunk]:
    """Change every chunk."""
    return [replace(chunk, **fields) for chunk in chunks]


def setting(**attributes: Any) -> Callable[[FakeDeployment], None]:
    """Break a deployment by its attributes."""

    def break_it(deployment: FakeDeployment) -> None:
        for name, value in attributes.items():
            assert hasattr(deployment, name)
            setattr(deployment, name, value)

    return break_it


def answers(
    change: Callable[[list[Chunk]], list[Chunk]], where: Callable[[Context], bool] = lambda context: True
) -> Callable[[FakeDeployment], None]:
    """Break the answers to some requests."""

    def break_it(deployment: FakeDeployment) -> None:
        deployment.change = lambda chunks, context: change(chunks) if where(context) else chunks

    return break_it


def without(kind: str, name: str) -> Callable[[FakeDeployment], None]:
    """Take an input or an output away."""
    return lambda deployment: getattr(deployment, kind).pop(name)


def after_refusal(deployment: FakeDeployment) -> None:
    """Answer wrongly once a request has been refused."""
    deployment.change = lambda chunks, context: last(chunks, ids=(1,)) if deployment.refused else chunks


def ignores_seed(deployment: FakeDeployment) -> None:
    """Sample anew each time."""
    count = itertools.count()
    deployment.change = lambda chunks, context: (
        chunks if context.request.greedy else last(chunks, ids=(next(count), *chunks[-1].ids[1:]))
    )


def ignores_seed_with_logits(deployment: FakeDeployment) -> None:
    """Sample anew each time in rejection sampling only."""
    count = itertools.count()
    deployment.change = lambda chunks, context: (
        last(chunks, ids=(next(count), *chunks[-1].ids[1:]))
        if context.request.extra.get("use_draft_logits")
        else chunks
    )


def ignores_temperature(deployment: FakeDeployment) -> None:
    """Decode every request greedily."""
    deployment.change = lambda chunks, context: (
        chunks
        if context.request.greedy
        else deployment.answer(
            dataclasses.replace(context.request, temperature=0.0), context.model, context.wire, main_thread=True
        )
    )


def leaks_stop_word(deployment: FakeDeployment) -> None:
    """Write the stop word out."""
    deployment.change = lambda chunks, context: (
        last(chunks, text=chunks[-1].text + context.request.stop_words[0]) if context.request.stop_words else chunks
    )


def leaks_its_beginning(deployment: FakeDeployment) -> None:
    """Write the first letter of the stop word before it is known to be one."""
    deployment.change = lambda chunks, context: (
        last(chunks, text=chunks[-1].text + context.request.stop_words[0][0])
        if context.request.stop_words and context.request.stream
        else chunks
    )


def ignores_stop_words(deployment: FakeDeployment) -> None:
    """Go on past a stop word."""
    deployment.change = lambda chunks, context: (
        deployment.answer(
            dataclasses.replace(context.request, stop_words=()), context.model, context.wire, main_thread=True
        )
        if context.request.stop_words
        else chunks
    )


def streams(context: Context) -> bool:
    """The request streams."""
    return context.request.stream


def whole(context: Context) -> bool:
    """The request does not stream."""
    return not context.request.stream


def over(wire: str) -> Callable[[Context], bool]:
    """The request came over this wire."""
    return lambda context: context.wire == wire


def with_drafts(*numbers: int | None) -> Callable[[Context], bool]:
    """The request asked for one of these numbers of drafts."""
    return lambda context: context.request.num_draft_tokens in numbers


def both(*conditions: Callable[[Context], bool]) -> Callable[[Context], bool]:
    """All of these hold."""
    return lambda context: all(condition(context) for condition in conditions)


def one_piece(chunks: list[Chunk]) -> list[Chunk]:
    """Put everything into one response."""
    return last(
        chunks[-1:],
        text="".join(chunk.text for chunk in chunks),
        ids=tuple(token for chunk in chunks for token in chunk.ids),
    )


def empty(chunks: list[Chunk]) -> list[Chunk]:
    """Answer nothing."""
    return every(chunks, text="", ids=(), num_output_tokens=0)


def undrafted(chunks: list[Chunk]) -> list[Chunk]:
    """Say that nothing was drafted."""
    return every(chunks, num_spec_steps=0, total_draft_tokens=0, total_accepted_draft_tokens=0, histogram=())


def changed_id(chunks: list[Chunk]) -> list[Chunk]:
    """Put another token at the end."""
    return last(chunks, ids=(*chunks[-1].ids[:-1], chunks[-1].ids[-1] + 1))


def drop_last_token(chunks: list[Chunk]) -> list[Chunk]:
    """Forget the last token, but not its text."""
    return last(chunks, ids=chunks[-1].ids[:-1], num_output_tokens=(chunks[-1].num_output_tokens or 0) - 1)
