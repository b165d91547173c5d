"""When the requests of an open loop are sent: seconds from the start of a block, absolute, precomputed and seeded.

Knows two things and combines them. A *process* says how arrivals scatter when one is expected each unit of time:
evenly (``constant``), without memory (``poisson``) or in bursts (``gamma``). A *profile* says how many are expected
each second as time goes on. An arrival of the process at u takes place when the profile has let u requests through,
so that ramps and stages scatter as their process does (time rescaling; Cinlar 1975, section 4.7).

A schedule never follows from what was measured: a server that stalls is sent what it would have been sent anyway, and
nobody who waited is forgotten ("coordinated omission").
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Offsets: TypeAlias = NDArray[np.float64]

Process: TypeAlias = Literal["constant", "poisson", "gamma"]
PROCESSES: Final[tuple[Process, ...]] = get_args(Process)

#: More requests than any run sends; a schedule of this many takes 80 MB.
MOST: Final = 10_000_000
#: More requests per second than any generator sends.
MOST_RATE: Final = 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a profile, in which the rate goes in a straight line from one value to another.

    Args:
        start: Requests per second at its beginning.

        end: Requests per second at its end; the same as ``start`` for a steady stage.

        duration_s: How long it takes.
    """

    start: float
    end: float
    duration_s: float

    def __post_init__(self) -> None:
        """Refuse what is no rate or no time.

        Raises:
            ConfigError: A value is not finite, or negative, a rate above `MOST_RATE`, or nothing is ever sent.
        """
        for name in ("start", "end", "duration_s"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{name} of a load stage is {value}", hint="It is a finite number, 0 or more.")
        for rate in (self.start, self.end):
            if rate > MOST_RATE:
                raise ConfigError(
                    f"the request rate is {rate:g}", hint=f"It is at most {MOST_RATE:g} requests per second."
                )
        if not self.duration_s:
            raise ConfigError("a load stage lasts 0 s", hint="Give it a duration, or leave it out.")

    @property
    def expected(self) -> float:
        """Requests that it lets through."""
        return (self.start + self.end) / 2 * self.duration_s


def steady(rate: float, duration_s: float) -> tuple[Stage, ...]:
    """Return the profile of one rate.

    Raises:
        ConfigError: The rate or the duration is not a finite positive number.
    """
    if not rate > 0:
        raise ConfigError(f"the request rate is {rate}", hint="It is a number of requests per second above 0.")
    return (Stage(start=rate, end=rate, duration_s=duration_s),)


def schedule(
    process: Process, profile: Sequence[Stage], seed: int | np.random.SeedSequence, *, burstiness: float = 1.0
) -> Offsets:
    """Return when each request is sent, in order.

    Args:
        process: How arrivals scatter.

        profile: Its stages, one after another.

        seed: Of the process; a constant one has none.

        burstiness: Of ``gamma``: the shape of the gaps' gamma distribution, whose mean stays that of the profile. 1
            is a Poisson process, less comes in bursts, more is more even (vLLM's ``--burstiness``).

    Returns: Float64 seconds from the start of the profile, shape [n], not decreasing.

    Raises:
        ConfigError: The profile is empty, or lets more than `MOST` requests through, or ``burstiness`` is no positive
            number.
    """
    expected = float(_through(profile)[-1])
    if not expected > 0:
        raise ConfigError("the load profile sends nothing", hint="Give a stage a rate above 0.")
    if expected > MOST:
        raise ConfigError(
            f"the load profile sends about {expected:.3g} requests, more than {MOST:,}",
            hint="Lower the rate or the duration, or split the run.",
        )
    if not (math.isfinite(burstiness) and burstiness > 0):
        raise ConfigError(f"burstiness is {burstiness}", hint="It is a finite number above 0; 1 is a Poisson process.")
    return _rescaled(_unit_arrivals(process, expected, np.random.default_rng(seed), burstiness), profile)


def replayed(timestamps_s: Iterable[float], *, speed: float = 1.0) -> Offsets:
    """Return the schedule of a recorded trace, from its first request on.

    Args:
        timestamps_s: Of each request, in order (seconds).

        speed: How many times as fast it is replayed.

    Raises:
        ConfigError: A time is not finite, or earlier than the one before it.
    """
    if not (math.isfinite(speed) and speed > 0):
        raise ConfigError(f"a trace cannot be replayed {speed} times as fast", hint="It is a finite number above 0.")
    times = np.fromiter(timestamps_s, dtype=np.float64)
    if not np.isfinite(times).all():
        raise ConfigError("a timestamp of the trace is not a finite number", hint="Mend the trace.")
    if (np.diff(times) < 0).any():
        number = int(np.argmax(np.diff(times) < 0)) + 2
        raise ConfigError(f"request {number} of the trace is earlier than the one before it", hint="Sort the trace.")
    return np.asarray((times - times[0]) / speed) if times.size else times


def _unit_arrivals(process: Process, expected: float, rng: np.random.Generator, burstiness: float) -> Offsets:
    """Return arrivals of a process of rate 1 until ``expected``."""
    if process == "constant":
        return np.arange(math.ceil(expected - 1e-9), dtype=np.float64)
    shape = burstiness if process == "gamma" else 1.0
    arrivals: list[Any] = []
    last = 0.0
    while last < expected:
        # Enough at once for nearly every run: the mean of what is left, and five standard deviations.
        left = expected - last
        gaps = rng.gamma(shape, 1 / shape, size=int(left + 5 * math.sqrt(left / shape)) + 1)
        arrivals.append(last + np.cumsum(gaps))
        last = float(arrivals[-1][-1])
    times = np.concatenate(arrivals)
    return np.asarray(times[times < expected])


def _rescaled(arrivals: Offsets, profile: Sequence[Stage]) -> Offsets:
    """Return when the profile has let as many requests through as each arrival says."""
    through = _through(profile)
    begins = np.cumsum([0.0, *(stage.duration_s for stage in profile)])
    parts = [
        begins[number] + _crossed(arrivals[(arrivals >= low) & (arrivals < high)] - low, stage)
        for number, (stage, low, high) in enumerate(zip(profile, through, through[1:], strict=False))
    ]
    return np.concatenate(parts)


def _through(profile: Sequence[Stage]) -> Offsets:
    """Return how many requests the profile has let through at the beginning of each stage and at its end."""
    return np.cumsum([0.0, *(stage.expected for stage in profile)])


def _crossed(amounts: Offsets, stage: Stage) -> Offsets:
    """Solve ``start * t + (end - start) * t**2 / (2 * duration) = amount`` for t, in the form that divides by no 0."""
    slope = (stage.end - stage.start) / stage.duration_s
    root = np.sqrt(np.maximum(stage.start**2 + 2 * slope * amounts, 0.0))
    below = stage.start + root
    return np.divide(2 * amounts, below, out=np.zeros_like(amounts), where=below > 0)
