"""By which rules a load test is judged: those that were written, or the default ones for what it measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdeploy.config.gate_defaults import rules_for, told_by
from specdeploy.gate.defaults import default_rules
from specdeploy.gate.document import LoadDocument
from specdeploy.gate.rules import parse_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdeploy.config.load import LoadedConfig
    from specdeploy.gate.rules import Rule


def check_rules(loaded: LoadedConfig, given: Iterable[str] = ()) -> tuple[Rule, ...]:
    """Return the rules of a configuration before anything was measured: wrong ones are the user's to mend at once.

    Args:
        loaded: The configuration.

        given: In place of its rules.

    Raises:
        ConfigError: A rule is wrong.
    """
    return parse_rules(tuple(given) or rules_for(loaded.config))


def rules_of(loaded: LoadedConfig, load: Mapping[str, Any], given: Iterable[str] = ()) -> tuple[Rule, ...]:
    """Return the rules for a load test.

    The default ones are those for the plan that was carried out, which options such as ``--openai`` or ``--no-compare``
    make another one than the configuration's. What came of it makes no difference: a speed-up that was planned and not
    measured is still asked for.

    Args:
        loaded: The configuration.

        load: The content of ``load.json``.

        given: In place of all others.

    Raises:
        ConfigError: A rule is wrong, or the document is.
    """
    if texts := tuple(given) or loaded.config.gate.rules:
        return parse_rules(texts)
    document = LoadDocument(load)
    # Another server may tell of its drafts, and most tell nothing.
    told = "nothing" if document.profile == "openai" else told_by(loaded.config)
    return parse_rules(default_rules(document.measured(told)))
