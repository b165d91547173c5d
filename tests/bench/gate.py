"""How often the gate's decisions are wrong, by simulation with the rules themselves: seeded, so always the same rows.

Each run is off by 4 %, each session (a day, a machine's mood) by 5 %, and a machine drifts by 2 % from run to run.
Pairs are interleaved (ABBA) within one session; the runs of a baseline are of a session each. Noise is normal, or has
the heavy tails of Student's t with 3 degrees of freedom at the same standard deviation, or is skewed: mostly smaller,
and now and then a run that is much slower.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specdeploy.bench.intervals import percentile_interval, share_interval
from specdeploy.bench.paired import paired_ratio
from specdeploy.gate.claims import Count, is_claimed
from specdeploy.gate.regression import decide, of_pairs, of_runs
from specdeploy.gate.repeats import share_of
from specdeploy.holm import holm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.gate.regression import Change

    Draw = Callable[[np.random.Generator, int], np.ndarray]

REPEATS = 20_000
RUN, SESSION, DRIFT = 0.04, 0.05, 0.02
PAIRS = DAYS = 5
LOOKS = 4
ALLOWED, CONFIDENCE = 0.05, 0.95
SEED = 7


def _skewed(rng: np.random.Generator, size: int) -> np.ndarray:
    return 1.0 - rng.exponential(size=size)


NOISES: dict[str, Draw] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "heavy-tailed": lambda rng, size: rng.standard_t(3, size) / np.sqrt(3),
    "skewed": _skewed,
}


class Pairs(NamedTuple):
    """Ratios of new over old throughput, and of each whether the old one was measured first."""

    ratios: list[float]
    old_first: list[bool]


def pairs(rng: np.random.Generator, draw: Draw, loss: float, count: int = PAIRS) -> Pairs:
    """Return interleaved pairs: old first, then new first, and so on."""
    logs = draw(rng, 2 * count) * RUN + np.arange(2 * count) * np.log1p(-DRIFT)
    first, second = logs[0::2], logs[1::2]
    old_first = np.arange(count) % 2 == 0
    old, new = np.where(old_first, first, second), np.where(old_first, second, first)
    return Pairs((np.exp(new - old) * (1 - loss)).tolist(), old_first.tolist())


def paired_rates(noise: str, loss: float, repeats: int = REPEATS) -> dict[str, float]:
    """Return the share of each decision about interleaved pairs, where throughput was lost by a share."""
    rng, seen = np.random.default_rng(SEED), Counter()
    for _ in range(repeats):
        found = pairs(rng, NOISES[noise], loss)
        change = of_pairs(*found, higher_is_better=True, allowed=ALLOWED, confidence=CONFIDENCE)
        seen[decide(change, change.p, CONFIDENCE)] += 1
    return _shares(seen, repeats)


def repeated_rates(noise: str, loss: float, repeats: int = REPEATS) -> dict[str, float]:
    """Return the share of each decision of a gate that measures on, to twice the pairs each time, until it decides."""
    rng, seen = np.random.default_rng(SEED), Counter()
    for _ in range(repeats):
        found = pairs(rng, NOISES[noise], loss, PAIRS << (LOOKS - 1))
        decision, look = "unproven", 0
        while decision in {"unproven", "blurred"} and look < LOOKS:
            count, look = PAIRS << look, look + 1
            confidence = 1 - (1 - CONFIDENCE) * share_of(look)
            part = (found.ratios[:count], found.old_first[:count])
            change = of_pairs(*part, higher_is_better=True, allowed=ALLOWED, confidence=confidence)
            decision = decide(change, change.p, confidence)
        seen[decision] += 1
    return _shares(seen, repeats)


def repeated_coverage(noise: str, repeats: int = REPEATS) -> float:
    """Return how often the intervals of the speed-up of all looks hold the true one."""
    rng, hits = np.random.default_rng(SEED), 0
    for _ in range(repeats):
        found = pairs(rng, NOISES[noise], 0.0, PAIRS << (LOOKS - 1))
        hits += all(_holds_one(found, PAIRS << (look - 1), share_of(look)) for look in range(1, LOOKS + 1))
    return hits / repeats


def _holds_one(found: Pairs, count: int, share: float) -> bool:
    ratio = paired_ratio(found.ratios[:count], found.old_first[:count], confidence=1 - (1 - CONFIDENCE) * share)
    return (ratio.ci_low or 0) <= 1.0 <= (ratio.ci_high or 0)


def paired_coverage(noise: str, repeats: int = REPEATS) -> float:
    """Return how often the interval of the speed-up holds the true one."""
    rng, hits = np.random.default_rng(SEED), 0
    for _ in range(repeats):
        ratio = paired_ratio(*pairs(rng, NOISES[noise], 0.0))
        hits += (ratio.ci_low or 0) <= 1.0 <= (ratio.ci_high or 0)
    return hits / repeats


def baseline_rates(noise: str, loss: float, repeats: int = REPEATS, days: int = DAYS) -> dict[str, float]:
    """Return the share of each decision about one run against a baseline of several days."""
    seen: Counter[str] = Counter()
    for change in _against_baseline(noise, loss, repeats, days):
        seen[decide(change, change.p, CONFIDENCE)] += 1
    return _shares(seen, repeats)


def several_rates(
    noise: str, loss: float, repeats: int = REPEATS, *, days: int = 0, rules: int = 4
) -> dict[str, float]:
    """Return the share of each verdict of a gate with several rules, of which the first is of what lost a share.

    Args:
        noise: Of which each rule's measurements have their own.

        loss: Share of the throughput that the first one lost.

        repeats: Gates.

        days: Of the baseline; 0 compares in pairs.

        rules: How many.
    """
    worst_first = ("fail", "unproven", "blurred", "pass")
    rng, seen = np.random.default_rng(SEED), Counter()
    for _ in range(repeats):
        losses = [loss, *[0.0] * (rules - 1)]
        changes = [_against_days(rng, noise, lost, days) if days else _in_pairs(rng, noise, lost) for lost in losses]
        ps = holm([change.p for change in changes])
        found = {decide(change, p, CONFIDENCE) for change, p in zip(changes, ps, strict=True)}
        seen[next(verdict for verdict in worst_first if verdict in found)] += 1
    return _shares(seen, repeats)


def _in_pairs(rng: np.random.Generator, noise: str, loss: float) -> Change:
    found = pairs(rng, NOISES[noise], loss)
    return of_pairs(*found, higher_is_better=True, allowed=ALLOWED, confidence=CONFIDENCE)


def baseline_coverage(noise: str, repeats: int = REPEATS) -> float:
    """Return how often the prediction interval of one more day, of both ends, holds it."""
    changes = _against_baseline(noise, 0.0, repeats, DAYS)
    return sum(abs(change.shift) <= change.half for change in changes) / repeats


def _against_baseline(noise: str, loss: float, repeats: int, days: int) -> Iterator[Change]:
    rng = np.random.default_rng(SEED)
    for _ in range(repeats):
        yield _against_days(rng, noise, loss, days)


def _against_days(rng: np.random.Generator, noise: str, loss: float, days: int) -> Change:
    draw = NOISES[noise]
    runs = np.exp(draw(rng, days + 1) * SESSION + draw(rng, days + 1) * RUN)
    value = float(runs[-1]) * (1 - loss)
    return of_runs(value, runs[:-1].tolist(), higher_is_better=True, allowed=ALLOWED, confidence=CONFIDENCE)


def threshold_rates(noise: str, loss: float, repeats: int = REPEATS) -> float:
    """Return how often a threshold alone, against the mean of a stored baseline, calls a regression."""
    rng, draw, alarms = np.random.default_rng(SEED), NOISES[noise], 0
    for _ in range(repeats):
        runs = np.exp(draw(rng, DAYS + 1) * SESSION + draw(rng, DAYS + 1) * RUN)
        alarms += float(runs[-1]) * (1 - loss) < (1 - ALLOWED) * float(runs[:-1].mean())
    return alarms / repeats


def percentile_coverage(percentile: float, n: int, repeats: int = REPEATS // 10) -> float:
    """Return how often the order statistics around a percentile of lognormal latencies hold the true one."""
    from scipy.special import ndtri

    rng, true, hits = np.random.default_rng(SEED), float(np.exp(0.5 * ndtri(percentile / 100))), 0
    for _ in range(repeats):
        low, high = percentile_interval(np.sort(rng.lognormal(0, 0.5, n)), percentile)
        hits += (low is None or low <= true) and (high is None or true <= high)
    return hits / repeats


def share_coverage(share: float | None, n: int, repeats: int = REPEATS) -> float:
    """Return how often Wilson's interval of a share holds the true one; None is another share each time."""
    rng, hits = np.random.default_rng(SEED), 0
    for _ in range(repeats):
        true = float(rng.random()) if share is None else share
        low, high = share_interval(int(rng.binomial(n, true)), n) or (0.0, 0.0)
        hits += low <= true <= high
    return hits / repeats


def false_claims(share: float, n: int, repeats: int = REPEATS) -> float:
    """Return how often a percentile just beyond its limit is claimed all the same."""
    rng = np.random.default_rng(SEED)
    kept = rng.binomial(n, share, repeats)
    return sum(is_claimed(Count(kept=int(k), over=n - int(k)), share, CONFIDENCE) for k in kept) / repeats


def repeated_claims(share: float, n: int, repeats: int = REPEATS) -> float:
    """Return how often a percentile just beyond its limit is claimed at any of the looks at ever more requests."""
    rng, claimed = np.random.default_rng(SEED), 0
    for _ in range(repeats):
        kept = total = 0
        for look in range(1, LOOKS + 1):
            more = n if look == 1 else total
            kept, total = kept + int(rng.binomial(more, share)), total + more
            if is_claimed(Count(kept=kept, over=total - kept), share, 1 - (1 - CONFIDENCE) * share_of(look)):
                claimed += 1
                break
    return claimed / repeats


def rows(repeats: int = REPEATS) -> list[tuple[str, float]]:
    """Return the rates, for a rule that allows 5 %."""
    found, upto = [], f"repeated, {PAIRS} to {PAIRS << (LOOKS - 1)} pairs"
    few, several = max(repeats // 10, 1), max(repeats // 4, 1)
    for noise in NOISES:
        found += [
            (f"gate, {PAIRS} pairs, {noise}: false alarms", paired_rates(noise, 0.0, repeats)["fail"]),
            (f"gate, {PAIRS} pairs, {noise}: 10 % worse caught", paired_rates(noise, 0.10, repeats)["fail"]),
            (f"gate, {PAIRS} pairs, {noise}: 15 % worse caught", paired_rates(noise, 0.15, repeats)["fail"]),
            (f"gate, {PAIRS} pairs, {noise}: 10 % worse passed", paired_rates(noise, 0.10, repeats)["pass"]),
            (f"gate, {PAIRS} pairs, {noise}: 7 % worse caught", paired_rates(noise, 0.07, repeats)["fail"]),
            (f"gate, {PAIRS} pairs, {noise}: coverage of 95 %", paired_coverage(noise, repeats)),
            (f"{upto}, {noise}: false alarms", repeated_rates(noise, 0.0, repeats)["fail"]),
            (f"{upto}, {noise}: 10 % worse caught", repeated_rates(noise, 0.10, repeats)["fail"]),
            (f"{upto}, {noise}: 10 % worse passed", repeated_rates(noise, 0.10, repeats)["pass"]),
            (f"{upto}, {noise}: 7 % worse caught", repeated_rates(noise, 0.07, repeats)["fail"]),
            (f"{upto}, {noise}: coverage of 95 %, all looks together", repeated_coverage(noise, repeats)),
            (f"gate, {DAYS} days, {noise}: false alarms", baseline_rates(noise, 0.0, repeats)["fail"]),
            (f"gate, {DAYS} days, {noise}: 20 % worse caught", baseline_rates(noise, 0.20, repeats)["fail"]),
            (f"gate, {DAYS} days, {noise}: 20 % worse passed", baseline_rates(noise, 0.20, repeats)["pass"]),
            (f"gate, {DAYS} days, {noise}: coverage of 97 %", baseline_coverage(noise, repeats)),
            (f"gate, 10 days, {noise}: false alarms", baseline_rates(noise, 0.0, repeats, 10)["fail"]),
            (f"gate, 10 days, {noise}: 20 % worse caught", baseline_rates(noise, 0.20, repeats, 10)["fail"]),
            (f"gate, {PAIRS} pairs, 4 rules, {noise}: false alarms", several_rates(noise, 0.0, several)["fail"]),
            (f"gate, {PAIRS} pairs, 4 rules, {noise}: passed", several_rates(noise, 0.0, several)["pass"]),
            (
                f"gate, {PAIRS} pairs, 4 rules, {noise}: 10 % worse in one caught",
                several_rates(noise, 0.10, several)["fail"],
            ),
            (
                f"gate, {PAIRS} pairs, 4 rules, {noise}: 15 % worse in one caught",
                several_rates(noise, 0.15, several)["fail"],
            ),
            (
                f"gate, 10 days, 5 rules, {noise}: false alarms",
                several_rates(noise, 0.0, several, days=10, rules=5)["fail"],
            ),
            (f"threshold alone, {DAYS} days, {noise}: false alarms", threshold_rates(noise, 0.0, repeats)),
        ]
    found += [
        (f"p{at} of {n}, order statistics: coverage of 95 %", percentile_coverage(at, n, few))
        for at, n in ((50, 30), (50, 200), (90, 100), (95, 200), (99, 500), (99, 2000))
    ]
    found.append(("p99 of 200, one bound: coverage of 97.5 %", percentile_coverage(99, 200, few)))
    found += [(f"any share of {n}, Wilson: coverage of 95 %", share_coverage(None, n, repeats)) for n in (30, 300)]
    found.append(("90 % of 300, Wilson: coverage of 95 %", share_coverage(0.9, 300, repeats)))
    found.append(("p99 of 1000 that is not kept: claimed", false_claims(0.99, 1000, repeats)))
    found.append((f"p99 of 300 to {300 << (LOOKS - 1)} that is not kept: claimed", repeated_claims(0.99, 300, repeats)))
    return found


def _shares(seen: Counter[str], repeats: int) -> dict[str, float]:
    return {decision: seen[decision] / repeats for decision in ("pass", "fail", "blurred", "unproven")}
