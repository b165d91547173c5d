"""Is it up, is it wired as clients expect, and can operators see it?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from specdeploy.smoke.capabilities import CONTROL, COUNTS, IDS, STREAM_END, TRITON
from specdeploy.smoke.probe import Broken, NotApplicable
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
#: Input or output -> the capability without which nobody sends or reads it.
_ONLY_WITH: Final[Mapping[str, str]] = {
    "num_draft_tokens": CONTROL,
    "use_draft_logits": CONTROL,
    "output_ids": IDS,
    "finish_reason": STREAM_END,
    **dict.fromkeys(CHUNK_OUTPUTS.keys() - {"text_output", "output_ids", "finish_reason"}, COUNTS),
}
#: What dashboards of a Triton server are drawn from: requests, failures, time in the model and in its queue.
_GRAPHED = (
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
)
_SAMPLE = re.compile(r"^(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$")
_MODEL = re.compile(r'(?:^|,)model="(?P<model>[^"]*)"')
_READS = 40
_PAUSE_S = 0.05


def server_ready(probe: Probe) -> str:
    """The server is live and ready."""
    about = probe.client.server(timeout_s=probe.timeout_s)
    if not probe.client.live(timeout_s=probe.timeout_s):
        raise Broken("the server answers but says that it is not live")
    if not probe.client.ready(timeout_s=probe.timeout_s):
        raise Broken("the server is live but not ready: a model did not load")
    return f"{about.get('name', 'server')} {about.get('version', 'of unknown version')}"


def models_ready(probe: Probe) -> str:
    """Every model of the repository is ready, in some version."""
    models = probe.expect.models
    missing = [name for name in models if not probe.client.model_ready(name, timeout_s=probe.timeout_s)]
    if missing:
        raise Broken(f"not ready: {', '.join(missing)}", {"not_ready": missing})
    versions = {name: probe.client.metadata(name, timeout_s=probe.timeout_s).versions for name in models}
    without = [name for name, of_model in versions.items() if not of_model]
    if without:
        raise Broken(f"no version is loaded of {', '.join(without)}", {"no_version": without})
    return (
        f"{len(models)} models, versions {', '.join(sorted({v for of_model in versions.values() for v in of_model}))}"
    )


def metadata(probe: Probe) -> str:
    """Every front door has each input that clients send and each output that they read, of the right type."""
    doors = [door for door in (probe.expect.front_door, probe.expect.second_door) if door]
    sent = {name: FRONT_DOOR_INPUTS[name] for name in _SENT if _is_used(probe, name)}
    read = {name: datatype for name, datatype in CHUNK_OUTPUTS.items() if _is_used(probe, name)}
    faults = [fault for door in doors for fault in _faults(probe, door, sent, read)]
    if faults:
        raise Broken("; ".join(faults), {"faults": faults})
    return f"{', '.join(doors)}: {len(sent)} inputs and {len(read)} outputs as expected"


def metrics(probe: Probe) -> str:
    """The metrics page has requests, failures and times of every model, and it counts a request to the front door."""
    probe.require(TRITON)
    if not probe.expect.metrics:
        raise NotApplicable("the server was started without a metrics endpoint")
    door, models = probe.expect.front_door, probe.expect.models
    page = _page(probe)
    absent = [f"{name} of {model}" for name in _GRAPHED for model in models if model not in page.get(name, {})]
    if absent:
        raise Broken(f"the metrics page lacks {', '.join(absent)}", {"absent": absent})
    before = page[_GRAPHED[0]].get(door, 0.0)
    probe.greedy(max_tokens=1)
    # Triton counts a request a moment after its answer is on the way.
    for _ in range(_READS):
        after = _page(probe).get(_GRAPHED[0], {}).get(door, 0.0)
        if after > before:
            return f"{len(_GRAPHED)} metrics of {len(models)} models, {after:g} requests to {door} so far"
        probe.wait(_PAUSE_S)
    raise Broken(f"{_GRAPHED[0]} of {door} is {before:g} before a request and {after:g} after it")


def _page(probe: Probe) -> dict[str, dict[str, float]]:
    """Return metric -> model -> value, summed over versions and reasons."""
    page: dict[str, dict[str, float]] = {}
    for line in probe.client.metrics_text(timeout_s=probe.timeout_s).splitlines():
        sample = _SAMPLE.match(line)
        model = _MODEL.search(sample["labels"]) if sample else None
        if sample and model:
            of_metric = page.setdefault(sample["name"], {})
            of_metric[model["model"]] = of_metric.get(model["model"], 0.0) + float(sample["value"])
    return page


def _is_used(probe: Probe, tensor: str) -> bool:
    return tensor not in _ONLY_WITH or probe.can(_ONLY_WITH[tensor])


def _faults(probe: Probe, door: str, sent: Mapping[str, str], read: Mapping[str, str]) -> list[str]:
    about = probe.client.metadata(door, timeout_s=probe.timeout_s)
    inputs = dict(about.input_types)
    if "random_seed" in inputs:
        inputs.setdefault("seed", inputs["random_seed"])
    return _missing(f"{door} input", sent, inputs) + _missing(f"{door} output", read, about.output_types)


def _missing(what: str, wanted: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    absent = [f"{what} {name} is missing" for name in wanted if name not in present]
    wrong = [
        f"{what} {name} is {present[name]}, not {datatype}"
        for name, datatype in wanted.items()
        if name in present and present[name] != datatype
    ]
    return absent + wrong
