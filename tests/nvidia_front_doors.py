"""NVIDIA's two front doors over our CPU engines, so that a client written for them meets them on a real Triton.

Tensors and wiring are the templates' (``nvidia_templates``); the engines and the text-to-ids model are those of a
deployment of ours. The two models of NVIDIA's that have to compute something are stand-ins that were written from a
description of what theirs do, as far as a client sees it:

* ``postprocessing`` decodes what the engine returns, which begins with the prompt unless that was excluded;
* ``tensorrt_llm_bls`` drafts only when ``num_draft_tokens`` is sent, refuses to stream then, answers once, and tells
  the draft counts of its last round.

What they do not prove: NVIDIA's own texts of errors, its stop words, and its speed.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Final

from tests.nvidia_templates import FILL, write_templates

if TYPE_CHECKING:
    from pathlib import Path

RELEASE: Final = "1.2.1"
#: Models of a deployment of ours that stay.
_OURS: Final = ("preprocessing", "tensorrt_llm", "tensorrt_llm_draft")
_THEIRS: Final = ("ensemble", "postprocessing", "tensorrt_llm_bls")

_POSTPROCESSING: Final = """\
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb
from tokenizers import Tokenizer


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"], args["model_version"])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tokens = pb.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
        length = int(pb.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy().reshape(-1)[0])
        text = self.tokenizer.decode(tokens.reshape(-1)[:length].tolist(), skip_special_tokens=True)
        return pb.InferenceResponse([pb.Tensor("OUTPUT", np.array([[text.encode()]], dtype=object))])
"""
_BLS: Final = '''\
import json

import numpy as np
import triton_python_backend_utils as pb

SAMPLING = {
    "temperature": "temperature",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "seed": "seed",
    "min_tokens": "min_tokens",
    "repetition_penalty": "repetition_penalty",
}


def column(value):
    return np.array([[value]], dtype=np.int32)


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.target = parameters["tensorrt_llm_model_name"]["string_value"]
        self.draft = parameters["tensorrt_llm_draft_model_name"]["string_value"]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        try:
            outputs = self.outputs({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
        except Exception as error:
            return pb.InferenceResponse(error=pb.TritonError(str(error)))
        wanted = set(request.requested_output_names())
        return pb.InferenceResponse([tensor for tensor in outputs if tensor.name() in wanted])

    def outputs(self, given):
        drafts = int(given["num_draft_tokens"].reshape(-1)[0]) if "num_draft_tokens" in given else 0
        if drafts > 0 and given["stream"].any():
            raise pb.TritonModelException("streaming is not supported with speculative decoding")
        words = {"STOP_WORDS_DICT": given[name] for name in ("stop_words",) if name in given}
        ids, stop, end = self.call(
            "preprocessing",
            ["INPUT_ID", "STOP_WORDS_IDS", "OUT_END_ID"],
            QUERY=given["text_input"],
            REQUEST_OUTPUT_LEN=given["max_tokens"],
            **words,
        )
        more = {SAMPLING[name]: value for name, value in given.items() if name in SAMPLING}
        more |= {"stop_words_list": stop, "end_id": end}
        limit = ids.size + int(given["max_tokens"].reshape(-1)[0])
        ids = ids.reshape(-1)
        ids, drafted, accepted = self.decode(ids, limit, drafts, more)
        (text,) = self.call(
            "postprocessing", ["OUTPUT"], TOKENS_BATCH=ids.reshape(1, 1, -1), SEQUENCE_LENGTH=column(ids.size)
        )
        return [
            pb.Tensor("text_output", text),
            pb.Tensor("total_draft_tokens", column(drafted)),
            pb.Tensor("total_accepted_draft_tokens", column(accepted)),
        ]

    def decode(self, ids, limit, drafts, more):
        """Return the whole sequence, and what the last round drafted and accepted."""
        drafted = accepted = 0
        while ids.size < limit:
            count = min(drafts, limit - ids.size - 1)
            proposed = self.extended(self.draft, ids, count, more)[ids.size :] if count > 0 else ids[:0]
            extra = {"draft_input_ids": proposed.reshape(1, -1)} if proposed.size else {}
            # Without drafts the target goes on to the end by itself.
            length = proposed.size + 1 if drafts > 0 else limit - ids.size
            longer = self.extended(self.target, ids, length, more | extra)
            new = longer[ids.size :]
            same = next((i for i in range(min(new.size, proposed.size)) if new[i] != proposed[i]), proposed.size)
            drafted, accepted = proposed.size, min(same, new.size)
            if new.size < accepted + 1 or drafts == 0:
                return longer, drafted, accepted
            ids = longer
        return ids, drafted, accepted

    def extended(self, model, ids, length, more):
        output, size = self.call(
            model,
            ["output_ids", "sequence_length"],
            input_ids=ids.reshape(1, -1),
            input_lengths=column(ids.size),
            request_output_len=column(length),
            **more,
        )
        return output.reshape(-1)[: int(size.reshape(-1)[0])]

    def call(self, model, names, **arrays):
        inputs = [pb.Tensor(name, np.ascontiguousarray(array)) for name, array in arrays.items()]
        response = pb.InferenceRequest(model_name=model, requested_output_names=names, inputs=inputs).exec()
        if response.has_error():
            raise pb.TritonModelException(response.error().message())
        return [pb.get_output_tensor_by_name(response, name).as_numpy() for name in names]
'''
_CODE: Final = {"postprocessing": _POSTPROCESSING, "tensorrt_llm_bls": _BLS}
_MAP: Final = re.compile(r'      (input|output)_map \{\n        key: "([^"]+)"\n        value: "([^"]+)"\n      \}\n?')


def write_front_doors(folder: Path, ours: Path) -> Path:
    """Write NVIDIA's front doors to *folder*, over the engines of a deployment of ours.

    Args:
        folder: The model repository; made.
        ours: The repository of a deployment of ours, beside whose folder the engines are.
    """
    write_templates(folder, RELEASE, fill=FILL | {"triton_max_batch_size": "1"}, models=_THEIRS)
    for model in _OURS:
        shutil.copytree(ours / model, folder / model)
    tokenizer = ours / "preprocessing" / "1" / "tokenizer" / "tokenizer.json"
    shutil.copy(tokenizer, folder / "postprocessing" / "1")
    for model, code in _CODE.items():
        (folder / model / "1" / "model.py").write_text(code, encoding="utf-8")
    _fit(folder)
    return folder


def _fit(folder: Path) -> None:
    """Take out of the ensemble what the models behind it do not have: images, encoders, adapters."""
    config = folder / "ensemble" / "config.pbtxt"
    head, *steps = re.split(r'(?=    \{\n      model_name: ")', config.read_text(encoding="utf-8"))
    produced = {"text_output"}
    fitted = []
    for step in steps:
        fitted.append(_fitted(step, folder, produced))
        produced |= set(re.findall(r'output_map \{\n        key: "[^"]+"\n        value: "([^"]+)"', fitted[-1]))
    used = set(re.findall(r'value: "([^"]+)"', "".join(fitted)))
    head = re.sub(
        r'  \{\n    name: "([^"]+)"\n[^{}]*(?:\{[^{}]*\}[^{}]*)*\n  \},?\n',
        lambda found: found.group() if found.group(1) in used else "",
        head,
    )
    # What was the last of its list may have gone.
    head = re.sub(r"\},\n\]", "}\n]", head)
    config.write_text(head + "".join(fitted), encoding="utf-8")


def _fitted(step: str, folder: Path, produced: set[str]) -> str:
    """Leave the inputs and outputs that the model has, and that come from the client or an earlier step."""
    model = re.search(r'model_name: "([^"]+)"', step)
    assert model is not None
    has = set(re.findall(r'name: "([^"]+)"', (folder / model.group(1) / "config.pbtxt").read_text(encoding="utf-8")))

    def kept(found: re.Match[str]) -> str:
        kind, key, value = found.groups()
        made = kind == "output" or not value.startswith("_") or value in produced
        return found.group() if key in has and made else ""

    return _MAP.sub(kept, step)
