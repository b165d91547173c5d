"""Runs the checks one after another; each is on its own, and a server that is gone ends the run."""

from __future__ import annotations

import difflib
import time
from typing import TYPE_CHECKING, TypeAlias

from specdeploy.errors import ConfigError, SpecdeployError
from specdeploy.smoke.checks import CHECKS
from specdeploy.smoke.probe import Broken, NotApplicable, Probe
from specdeploy.smoke.report import CheckResult, SmokeReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from specdeploy.smoke.expectations import Expectations
    from specdeploy.smoke.report import Status
    from specdeploy.triton.client import TritonClient

ClientFactory: TypeAlias = "Callable[[], TritonClient]"

_LIVE_TIMEOUT_S = 5.0


def run_smoke(
    client_factory: ClientFactory,
    expectations: Expectations,
    *,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    on_check: Callable[[CheckResult], None] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> SmokeReport:
    """Run the selected checks in order and return what they found; a failing check never raises.

    When the server no longer answers at all, the checks that are left are skipped with the reason.

    Args:
        client_factory: Makes a client; every check gets one of its own, and it is closed.

        expectations: What the deployment promises.

        only: Names of the checks to run; empty runs all.

        skip: Names of the checks to leave out.

        on_check: Called with each outcome as soon as it is known.

        monotonic: The clock of durations and time limits.

        sleep: Waits between two looks at a counter.

    Raises:
        ConfigError: ``only`` or ``skip`` names no check.
    """

    def make_probe(client: TritonClient) -> Probe:
        return Probe(client, expectations, monotonic=monotonic, sleep=sleep)

    tell = on_check or _ignore
    results: list[CheckResult] = []
    lost = _lost(client_factory)
    for name in select(only, skip):
        if lost:
            result = CheckResult(name=name, status="skip", duration_s=0.0, reason=lost)
        else:
            result = _run_one(name, client_factory, make_probe, monotonic)
            lost = _lost(client_factory) if result.status == "fail" else ""
        results.append(result)
        tell(result)
    return SmokeReport(checks=tuple(results), server_lost=lost)


def select(only: Iterable[str], skip: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the checks to run, in their own order.

    Raises:
        ConfigError: A name is not that of a check.
    """
    wanted, unwanted = set(only), set(skip)
    for name in sorted((wanted | unwanted) - CHECKS.keys()):
        near = difflib.get_close_matches(name, CHECKS, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"The checks are {', '.join(CHECKS)}."
        raise ConfigError(f"there is no smoke check {name!r}", hint=hint)
    return tuple(name for name in CHECKS if (not wanted or name in wanted) and name not in unwanted)


def _run_one(
    name: str,
    client_factory: ClientFactory,
    make_probe: Callable[[TritonClient], Probe],
    monotonic: Callable[[], float],
) -> CheckResult:
    started = monotonic()

    def result(status: Status, reason: str, **details: object) -> CheckResult:
        return CheckResult(name=name, status=status, duration_s=monotonic() - started, reason=reason, details=details)

    try:
        with client_factory() as client:
            return result("pass", CHECKS[name](make_probe(client)))
    except NotApplicable as error:
        return result("skip", str(error))
    except Broken as error:
        return result("fail", str(error), **error.details)
    except SpecdeployError as error:
        return result("fail", f"{error.message}. {error.hint}".strip(" ."), **_label(error))
    except Exception as error:  # noqa: BLE001 - one check's crash is that check's failure, and the others still run
        return result("fail", f"{type(error).__name__}: {error}")


def _label(error: SpecdeployError) -> dict[str, object]:
    label = getattr(error, "label", None)
    return {} if label is None else {"label": label}


def _lost(client_factory: ClientFactory) -> str:
    """Say why the server cannot be reached; nothing when it can."""
    try:
        with client_factory() as client:
            client.server(timeout_s=_LIVE_TIMEOUT_S)
    except SpecdeployError as error:
        return f"the server cannot be reached: {error.message}"
    return ""


def _ignore(_result: CheckResult) -> None:
    pass
