"""Whether both arms answered alike: greedy decoding has to give the same tokens with drafts and without.

Compares digests of answers; looks into the records themselves only where they differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdeploy.bench.records import CONTROL
from specdeploy.bench.table import table_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdeploy.bench.records import RequestRecord
    from specdeploy.bench.table import Place

_MOST_DIFFERING: Final = 5


def compare_outputs(records: Iterable[RequestRecord]) -> dict[str, Any]:
    """Compare the tokens that both arms answered to the same request.

    Returns:
        ``compared`` and ``identical`` counts and ``differing``, the first few requests whose tokens differ, with the
        position of the first difference.
    """
    compared = identical = 0
    differing: list[dict[str, Any]] = []
    answered = table_of(records).measured.good
    controls: dict[object, Place] = {}
    for place in answered.where(answered["answer"] != 0).by_block():
        if place.arm == CONTROL:
            controls[place.point, place.pair] = place
            continue
        if (control := controls.pop((place.point, place.pair), None)) is None:
            continue
        _, ours, theirs = np.intersect1d(control.requests["index"], place.requests["index"], return_indices=True)
        same = control.requests["answer"][ours] == place.requests["answer"][theirs]
        compared += len(same)
        identical += int(same.sum())
        differing += [
            _difference(control.requests[int(ours[at])], place.requests[int(theirs[at])])
            for at in np.flatnonzero(~same)[: _MOST_DIFFERING - len(differing)]
        ]
    return {"compared": compared, "identical": identical, "differing": differing}


def _difference(control: RequestRecord, speculation: RequestRecord) -> dict[str, Any]:
    ids = zip(control.output_ids, speculation.output_ids, strict=False)
    shorter = min(len(control.output_ids), len(speculation.output_ids))
    position = next((position for position, (a, b) in enumerate(ids) if a != b), shorter)
    return {
        "prompt_id": control.prompt_id,
        **control.point.to_dict(),
        "pair": control.pair,
        "position": position,
    }
