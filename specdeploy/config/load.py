"""Reads ``specdeploy.yaml`` and the values laid over it into one frozen configuration, and knows where each came from.

Sources, each laid over the one before: the schema's defaults, the file, environment variables ``SPECDEPLOY__A__B``, and
``--set a.b=value``. All problems of all sources are reported at once, and then all contradictions between the values.
Whether they fit the world (do the checkpoints exist, do they belong together) is for the checkers that look at it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.config import template, values
from specdeploy.config.document import Entry, read_document, unknown_key_hint
from specdeploy.config.leaves import Leaf, assemble, flatten, schema
from specdeploy.config.rules import check_config
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdeploy.config.leaves import Section, Value
    from specdeploy.config.schema import DeployConfig

ENV_PREFIX: Final = "SPECDEPLOY__"
DEFAULT_ORIGIN: Final = "default"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedConfig:
    """A configuration and its provenance.

    Args:
        config: The resolved values.
        base_dir: Absolute folder of the file; paths in the configuration are relative to it.
        origin: Key path to ``default``, ``<file>:<line>``, ``env <NAME>`` or ``--set``.
    """

    config: DeployConfig
    base_dir: Path
    origin: Mapping[str, str]

    def resolve(self, path: str) -> Path:
        """Return a path of the configuration as an absolute one; ``~`` is the home directory."""
        return self.base_dir / Path(path).expanduser()


def load_config(path: Path, overrides: Mapping[str, str], env: Mapping[str, str]) -> LoadedConfig:
    """Read the configuration of a deployment.

    Args:
        path: The YAML file.
        overrides: Key path to text, as given by ``--set``. Lists are written ``a,b`` or ``[a, b]``.
        env: Environment; only names that begin with ``SPECDEPLOY__`` are looked at.

    Raises:
        ConfigError: Something is wrong; ``findings`` holds every problem with its file and line, variable or option.
    """
    table = schema()
    document = read_document(_read(path), path.name, table)
    entries, tried, problems = dict(document.entries), set(document.tried), list(document.findings)
    for key, text, origin, where in _overlays(overrides, env):
        tried.add(key)
        try:
            entries[key] = Entry(value=_override(table, key, text), origin=origin)
        except values.BadValue as error:
            problems.append(_problem("config.override", f"`{key}`: {error.message}", error.hint, where))
    if document.readable:
        problems += [
            _problem("config.missing-key", f"`{leaf.path}` is required", leaf.describe, path.name)
            for leaf in table.leaves()
            if leaf.default is None and leaf.path not in tried
        ]
    _refuse(path, problems)
    loaded = _resolve(table, entries, path)
    _refuse(path, [_placed(finding, loaded, path) for finding in check_config(loaded.config)])
    return loaded


def resolved_rows(loaded: LoadedConfig) -> tuple[tuple[str, str, str], ...]:
    """Return (key path, value as YAML, origin) for every key, in the order of the schema.

    A gate without rules has those for what is measured, and these are shown.
    """
    from specdeploy.config.gate_defaults import rules_for  # noqa: PLC0415 - slow to import, and few verbs ask for it

    flat = flatten(loaded.config) | {"gate.rules": rules_for(loaded.config)}
    return tuple((key, template.as_yaml(value), loaded.origin[key]) for key, value in flat.items())


def _refuse(path: Path, problems: Sequence[Finding]) -> None:
    if problems:
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError(f"{path}: {count} in the configuration", findings=problems)


def _placed(finding: Finding, loaded: LoadedConfig, path: Path) -> Finding:
    """Say where the key of a finding was given, or which file could give it."""
    origin = loaded.origin.get(finding.where, DEFAULT_ORIGIN)
    return dataclasses.replace(finding, where=path.name if origin == DEFAULT_ORIGIN else origin)


def _resolve(table: Section, layered: Mapping[str, Entry], path: Path) -> LoadedConfig:
    resolved: dict[str, Value] = {}
    origin: dict[str, str] = {}
    for leaf in table.leaves():
        if leaf.path in layered:
            resolved[leaf.path], origin[leaf.path] = layered[leaf.path].value, layered[leaf.path].origin
        elif leaf.default is not None:
            resolved[leaf.path], origin[leaf.path] = leaf.default, DEFAULT_ORIGIN
    return LoadedConfig(config=assemble(resolved), base_dir=path.resolve().parent, origin=origin)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}", hint="`specdeploy init` writes one; --config names another.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _overlays(overrides: Mapping[str, str], env: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (key path, text, origin, where), the weaker source first."""
    for name in sorted(env):
        if name.startswith(ENV_PREFIX):
            key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            yield key, env[name], f"env {name}", f"env {name}"
    for key, text in overrides.items():
        yield key, text, "--set", f"--set {key}"


def _override(table: Section, key: str, text: str) -> Value:
    leaf = _find(table, key)
    if not leaf.is_list:
        return values.parse(leaf, text)
    return tuple(values.parse(leaf, item) for item in values.items(leaf, text))


def _find(table: Section, key: str) -> Leaf:
    section: Section = table
    names = key.split(".")
    for depth, name in enumerate(names):
        member = section.member(name)
        if member is None:
            raise values.BadValue("there is no such key", _hint(table, section, key, name))
        if isinstance(member, Leaf):
            if depth + 1 < len(names):
                raise values.BadValue(f"`{member.path}` is a value and has no keys below it")
            return member
        section = member
    raise values.BadValue("it is a section", f"Name one of its keys: {', '.join(m.path for m in section.members)}.")


def _hint(table: Section, section: Section, key: str, name: str) -> str:
    """Prefer the nearest whole path: ``load.max_token`` should lead to ``load.max_tokens``."""
    return values.nearest(key, [leaf.path for leaf in table.leaves()]) or unknown_key_hint(table, section, name)


def _problem(code: str, message: str, hint: str, where: str) -> Finding:
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)
