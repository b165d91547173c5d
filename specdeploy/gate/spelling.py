"""How a rule of the configuration is written: YAML's mappings become the compact string that rules are read from.

Knows the keys of such a mapping; does not know what a rule means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What a compact rule begins with that is only reported.
ADVISORY: Final = "advisory:"
_KEYS: Final = ("rule", "advisory", "floor")
_HINT: Final = "Write it as text in quotes, or with the keys rule, advisory (true or false) and floor."


def spell_rule(pairs: Sequence[tuple[str, str]]) -> str:
    """Return the compact string of a rule that YAML made a mapping of.

    A rule with a colon, such as ``request_throughput: 5%``, is a mapping of one key to YAML unless it stands in quotes.

    Args:
        pairs: Keys and values as text.

    Raises:
        ConfigError: They are no rule.
    """
    keys = [key for key, _ in pairs]
    if "rule" not in keys:
        if len(pairs) == 1 and keys[0] not in _KEYS[2:]:
            return f"{keys[0]}: {pairs[0][1]}"
        raise ConfigError(f"a rule with the keys {', '.join(keys) or '(none)'}, and no 'rule'", hint=_HINT)
    for key in keys:
        if key not in _KEYS or keys.count(key) > 1:
            what = "stands twice in a rule" if key in _KEYS else "is not a key of a rule"
            raise ConfigError(f"{key!r} {what}", hint=_HINT)
    values = dict(pairs)
    advisory = values.get("advisory", "false")
    if advisory.lower() not in {"true", "false"}:
        raise ConfigError(f"advisory is {advisory!r}, not true or false", hint=_HINT)
    if "advisory" in values and values["rule"].strip().startswith(ADVISORY):
        raise ConfigError(f"advisory is {advisory}, and its rule says {ADVISORY!r} itself", hint="Say it once.")
    head = f"{ADVISORY} " if advisory.lower() == "true" else ""
    tail = f" floor {values['floor']}" if "floor" in values else ""
    return f"{head}{values['rule']}{tail}"
