"""Does a wrong request get a clear error in time, and does the server go on as before?"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError
from specdeploy.smoke.capabilities import GRPC, TRITON
from specdeploy.smoke.compare import require_same
from specdeploy.smoke.probe import Broken, NotApplicable
from specdeploy.smoke.targets import UNTOLD, tells_limit
from specdeploy.triton.client import RequestFailed
from specdeploy.triton.protocol import make_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import GenerateRequest, Tensor

#: Failures that say what is wrong with the request; the others (timeout, connection, ...) say that the server is.
CLEAR: Final = ("invalid_argument", "model_error")
_REFERENCE_TOKENS = 2
#: A prompt of more tokens than this is megabytes long.
_MOST_SENT: Final = 1_000_000


def wrong_type(probe: Probe) -> str:
    """``max_tokens`` as text or as a float is refused."""
    prompt = probe.expect.prompts[0].text
    with _goes_on(probe):
        said = _refused_as_body(probe, "text over HTTP", {"text_input": prompt, "max_tokens": "three"})
        if probe.can(GRPC):
            tensors = (make_tensor("text_input", "BYTES", prompt), make_tensor("max_tokens", "FP32", 3.0))
            said = _refused_as_tensors(probe, "a float over gRPC", tensors)
    return said


def wrong_shape(probe: Probe) -> str:
    """Two prompts in one request, ``max_tokens`` of two values, and tensors without the batch dimension are refused."""
    probe.require(TRITON)
    prompt = probe.expect.prompts[0].text
    text, length = make_tensor("text_input", "BYTES", prompt), make_tensor("max_tokens", "INT32", 4)
    two_lengths = make_tensor("max_tokens", "INT32", [4, 5])
    with _goes_on(probe):
        said = _refused_as_body(probe, "two prompts over HTTP", {"text_input": [prompt, prompt], "max_tokens": 4})
        _refused_as_body(probe, "max_tokens [4, 5] over HTTP", {"text_input": prompt, "max_tokens": [4, 5]})
        if probe.can(GRPC):
            _refused_as_tensors(probe, "max_tokens of shape [1, 2] over gRPC", (text, two_lengths))
            said = _refused_as_tensors(probe, "tensors of shape [1] over gRPC", (_flat(text), _flat(length)))
    return said


def missing_input(probe: Probe) -> str:
    """A request without ``text_input`` is refused; with other inputs in its place it is at least not answered.

    Triton counts inputs before it looks at their names. With enough others, an ensemble lacks what starts its first
    step and ends at once without any response (seen on 2.51), which no model of ours ever hears of.
    """
    door = probe.expect.front_door
    length, other = make_tensor("max_tokens", "INT32", 4), make_tensor("stream", "BOOL", value=False)
    with _goes_on(probe):
        said = _refused_as_body(probe, "over HTTP", {"max_tokens": 4})
        if probe.can(GRPC):
            _refused_as_tensors(probe, "over gRPC", (length,))
            with contextlib.suppress(RequestFailed):
                chunks = list(probe.client.send_tensors((length, other), model=door, timeout_s=probe.timeout_s))
                if chunks:
                    raise Broken(f"a request with stream instead of text_input was answered: {chunks!r:.200}")
    return said


def zero_tokens(probe: Probe) -> str:
    """``max_tokens`` 0 is refused; a server that does not speak Triton's protocol may take it for no tokens at all."""
    request = probe.request(max_tokens=0)
    with _goes_on(probe):
        if not probe.can(TRITON):
            return _refused_or_empty(probe, request)
        said = _refused("over HTTP", lambda: probe.whole_http(request))
        if probe.can(GRPC):
            said = _refused("over gRPC", lambda: probe.whole(request))
    return said


def long_prompt(probe: Probe) -> str:
    """A prompt longer than the engines were built for is refused; cut silently it must be by no server.

    One that does not tell its limit may have a longer one than is expected, and then answers.
    """
    most = probe.expect.max_seq_len
    if most > _MOST_SENT:
        raise NotApplicable(f"the limit is {most} tokens: no prompt of that length is sent")
    request = probe.request("one " * (most + 1))
    with _goes_on(probe):
        try:
            answer = probe.whole(request)
        except RequestFailed as error:
            return _clear("a prompt that is too long", error)
        counted = answer.num_input_tokens
        if not tells_limit(probe.expect) and (counted is None or counted > most):
            raise NotApplicable(f"{UNTOLD}: more than {most} tokens are answered")
        raise Broken(f"a prompt that is too long: the request was answered: {answer!r:.200}")


def unknown_input(probe: Probe) -> str:
    """A misspelt input is found before it is sent: Triton would ignore it, and speculation would be as by default."""
    request = dataclasses.replace(probe.request(), extra={"num_draft_token": 0})
    try:
        probe.whole_http(request)
    except ConfigError as error:
        if "num_draft_token" in error.message:
            return f"{error.message}. {error.hint}"
        raise
    raise Broken("the misspelt input num_draft_token was sent, and the server answered as if it were not there")


def unknown_model(probe: Probe) -> str:
    """A model that does not exist is refused, over HTTP and gRPC."""
    name = f"{probe.expect.front_door}_that_does_not_exist"
    with _goes_on(probe):
        if not probe.can(TRITON):
            return _refused_or_any_name(probe, name)
        said = _refused_as_body(probe, "over HTTP", {"text_input": "one", "max_tokens": 1}, model=name)
        if probe.can(GRPC):
            tensors = (make_tensor("text_input", "BYTES", "one"), make_tensor("max_tokens", "INT32", 1))
            said = _refused_as_tensors(probe, "over gRPC", tensors, model=name)
    return said


def _flat(tensor: Tensor) -> Tensor:
    """Take the batch dimension away."""
    return dataclasses.replace(tensor, data=tensor.data.reshape(-1))


def _refused_or_empty(probe: Probe, request: GenerateRequest) -> str:
    try:
        answer = probe.whole(request)
    except RequestFailed as error:
        return _clear("max_tokens 0", error)
    if answer.text:
        raise NotApplicable(f"the server takes max_tokens 0 for no limit of its own: it answered {answer.text!r:.80}")
    return "answered with no text"


def _refused_or_any_name(probe: Probe, name: str) -> str:
    try:
        body = {"text_input": "one", "max_tokens": 1}
        probe.client.post_generate(body, model=name, timeout_s=probe.timeout_s)
    except RequestFailed as error:
        return _clear("an unknown model", error)
    raise NotApplicable("the server has one model and answers to any name")


def _refused_as_body(probe: Probe, what: str, body: Mapping[str, object], *, model: str | None = None) -> str:
    door = model or probe.expect.front_door
    return _refused(what, lambda: probe.client.post_generate(body, model=door, timeout_s=probe.timeout_s))


def _refused_as_tensors(probe: Probe, what: str, tensors: Sequence[Tensor], *, model: str | None = None) -> str:
    door = model or probe.expect.front_door
    return _refused(what, lambda: list(probe.client.send_tensors(tensors, model=door, timeout_s=probe.timeout_s)))


def _refused(what: str, send: Callable[[], object]) -> str:
    """Fail unless the request ends with an error that says something; return what it says."""
    try:
        answer = send()
    except RequestFailed as error:
        return _clear(what, error)
    raise Broken(f"{what}: the request was answered: {answer!r:.200}")


def _clear(what: str, error: RequestFailed) -> str:
    """Return what a refusal says, after making sure that it is about the request.

    Raises:
        Broken: It is about the server, or says nothing.
    """
    if error.label not in CLEAR:
        raise Broken(f"{what}: no clear refusal but {error.message}", {"label": error.label}) from error
    if not error.said.strip():
        raise Broken(f"{what}: refused without a word") from error
    return error.said


@contextlib.contextmanager
def _goes_on(probe: Probe) -> Iterator[None]:
    """Fail when the server answers a good request otherwise after the bad one than before."""
    before = probe.greedy(max_tokens=_REFERENCE_TOKENS)
    yield
    require_same("before and after the bad request", before, probe.greedy(max_tokens=_REFERENCE_TOKENS))
