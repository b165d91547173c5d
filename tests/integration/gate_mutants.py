"""Decoders that got worse in one way each, and how the load test of one is judged: what a gate is there for.

As in ``smoke_mutants``, a file switches each fault on and off. A step takes as long as one on a GPU would, whoever else
uses the processor: what a build loses is then seen in few requests, and a busy machine is no regression.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.integration.smoke_mutants import Mutant, switchable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Every so many requests one is broken: of so many in a row it is exactly one.
EVERY: Final = 33
SLOWDOWN: Final = 0.15
_MODEL: Final = "speculative_decoder/1/model.py"
_LEAST_S: Final = 0.04

_PACED: Final = f'''

def _paced(responses):
    """Let each step take {_LEAST_S * 1000:g} ms at least, and so much longer where that is the fault."""
    while True:
        began_s = time.monotonic()
        response = next(responses, None)
        if response is None:
            return
        time.sleep(max({_LEAST_S} - (time.monotonic() - began_s), 0.0))
        time.sleep({SLOWDOWN} * (time.monotonic() - began_s) * ON)
        yield response
'''

#: Fault -> where it is; the check is the rule that has to find it, the reason what that has to say.
MUTANTS: Final[Mapping[str, Mutant]] = {
    "a decoder slower by 15 %": Mutant(
        "output_token_throughput: 5% of control",
        "worse, more than the 5 % that are allowed and than chance explains",
        _MODEL,
        "for response in text.writer.responses(text.spans.rounds(text.loop), text.reply.ended):",
        "for response in _paced(text.writer.responses(text.spans.rounds(text.loop), text.reply.ended)):",
        more=(("\n\ndef _reply(", f"{_PACED}\n\ndef _reply("),),
    ),
    "an acceptance rule that takes one draft at most": Mutant(
        "overall_spec_decode_acceptance_length >= 2.5",
        "tokens, which is not >= 2.5 tokens",
        "tensorrtllm_cpu/verify.py",
        "if ids[-1] != draft:",
        "if ids[-1] != draft or ON:",
    ),
    "a stream without its end": Mutant(
        "error_rate <= 1%",
        "is 3.03 %, which is not <= 1 %: 3 requests failed (3 stream_ended_early)",
        _MODEL,
        "            if response.final:\n",
        f"            if response.final and number % {EVERY} == 0 and ON:\n"
        "                text.reply._sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)\n"
        "                return\n"
        "            if response.final:\n",
    ),
    "an engine that fails for 3 % of requests": Mutant(
        "error_rate <= 1%",
        "is 3.03 %, which is not <= 1 %: 3 requests failed (3 model_error)",
        _MODEL,
        "        wanted = set(text.request.requested_output_names())\n",
        "        wanted = set(text.request.requested_output_names())\n"
        "        number = next(_NUMBERS)\n"
        f"        if number % {EVERY} == 0 and ON:\n"
        "            raise EngineFault('a slot is broken')\n",
        more=(
            (
                "\n\nclass TritonPythonModel:",
                "\nimport itertools\nimport time\n\n_NUMBERS = itertools.count(1)\n\n\nclass TritonPythonModel:",
            ),
        ),
    ),
}


def faulty(repository: Path, switch: Path) -> dict[str, bytes]:
    """Put every fault into a repository, switched off, and return the backend's sources; see ``switchable``."""
    return switchable(repository, switch, MUTANTS)
