"""The CPU target against an independent reference: Hugging Face transformers, on the same checkpoint.

Both decode SmolLM2 greedily in float32, from the text of a prompt to token ids: two tokenizers, two implementations of
the network, two decoders. Ours is the deployment as it is served, behind real Triton.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.smoke import PROMPTS
from specdeploy.triton.protocol import GenerateRequest
from specdeploy.triton.server import TritonServer
from tests.conftest import modelopt_python
from tests.deployments import specdeploy
from tests.integration.plain_triton import client_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.triton.client import TritonClient
    from specdeploy.triton.runtime import Runtime

pytestmark = [pytest.mark.reference, pytest.mark.cpu, pytest.mark.triton, pytest.mark.model]

PROGRAM = Path(__file__).parents[1] / "reference_greedy.py"
MAX_TOKENS = 32
# A busy machine takes minutes for either side.
_LIMIT_S = 600
#: Two best tokens whose logits are nearer than this could be swapped by the order in which float32 sums are added up.
TIE = 0.01
TEXTS = {
    **{prompt.name: prompt.text for prompt in PROMPTS},
    "chat": "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "emoji": "Weather report 🌧️☀️: 東京は雨、Zürich is",
    "long": "One morning the miller counted his sacks and found that one was missing. " * 24,
}
CONFIG = """\
name: reference
target:
  checkpoint: {checkpoint}
  precision: fp32
draft:
  checkpoint: {checkpoint}
  precision: int8
build:
  max_seq_len: 1024
repo:
  path: models
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """What transformers answered to one prompt."""

    input_ids: list[int]
    output_ids: list[int]
    text: str
    margins: list[float]


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> dict[str, Reference]:
    """What transformers answered, by the name of the prompt."""
    done = subprocess.run(
        [modelopt_python(), PROGRAM, smollm2],
        input=json.dumps({"prompts": list(TEXTS.values()), "max_tokens": MAX_TOKENS}),
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)["answers"]
    return {name: Reference(**answer) for name, answer in zip(TEXTS, answers, strict=True)}


@pytest.fixture(scope="module")
def client(smollm2: Path, triton_runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonClient]:
    """A client of the deployment, served by Triton."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "specdeploy.yaml").write_text(CONFIG.format(checkpoint=smollm2))
    for command in ("build", "repo"):
        done = specdeploy(command, cwd=folder, timeout_s=_LIMIT_S)
        assert done.returncode == 0, done.stderr
    with (
        TritonServer(triton_runtime, folder / "models", run_dir=tmp_path_factory.mktemp("run")) as server,
        client_of(server) as client,
    ):
        yield client


@pytest.mark.parametrize("drafts", [0, 4], ids=["target-alone", "with-drafts"])
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.timeout(3 * _LIMIT_S)
def test_the_ids_are_those_of_transformers(
    name: str, drafts: int, client: TritonClient, reference: dict[str, Reference]
) -> None:
    """Every greedy token id is transformers' own, with and without drafts; only a tie may part the two.

    A tie is where transformers' two likeliest tokens are within ``TIE`` of each other. What follows it has another
    beginning and is not compared.
    """
    expected = reference[name]
    answer = client.generate_http(
        GenerateRequest(prompt=TEXTS[name], max_tokens=MAX_TOKENS, num_draft_tokens=drafts), timeout_s=120
    )
    assert answer.num_input_tokens in {None, len(expected.input_ids)}
    seen = list(answer.ids)
    if seen == expected.output_ids:
        assert answer.text == expected.text
        return
    both = min(len(seen), len(expected.output_ids))
    position = next((i for i in range(both) if seen[i] != expected.output_ids[i]), both)
    margin = expected.margins[position]
    told = (
        f"prompt {name}, {drafts} drafts, token {position}: transformers {expected.output_ids[position:][:4]}, "
        f"ours {seen[position:][:4]}, margin {margin:.6f}"
    )
    assert margin < TIE, told
    print(f"tie: {told}", file=sys.stderr)
