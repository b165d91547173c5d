"""Does speculation leave the result alone?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdeploy.smoke.compare import first_difference, require_ids
from specdeploy.smoke.probe import Broken

if TYPE_CHECKING:
    from specdeploy.smoke.probe import Probe

_LONG_DRAFT = 7


def lossless_greedy(probe: Probe) -> str:
    """Greedy token ids with drafts equal those of the target alone, for several prompts and draft lengths."""
    most = probe.expect.max_draft_tokens or _LONG_DRAFT
    lengths = sorted({1, probe.expect.num_draft_tokens, min(_LONG_DRAFT, most)})
    differences: list[dict[str, Any]] = []
    for prompt in probe.expect.prompts:
        reference = probe.greedy(prompt.text, drafts=0)
        require_ids(f"prompt {prompt.name}", reference)
        for drafts in lengths:
            difference = first_difference(reference, probe.greedy(prompt.text, drafts=drafts))
            if difference is not None:
                differences.append({"prompt": prompt.name, "num_draft_tokens": drafts, **difference.as_dict()})
    compared = len(probe.expect.prompts) * len(lengths)
    if differences:
        raise Broken(_reason(differences, compared, probe.expect.target_precision), {"differences": differences})
    return f"{compared} answers of up to {probe.expect.max_tokens} tokens, drafts of {', '.join(map(str, lengths))}"


def _reason(differences: list[dict[str, Any]], compared: int, precision: str) -> str:
    first = differences[0]
    reason = (
        f"{len(differences)} of {compared} answers differ from the target's own; the first, prompt {first['prompt']} "
        f"with {first['num_draft_tokens']} drafts, at token {first['position']}: {list(first['expected'])} became "
        f"{list(first['seen'])}"
    )
    if precision == "fp32":
        return reason
    return f"{reason}. With a {precision} target this may be numerics: two tokens nearly as likely as each other"
