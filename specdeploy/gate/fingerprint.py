"""What a run was measured with: two runs are comparable when nothing of it differs.

Taken from ``load.json``: the deployment, its engines and release, the GPUs, the machine that sent the load and the
load itself. Each has a field of its own, so that a difference can be named. A run keeps its own with what it measured.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

ABSENT: Final = "-"
#: What the fields of the engines begin with.
ENGINE: Final = "engine."
_KEY_SHOWN: Final = 16
_HINT: Final = "Measure again with `specdeploy load` of this version."
_DEPLOYMENT: Final = ("profile", "release", "image", "model", "protocol", "max_seq_len", "max_sequences")
#: Fields of a load test's deployment that say how it was asked, and nothing of what it answers.
_NOT_OF_THE_ANSWERS: Final = ("control", "protocol")
_MACHINE: Final = ("cpu_model", "cpu_cores")
#: Packages that a deployment on this machine computes with.
_PACKAGES: Final = ("onnxruntime_genai",)
#: How patient the generator is with a server that fails changes nothing that is measured of one that does not.
_NOT_OF_THE_LOAD: Final = frozenset({"deadline_s", "max_connection_failures", "request_timeout_s"})


def fingerprint_of(load: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a run's fingerprint, as text: those that it kept, else what its document comes to.

    Args:
        load: The content of ``load.json``.

    Raises:
        ConfigError: A part of the document is no object, or the fingerprint holds something else than text.
    """
    if load.get("fingerprint") is None:
        return take_fingerprint(load)
    kept = load["fingerprint"]
    if not isinstance(kept, dict) or not kept:
        # One without fields agrees with every other.
        raise ConfigError(f"load report: its fingerprint is {kept!r}, not an object with fields", hint=_HINT)
    for field, value in kept.items():
        if not isinstance(value, str):
            raise ConfigError(f"load report: {value!r} for {field} in its fingerprint is not text", hint=_HINT)
    return kept


def take_fingerprint(load: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that a document comes to, for the run to keep.

    Args:
        load: The content of ``load.json``.

    Raises:
        ConfigError: A part of the document is no object.
    """
    environment, plan, client = (_part(load, name) for name in ("environment", "plan", "client"))
    listed = environment.get("gpus")
    gpus = [gpu for gpu in listed if isinstance(gpu, dict)] if isinstance(listed, list) else []
    names = [str(gpu.get("name")) for gpu in gpus]
    packages = _part(environment, "packages")
    return {
        **_deployment(load),
        "gpus": ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or ABSENT,
        "driver": ", ".join(dict.fromkeys(str(gpu.get("driver")) for gpu in gpus)) or ABSENT,
        **{f"machine.{name}": _text(environment.get(name)) for name in _MACHINE},
        "machine.python": ".".join(_text(environment.get("python")).split(".")[:2]),
        **{f"machine.{name}": _text(packages.get(name)) for name in _PACKAGES},
        "machine.processes": _text(client.get("processes")),
        **{f"load.{name}": _text(value) for name, value in plan.items() if name not in _NOT_OF_THE_LOAD},
    }


def answers_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a load or smoke test's deployment that its answers come from.

    Args:
        document: The content of ``load.json`` or ``smoke.json``.

    Raises:
        ConfigError: The deployment is no object.
    """
    return {field: value for field, value in _deployment(document).items() if field not in _NOT_OF_THE_ANSWERS}


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Return the fields that differ, with the value here and there; a field that one has not is `ABSENT`."""
    fields = dict.fromkeys((*here, *there))
    both = ((field, here.get(field, ABSENT), there.get(field, ABSENT)) for field in fields)
    return tuple(found for found in both if found[1] != found[2])


def _deployment(document: Mapping[str, Any]) -> dict[str, str]:
    deployment = _part(document, "deployment")
    return {
        **{name: _text(deployment.get(name)) for name in _DEPLOYMENT},
        "control": _control(deployment.get("control")),
        **{f"{ENGINE}{role}": _engine(engine) for role, engine in _part(deployment, "engines").items()},
        **{f"speculation.{name}": _text(value) for name, value in _part(deployment, "speculation").items()},
    }


def _control(control: object) -> str:
    """Return what another server was that answered for the control: where it listened that day says nothing of it."""
    if not isinstance(control, dict):
        return _text(control)
    told = {name: value for name, value in control.items() if name != "server"}
    return _text(told) if told else "another deployment"


def _part(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        kind = "smoke" if data.get("kind") == "smoke" else "load"
        raise ConfigError(f"{kind} report: {name!r} is {value!r}, not an object", hint=_HINT)
    return value


def _engine(engine: object) -> str:
    """The key names everything that the engine was made from and with."""
    key = engine.get("key") if isinstance(engine, dict) else engine
    return _text(key)[:_KEY_SHOWN]


def _text(value: object) -> str:
    if value is None or value in ("", [], {}):
        return ABSENT
    plain = isinstance(value, str) and value.isprintable()
    return str(value) if plain else json.dumps(value, ensure_ascii=False, sort_keys=True)
