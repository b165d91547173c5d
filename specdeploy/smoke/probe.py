"""What a check works with: a client whose every call fits into the check's time, and the words for failing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdeploy.smoke import capabilities
from specdeploy.triton.protocol import GenerateRequest, join_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdeploy.smoke.expectations import Expectations
    from specdeploy.triton.client import TritonClient
    from specdeploy.triton.protocol import Chunk

_SETTLE_PAUSE_S = 0.05
_SETTLE_READS = 40


class Broken(Exception):
    """The deployment does not do what the check asks for.

    Args:
        reason: What was seen, with the values.

        details: Plain data for the report.
    """

    def __init__(self, reason: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.details = dict(details or {})


class Undecided(Exception):
    """The check ran, and what it saw is too little to tell; never a pass.

    Args:
        reason: What is missing, with the numbers.

        details: Plain data for the report.
    """

    def __init__(self, reason: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.details = dict(details or {})


class NotApplicable(Exception):
    """The check cannot say anything about this deployment; the message says why."""


class Probe:
    """A client for one check.

    Args:
        client: Talks to the deployment.

        expect: What the deployment promises.

        monotonic: The clock of the check's time limit.

        sleep: Waits between two looks at a counter.
    """

    def __init__(
        self,
        client: TritonClient,
        expect: Expectations,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.client = client
        self.expect = expect
        self._monotonic = monotonic
        self._sleep = sleep
        self._ends_at = monotonic() + expect.check_timeout_s

    @property
    def timeout_s(self) -> float:
        """Seconds that the next call may take.

        Raises:
            Broken: The check's time is over.
        """
        left = self._ends_at - self._monotonic()
        if left <= 0:
            raise Broken(f"the check took longer than {self.expect.check_timeout_s:g} s")
        return min(left, self.expect.request_timeout_s)

    @property
    def alone(self) -> int | None:
        """Drafts to ask for to have the target alone; None, the server's own way, where that cannot be had."""
        return 0 if self.can(capabilities.CONTROL) and not self.expect.fixed_by else None

    def can(self, capability: str) -> bool:
        """Say whether the server has a capability; see :mod:`specdeploy.smoke.capabilities`."""
        return capability in self.expect.capabilities

    def require(self, *needed: str) -> None:
        """End the check where the server lacks something.

        Raises:
            NotApplicable: With what is missing.
        """
        for capability in needed:
            if not self.can(capability):
                raise NotApplicable(capabilities.MISSING[capability])

    def has_input(self, name: str) -> bool:
        """Say whether the front door has an input beyond prompt, length, sampling and stop words.

        Only Triton can be asked; elsewhere there is none.
        """
        if not self.can(capabilities.TRITON):
            return False
        return name in self.client.metadata(self.expect.front_door, timeout_s=self.timeout_s).input_types

    def require_input(self, *names: str) -> None:
        """End the check where the front door lacks an input.

        Raises:
            NotApplicable: With the name of the input.
        """
        for name in names:
            if not self.has_input(name):
                raise NotApplicable(f"{self.expect.front_door} has no input {name}")

    def wait(self, seconds: float) -> None:
        """Wait before the next look at a counter."""
        self._sleep(seconds)

    def greedy(self, prompt: str | None = None, *, max_tokens: int | None = None, drafts: int | None = None) -> Chunk:
        """Return the whole greedy answer; the first prompt and the usual length unless said otherwise."""
        return self.whole(self.request(prompt, max_tokens=max_tokens, drafts=drafts))

    def request(
        self, prompt: str | None = None, *, max_tokens: int | None = None, drafts: int | None = None
    ) -> GenerateRequest:
        """Build a greedy request; the first prompt and the usual length unless said otherwise.

        Raises:
            NotApplicable: A number of drafts is asked for, and the deployment's is fixed.
        """
        if drafts is not None and self.expect.fixed_by:
            raise NotApplicable(
                f"{self.expect.fixed_by} drafts always as it was built to: the target alone is another deployment"
            )
        if drafts is None and self.expect.pinned:
            drafts = self.expect.num_draft_tokens
        return GenerateRequest(
            prompt=self.expect.prompts[0].text if prompt is None else prompt,
            max_tokens=self.expect.usual_tokens if max_tokens is None else max_tokens,
            num_draft_tokens=drafts,
        )

    def whole(self, request: GenerateRequest) -> Chunk:
        """Return the answer as one response: over gRPC, or over HTTP where there is no gRPC."""
        if not self.can(capabilities.GRPC):
            return self.whole_http(request)
        return self.client.generate_grpc(request, model=self.expect.front_door, timeout_s=self.timeout_s)

    def whole_http(self, request: GenerateRequest) -> Chunk:
        """Return the answer as one response, over HTTP."""
        return self.client.generate_http(request, model=self.expect.front_door, timeout_s=self.timeout_s)

    def streamed(self, request: GenerateRequest) -> list[Chunk]:
        """Return the pieces of the answer: over gRPC, or over HTTP where there is no gRPC."""
        if not self.can(capabilities.GRPC):
            return self.streamed_http(request)
        return list(self.client.stream_grpc(request, model=self.expect.front_door, timeout_s=self.timeout_s))

    def streamed_http(self, request: GenerateRequest) -> list[Chunk]:
        """Return the pieces of the answer, over HTTP."""
        return list(self.client.stream_http(request, model=self.expect.front_door, timeout_s=self.timeout_s))

    def joined(self, request: GenerateRequest) -> Chunk:
        """Return the streamed answer put together, by the way of :meth:`streamed`."""
        return join_chunks(self.streamed(request))

    def each_way(self, request: GenerateRequest) -> dict[str, Chunk]:
        """Return the answer ``whole`` and, where the server streams, ``streamed`` and put together."""
        answers = {"whole": self.whole(request)}
        return {**answers, "streamed": self.joined(request)} if self.can(capabilities.STREAM) else answers

    def settled_count(self, model: str) -> int:
        """Return how many requests Triton says a model has answered, once two readings in a row agree.

        Triton counts a request a moment after its answer is on the way.

        Raises:
            Broken: The counter never comes to rest: others are using the server.
        """
        last = self.client.statistics(model, timeout_s=self.timeout_s).success_count
        for _ in range(_SETTLE_READS):
            self._sleep(_SETTLE_PAUSE_S)
            count = self.client.statistics(model, timeout_s=self.timeout_s).success_count
            if count == last:
                return count
            last = count
        raise Broken(f"the request counter of {model} does not come to rest; is somebody else using the server?")
