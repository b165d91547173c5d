"""Is it up, and is it wired as clients expect?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdeploy.smoke.probe import Broken
from specdeploy.triton.protocol import CHUNK_OUTPUTS, FRONT_DOOR_INPUTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.smoke.probe import Probe

_SENT = (
    "text_input",
    "max_tokens",
    "stream",
    "num_draft_tokens",
    "use_draft_logits",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "stop_words",
)


def server_ready(probe: Probe) -> str:
    """The server is live and ready."""
    about = probe.client.server(timeout_s=probe.timeout_s)
    if not probe.client.live(timeout_s=probe.timeout_s):
        raise Broken("the server answers but says that it is not live")
    if not probe.client.ready(timeout_s=probe.timeout_s):
        raise Broken("the server is live but not ready: a model did not load")
    return f"{about.get('name', 'server')} {about.get('version', 'of unknown version')}"


def models_ready(probe: Probe) -> str:
    """Every model of the repository is ready."""
    models = probe.expect.models
    missing = [name for name in models if not probe.client.model_ready(name, timeout_s=probe.timeout_s)]
    if missing:
        raise Broken(f"not ready: {', '.join(missing)}", {"not_ready": missing})
    return f"{len(models)} models"


def metadata(probe: Probe) -> str:
    """Every front door has each input that clients send and each output that they read, of the right type."""
    doors = [door for door in (probe.expect.front_door, probe.expect.second_door) if door]
    faults = [fault for door in doors for fault in _faults(probe, door)]
    if faults:
        raise Broken("; ".join(faults), {"faults": faults})
    return f"{', '.join(doors)}: {len(_SENT)} inputs and {len(CHUNK_OUTPUTS)} outputs as expected"


def _faults(probe: Probe, door: str) -> list[str]:
    about = probe.client.metadata(door, timeout_s=probe.timeout_s)
    inputs = dict(about.input_types)
    if "random_seed" in inputs:
        inputs.setdefault("seed", inputs["random_seed"])
    sent = {name: FRONT_DOOR_INPUTS[name] for name in _SENT}
    return _missing(f"{door} input", sent, inputs) + _missing(f"{door} output", CHUNK_OUTPUTS, about.output_types)


def _missing(what: str, wanted: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    absent = [f"{what} {name} is missing" for name in wanted if name not in present]
    wrong = [
        f"{what} {name} is {present[name]}, not {datatype}"
        for name, datatype in wanted.items()
        if name in present and present[name] != datatype
    ]
    return absent + wrong
