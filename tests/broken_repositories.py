"""Model repositories broken in every way that we know, and good ones: lint is measured with them against a real Triton.

Three good repositories are broken: ``plain``, small models of no particular purpose; ``deployment``, what ``specdeploy
repo`` wrote for two tiny engines, served by the CPU backend; ``templates``, NVIDIA's ``inflight_batcher_llm`` models
around a backend that only pretends (``PRETENDER``), beside engine directories with what ``trtllm-build`` records. Where
only TensorRT-LLM itself could object, Triton's column therefore says that the repository is served.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from tests.nvidia_templates import FILL, MODELS, draft_copy, facts, write_templates

RECORD: Final = Path(__file__).parent / "data" / "broken_repositories.json"
Base: TypeAlias = Literal["plain", "deployment", "templates"]
Break: TypeAlias = Callable[[Path], object]
TARGET: Final = "tensorrt_llm/config.pbtxt"
DRAFT: Final = "tensorrt_llm_draft/config.pbtxt"
BLS: Final = "tensorrt_llm_bls/config.pbtxt"
DECODER: Final = "speculative_decoder/config.pbtxt"
ENSEMBLE: Final = "ensemble/config.pbtxt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A first request: the model, and the tensors by name as (type, values); or JSON for ``generate_stream``."""

    model: str
    inputs: Mapping[str, tuple[str, list[Any]]] = dataclasses.field(default_factory=dict)
    body: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One way to break a good repository.

    Args:
        name: Stable; how the record and the tests call it.
        what: One line for readers.
        base: The good repository.
        apply: Breaks it; is given its folder.
        ask: The first request; None is the base's own.
    """

    name: str
    what: str
    base: Base
    apply: Break
    ask: Request | None = None


# --- the good repositories ----------------------------------------------------------------------------------------

_TENSOR: Final = 'name: "{name}" data_type: TYPE_INT32 dims: [ -1 ]'
_WORKER: Final = """\
name: "{name}"
backend: "python"
max_batch_size: 4
input [ {{ name: "X" data_type: TYPE_INT32 dims: [ -1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
_PLAIN_ENSEMBLE: Final = """\
name: "ensemble"
platform: "ensemble"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "first"
      model_version: -1
      input_map { key: "X" value: "X" }
      output_map { key: "Y" value: "between" }
    },
    {
      model_name: "second"
      model_version: -1
      input_map { key: "X" value: "between" }
      output_map { key: "Y" value: "Y" }
    }
  ]
}
"""
_ECHO: Final = """\
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb.get_input_tensor_by_name(request, "X").as_numpy()) for request in requests]

    def answer(self, values):
        return pb.InferenceResponse([pb.Tensor("Y", values)])
"""
_CALLER: Final = """\
import json

import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.called = parameters["tensorrt_llm_model_name"]["string_value"]

    def execute(self, requests):
        return [self.answer(pb.get_input_tensor_by_name(request, "X")) for request in requests]

    def answer(self, tensor):
        called = pb.InferenceRequest(model_name=self.called, requested_output_names=["Y"], inputs=[tensor])
        return called.exec()
"""
_DECOUPLED: Final = """\
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            values = pb.get_input_tensor_by_name(request, "X").as_numpy()
            sender.send(pb.InferenceResponse([pb.Tensor("Y", values)]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
#: A backend called `tensorrtllm` that loads with any parameters, and answers with the prompt.
PRETENDER: Final = """\
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb.get_input_tensor_by_name(request, "input_ids").as_numpy()) for request in requests]

    def answer(self, ids):
        return pb.InferenceResponse([pb.Tensor("output_ids", ids[:, None]), pb.Tensor("sequence_length", ids[:, :1])])
"""
_TEMPLATE_PREPROCESSING: Final = """\
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb.get_input_tensor_by_name(request, "QUERY").as_numpy()) for request in requests]

    def answer(self, query):
        ids = np.array([[len(word) for word in query.reshape(-1)[0].decode().split()]], dtype=np.int32)
        return pb.InferenceResponse([pb.Tensor("INPUT_ID", ids)])
"""
_TEMPLATE_POSTPROCESSING: Final = """\
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()) for request in requests]

    def answer(self, ids):
        text = " ".join(map(str, ids.reshape(-1))).encode()
        return pb.InferenceResponse([pb.Tensor("OUTPUT", np.array([[text]], dtype=object))])
"""
_TEMPLATE_BLS: Final = """\
import json

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.engines = [
            parameters[key]["string_value"] for key in ("tensorrt_llm_draft_model_name", "tensorrt_llm_model_name")
        ]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def call(self, model, output, **arrays):
        inputs = [pb.Tensor(name, array) for name, array in arrays.items()]
        response = pb.InferenceRequest(model_name=model, requested_output_names=[output], inputs=inputs).exec()
        if response.has_error():
            raise pb.TritonModelException(response.error().message())
        return pb.get_output_tensor_by_name(response, output).as_numpy()

    def answer(self, request):
        text = pb.get_input_tensor_by_name(request, "text_input").as_numpy()
        limit = pb.get_input_tensor_by_name(request, "max_tokens").as_numpy()
        ids = self.call("preprocessing", "INPUT_ID", QUERY=text, REQUEST_OUTPUT_LEN=limit)
        for engine in self.engines:
            if not engine:
                continue
            if engine.startswith("${"):
                raise pb.TritonModelException("cannot perform speculative decoding without draft model")
            length = np.array([[ids.shape[-1]]], dtype=np.int32)
            tensors = {"input_ids": ids, "input_lengths": length, "request_output_len": limit}
            ids = self.call(engine, "output_ids", **tensors).reshape(1, -1)
        answer = self.call(
            "postprocessing", "OUTPUT", TOKENS_BATCH=ids[None], SEQUENCE_LENGTH=np.array([[ids.shape[-1]]], np.int32)
        )
        return pb.InferenceResponse([pb.Tensor("text_output", answer)])
"""
_TEMPLATE_CODE: Final = {
    "preprocessing": _TEMPLATE_PREPROCESSING,
    "postprocessing": _TEMPLATE_POSTPROCESSING,
    "tensorrt_llm_bls": _TEMPLATE_BLS,
}


def plain(folder: Path) -> Path:
    """Write two python models, the ensemble of both, and one that calls another by name."""
    for name in ("first", "second"):
        _model(folder / name, _WORKER.format(name=name), _ECHO)
    parameter = 'parameters { key: "tensorrt_llm_model_name" value { string_value: "first" } }\n'
    _model(folder / "caller", _WORKER.format(name="caller") + parameter, _CALLER)
    _model(folder / "ensemble", _PLAIN_ENSEMBLE, None)
    return folder


def templates(folder: Path, release: str = "0.18.2") -> Path:
    """Write NVIDIA's templates filled in completely, a draft beside the target, and their engines' directories."""
    engines = folder.parent / "engines"
    write_engine(engines / "target", version=release, mode=2, max_draft_len=5)
    write_engine(engines / "draft", version=release)
    fill = full_fill(release)
    write_templates(folder, release, fill=fill | {"engine_dir": str(engines / "target")})
    draft_copy(folder)
    edit(folder / DRAFT, str(engines / "target"), str(engines / "draft"))
    for model, code in _TEMPLATE_CODE.items():
        (folder / model / "1" / "model.py").write_text(code)
    return folder


def full_fill(release: str) -> dict[str, str]:
    """Return a value for every placeholder of a release; what need not be set is empty."""
    described = facts(release)
    left = {name for model in MODELS for name in described[model]["placeholders"]}
    return dict.fromkeys(left, "") | FILL


def write_engine(folder: Path, *, ranks: int = 1, **overrides: Any) -> Path:
    """Write the directory of an engine as ``trtllm-build`` leaves it, with stubs for the weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(engine_config(**overrides), indent=2))
    for rank in range(ranks):
        (folder / f"rank{rank}.engine").write_bytes(b"engine")
    return folder


def engine_config(
    *,
    version: str = "0.18.2",
    mode: int | str = 1,
    max_draft_len: int = 0,
    world_size: int = 1,
    paged: bool = True,
    logits_dtype: str = "float32",
    vocab_size: int = 128256,
    **model: Any,
) -> dict[str, Any]:
    """Return an engine's ``config.json``: the fields that decide whether a deployment works."""
    return {
        "version": version,
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "logits_dtype": logits_dtype,
            "vocab_size": vocab_size,
            "mapping": {"world_size": world_size, "tp_size": world_size, "pp_size": 1},
            **model,
        },
        "build_config": {
            "max_seq_len": 4096 + max_draft_len,
            "max_batch_size": 64,
            "max_draft_len": max_draft_len,
            "speculative_decoding_mode": mode,
            "kv_cache_type": "PAGED",
            "plugin_config": {"use_paged_context_fmha": paged},
        },
    }


# --- edits --------------------------------------------------------------------------------------------------------


def edit(path: Path, old: str, new: str) -> None:
    """Replace text in a file; there must be something to replace."""
    text = path.read_text()
    assert old in text, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new))


def replace(path: str, old: str, new: str) -> Break:
    """Return an edit of one file."""
    return lambda root: edit(root / path, old, new)


def append(path: str, text: str) -> Break:
    """Return an edit that adds to a file."""

    def apply(root: Path) -> None:
        with (root / path).open("a") as file:
            file.write(text)

    return apply


def write(path: str, text: str) -> Break:
    """Return an edit that writes a file."""

    def apply(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    return apply


def remove(path: str) -> Break:
    """Return an edit that removes a file or a folder."""

    def apply(root: Path) -> None:
        place = root / path
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    return apply


def move(path: str, to: str) -> Break:
    """Return an edit that renames a file or a folder."""
    return lambda root: (root / path).rename(root / to)


def parameter(path: str, key: str, value: str) -> Break:
    """Return an edit that sets one parameter, however the file lays it out; one that is not there is added."""

    def apply(root: Path) -> None:
        text = (root / path).read_text()
        before, found, after = text.partition(f'key: "{key}"')
        if found:
            head, _, tail = after.partition('string_value: "')
            text = f'{before}{found}{head}string_value: "{value}"{tail.partition(chr(34))[2]}'
        else:
            text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        (root / path).write_text(text)

    return apply


def both(*edits: Break) -> Break:
    """Return several edits as one."""
    return lambda root: [apply(root) for apply in edits]


def rebuilt(role: str, **overrides: Any) -> Break:
    """Return an edit that puts another engine in the place of the templates' target or draft."""

    def apply(root: Path) -> None:
        folder = root.parent / "engines" / role
        shutil.rmtree(folder)
        write_engine(folder, **overrides)

    return apply


def engine_file(role: str, file: str, change: Callable[[bytes], bytes]) -> Break:
    """Return an edit of one file of the deployment's engine."""

    def apply(root: Path) -> None:
        key = json.loads((root / "specdeploy.json").read_text())["engines"][role]["key"]
        (path,) = (root.parent / "engines").glob(f"{key[:16]}/{file}")
        path.write_bytes(change(path.read_bytes()))

    return apply


def _model(folder: Path, config: str, code: str | None) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    if code is not None:
        (folder / "1" / "model.py").write_text(code)


def _unfilled(model: str, placeholder: str, release: str = "0.18.2") -> Break:
    """Return an edit that writes one template again with a placeholder left open, as a forgotten one is."""

    def apply(root: Path) -> None:
        code = (root / model / "1" / "model.py").read_text() if model in _TEMPLATE_CODE else None
        shutil.rmtree(root / model)
        fill = full_fill(release) | {"engine_dir": str(root.parent / "engines" / "target")}
        write_templates(root, release, fill={k: v for k, v in fill.items() if k != placeholder}, models=[model])
        if code is not None:
            (root / model / "1" / "model.py").write_text(code)

    return apply


def _templates_again(release: str) -> Break:
    """Return an edit that puts the templates of another release in the repository's place."""

    def apply(root: Path) -> None:
        shutil.rmtree(root)
        shutil.rmtree(root.parent / "engines")
        templates(root, release)

    return apply


def _alone(root: Path) -> None:
    """Leave the templates' target without a draft, for methods that draft inside of the engine."""
    parameter(BLS, "tensorrt_llm_draft_model_name", "")(root)
    shutil.rmtree(root / "tensorrt_llm_draft")


def _without_target(root: Path) -> None:
    key = json.loads((root / "specdeploy.json").read_text())["engines"]["target"]["key"]
    shutil.rmtree(root.parent / "engines" / key[:16])


def _same_engine(root: Path) -> None:
    """Give the deployment's draft the engine of its target."""
    lines = {path: (root / path).read_text().splitlines() for path in (TARGET, DRAFT)}
    ours, theirs = (next(line for line in lines[path] if '"gpt_model_path"' in line) for path in (TARGET, DRAFT))
    edit(root / DRAFT, theirs, ours)


def _cut(path: Path, at: str) -> None:
    """Cut a file off where *at* begins."""
    text = path.read_text()
    assert at in text
    path.write_text(text.partition(at)[0])


def _halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _odd_files(folder: Path) -> None:
    """Put a pipe into a folder, which is no file, and a link to the file beside it."""
    os.mkfifo(folder / "pipe")
    (folder / "again.py").symlink_to("model.py")


def _untouched_templates(root: Path) -> None:
    shutil.rmtree(root)
    write_templates(root, "0.18.2")


# --- first requests -----------------------------------------------------------------------------------------------

_TWO: Final = {"X": ("INT32", [3, 4])}
_ASK_ENSEMBLE: Final = Request(model="ensemble", inputs=_TWO)
_ASK_CALLER: Final = Request(model="caller", inputs=_TWO)
_ASK_FIRST: Final = Request(model="first", inputs=_TWO)
_ASK_DECOUPLED: Final = Request(model="ensemble", body={"X": [3, 4]})
_ASK_NOTHING: Final = Request(model="ensemble")
_ASK_STREAM: Final = Request(model="ensemble", body={"text_input": "def", "max_tokens": 9, "stream": True})
_ASK_LONG: Final = Request(model="ensemble", body={"text_input": "def add", "max_tokens": 2000})
ASK: Final[Mapping[Base, Request]] = {
    "plain": _ASK_ENSEMBLE,
    "deployment": Request(model="ensemble", body={"text_input": "def add(a, b):", "max_tokens": 6}),
    "templates": Request(
        model="tensorrt_llm_bls", inputs={"text_input": ("BYTES", ["one two three"]), "max_tokens": ("INT32", [4])}
    ),
}

# --- the cases ----------------------------------------------------------------------------------------------------

_FIRST: Final = "first/config.pbtxt"
_CALLER_CONFIG: Final = "caller/config.pbtxt"
_X: Final = 'input [ { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } ]'
_Y: Final = 'name: "Y" data_type: TYPE_INT32 dims: [ -1 ]'
_STEP_OUT: Final = 'output_map { key: "Y" value: "Y" }'
_WARMUP: Final = (
    'model_warmup {{ name: "first" batch_size: 1 inputs {{ key: "{key}" value {{ data_type: {kind} dims: [ 2 ] '
    "{data} }} }} }}\n"
)


def _plain(name: str, what: str, apply: Break, ask: Request | None = None) -> Case:
    return Case(name=name, what=what, base="plain", apply=apply, ask=ask)


def _deployment(name: str, what: str, apply: Break, ask: Request | None = None) -> Case:
    return Case(name=name, what=what, base="deployment", apply=apply, ask=ask)


def _templates(name: str, what: str, apply: Break, ask: Request | None = None) -> Case:
    return Case(name=name, what=what, base="templates", apply=apply, ask=ask)


_LAYOUT: Final = (
    _plain("unknown-field", "a misspelt field", replace(_FIRST, "max_batch_size", "max_batch_sise")),
    _plain("open-string", "a quote that is not closed", replace(_FIRST, 'backend: "python"', 'backend: "python')),
    _plain(
        "placeholder-number",
        "`${…}` left where a number belongs",
        replace(_FIRST, "max_batch_size: 4", "max_batch_size: ${triton_max_batch_size}"),
    ),
    _plain(
        "placeholder-string",
        "`${…}` left in a string",
        parameter(_CALLER_CONFIG, "tensorrt_llm_model_name", "${tensorrt_llm_model_name}"),
        _ASK_CALLER,
    ),
    _plain("name-differs", "a model copied without changing its name", replace(_FIRST, 'name: "first"', 'name: "one"')),
    _plain("no-config", "a model without config.pbtxt", remove(_FIRST)),
    _plain("stray-folder", "a folder of notes beside the models", write("notes/todo.txt", "later")),
    _plain("git-folder", "a `.git` beside the models", write(".git/HEAD", "ref: refs/heads/main")),
    _plain("no-version", "no version directory", remove("ensemble/1")),
    _plain("version-zero", "the version directory is called `01`", move("first/1", "first/01")),
    _plain(
        "version-policy",
        "a version policy that names an absent version",
        append(_FIRST, "version_policy { specific { versions: [ 3 ] } }\n"),
    ),
    _plain("no-backend", "an ensemble without its platform", replace(ENSEMBLE, 'platform: "ensemble"\n', "")),
    _plain("backend-misspelt", "a misspelt backend", replace(_FIRST, 'backend: "python"', 'backend: "pyhton"')),
    _plain("backend-as-platform", "a backend given as the platform", replace(_FIRST, "backend:", "platform:")),
    _plain("batch-negative", "a negative max_batch_size", replace(_FIRST, "max_batch_size: 4", "max_batch_size: -1")),
    _plain(
        "batch-preferred",
        "a preferred batch above max_batch_size",
        append(_FIRST, "dynamic_batching { preferred_batch_size: [ 8 ] }\n"),
    ),
    _plain(
        "dangling-link",
        "an editor's lock, a link to nothing, in a model",
        lambda root: (root / "first" / "1" / ".#model.py").symlink_to("somebody@nowhere.1"),
    ),
    _plain("priority", "priorities without a default one", append(_FIRST, "dynamic_batching { priority_levels: 2 }\n")),
)
_TENSORS: Final = (
    _plain("labels", "labels that are not there", replace(_FIRST, _Y, f'{_Y} label_filename: "nope.txt"')),
    _plain(
        "format",
        "the format of an image without its dimensions",
        replace(_FIRST, _X, _X.replace("dims", "format: FORMAT_NHWC dims")),
    ),
    _plain("type-missing", "an input without a type", replace(_FIRST, _X, 'input [ { name: "X" dims: [ -1 ] } ]')),
    _plain("dims-missing", "an input without dims", replace(_FIRST, _X, _X.replace(" dims: [ -1 ]", ""))),
    _plain("dims-zero", "a dimension of nothing", replace(_FIRST, _X, _X.replace("-1", "0"))),
    _plain(
        "reshape",
        "a reshape to another number of elements",
        replace(_FIRST, _X, _X.replace("[ -1 ]", "[ 4 ] reshape { shape: [ 3 ] }")),
    ),
    _plain("input-twice", "a required input declared twice", replace(_FIRST, _X, f"{_X}\n{_X}")),
    _plain(
        "output-twice", "an output declared twice", append(_FIRST, f"output [ {{ {_TENSOR.format(name='Y')} }} ]\n")
    ),
    _plain(
        "warmup-file",
        "a warm-up request whose data is not there",
        append(_FIRST, _WARMUP.format(key="X", kind="TYPE_INT32", data='input_data_file: "prompt"')),
    ),
    _plain(
        "warmup-type",
        "a warm-up request of another type",
        append(_FIRST, _WARMUP.format(key="X", kind="TYPE_FP32", data="zero_data: true")),
    ),
    _plain(
        "warmup-input",
        "a warm-up request that leaves an input out",
        append(_FIRST, _WARMUP.format(key="Z", kind="TYPE_INT32", data="zero_data: true")),
    ),
)
_PYTHON: Final = (
    _plain("python-syntax", "a python model that does not compile", append("first/1/model.py", "def (:\n")),
    _plain("python-no-class", "a python model without its class", replace("first/1/model.py", "TritonPython", "My")),
    _plain("python-no-execute", "a python model without execute", replace("first/1/model.py", "execute", "run")),
    _plain("python-missing", "a python model without its file", remove("first/1/model.py")),
    _plain(
        "environment-missing",
        "a Python environment that is not there",
        parameter(_FIRST, "EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/env.tar.gz"),
    ),
    _plain("secret", "a token in a file", append("first/1/model.py", f'TOKEN = "hf_{"aB3d" * 9}"\n')),
)
_ENSEMBLES: Final = (
    _plain("step-unknown", "a step of a model that is not there", replace(ENSEMBLE, '"second"', '"third"')),
    _plain(
        "step-version", "a step of a version that is not there", replace(ENSEMBLE, "-1\n      input", "2\n      input")
    ),
    _plain("no-steps", "an ensemble without steps", lambda root: _cut(root / ENSEMBLE, "ensemble_scheduling")),
    _plain("map-missing", "a step without an output_map", replace(ENSEMBLE, f"      {_STEP_OUT}\n", "")),
    _plain(
        "type-differs",
        "a tensor of two types between steps",
        replace("second/config.pbtxt", _X, _X.replace("INT32", "INT64")),
    ),
    _plain(
        "shape-differs",
        "a tensor of two ranks between steps",
        replace("second/config.pbtxt", _X, _X.replace("[ -1 ]", "[ -1, 2 ]")),
    ),
    _plain(
        "step-input-unknown",
        "a step feeds an input that its model has not",
        replace(ENSEMBLE, 'key: "X" value: "b', 'key: "Z" value: "b'),
    ),
    _plain(
        "step-input-missing",
        "a step leaves a required input out",
        replace("second/config.pbtxt", _X, f"{_X}\ninput [ {{ {_TENSOR.format(name='Z')} }} ]"),
    ),
    _plain(
        "unproduced",
        "an output that nothing gives",
        replace(ENSEMBLE, "ensemble_scheduling", f"output [ {{ {_TENSOR.format(name='Z')} }} ]\nensemble_scheduling"),
    ),
    _plain(
        "produced-twice",
        "a tensor that two steps give",
        replace(ENSEMBLE, '"between" }\n    },', '"Y" }\n    },'),
    ),
    _plain(
        "input-unused",
        "an input that goes nowhere",
        replace(ENSEMBLE, "ensemble_scheduling", f"input [ {{ {_TENSOR.format(name='Z')} }} ]\nensemble_scheduling"),
    ),
    _plain("step-batch", "a step that takes smaller batches", replace("second/config.pbtxt", "size: 4", "size: 2")),
    _plain("ensemble-cycle", "an ensemble that is its own step", replace(ENSEMBLE, '"second"', '"ensemble"')),
    _plain(
        "tensor-cycle",
        "two steps that wait for each other",
        both(
            replace(ENSEMBLE, 'key: "X" value: "X"', 'key: "X" value: "late"'),
            replace(ENSEMBLE, _STEP_OUT, 'output_map { key: "Y" value: "late" }'),
            replace(
                ENSEMBLE,
                "step [\n",
                'step [\n    { model_name: "first" model_version: -1 input_map '
                '{ key: "X" value: "X" } output_map { key: "Y" value: "Y" } },\n',
            ),
        ),
    ),
    _plain(
        "ensemble-instances",
        "an instance group of an ensemble",
        append(ENSEMBLE, "instance_group [ { kind: KIND_CPU } ]\n"),
    ),
    _plain(
        "ensemble-backend",
        "an ensemble with a backend",
        replace(ENSEMBLE, 'platform: "ensemble"', 'backend: "python"'),
    ),
    _plain(
        "ensemble-optional",
        "an optional input that a step requires",
        replace(ENSEMBLE, "dims: [ -1 ] } ]\noutput", "dims: [ -1 ] optional: true } ]\noutput"),
        _ASK_NOTHING,
    ),
    _plain(
        "ensemble-decoupled",
        "a decoupled step of an ensemble that does not say so",
        both(
            append("second/config.pbtxt", "model_transaction_policy { decoupled: true }\n"),
            write("second/1/model.py", _DECOUPLED),
        ),
        _ASK_DECOUPLED,
    ),
    _plain(
        "caller-unknown",
        "a BLS reference to a model that does not exist",
        parameter(_CALLER_CONFIG, "tensorrt_llm_model_name", "furst"),
        _ASK_CALLER,
    ),
)
_CALLS: Final = (
    _plain(
        "call-unknown",
        "code that calls a model that does not exist",
        replace("caller/1/model.py", "model_name=self.called", 'model_name="furst"'),
        _ASK_CALLER,
    ),
)
_DEPLOYMENTS: Final = (
    _deployment("engine-missing", "no engine where the configuration says", _without_target),
    _deployment("engine-half", "a half-written engine", engine_file("target", "model.onnx", lambda data: b"")),
    _deployment(
        "engine-config-cut",
        "an engine's configuration cut short",
        engine_file("draft", "genai_config.json", lambda d: d[:99]),
    ),
    _deployment(
        "engine-weights-cut",
        "weights shorter than the engine's manifest says",
        engine_file("target", "model.onnx.data", lambda data: data[: len(data) // 2]),
    ),
    _deployment(
        "engine-path-open",
        "`${engine_dir}` left in an engine's path",
        parameter(TARGET, "gpt_model_path", "${engine_dir}"),
    ),
    _deployment("engine-path-empty", "an engine without a path", parameter(TARGET, "gpt_model_path", "")),
    _deployment("engine-same", "the draft loads the target's engine", _same_engine),
    _deployment("kv-reuse-off", "KV-cache reuse is off", parameter(TARGET, "enable_kv_cache_reuse", "false")),
    _deployment(
        "kv-fraction-word",
        "a KV fraction that is no number",
        parameter(TARGET, "kv_cache_free_gpu_mem_fraction", "90%"),
    ),
    _deployment(
        "kv-fraction-large", "a KV fraction above 1", parameter(DRAFT, "kv_cache_free_gpu_mem_fraction", "1.5")
    ),
    _deployment(
        "kv-fractions",
        "two engines on one GPU that each take 0.9 of what is free",
        both(*(parameter(path, "kv_cache_free_gpu_mem_fraction", "0.9") for path in (TARGET, DRAFT))),
    ),
    _deployment(
        "parameter-misspelt",
        "a misspelt parameter of the backend",
        parameter(TARGET, "kv_cache_free_gpu_mem_fractoin", "0.5"),
    ),
    _deployment("parameter-flag", "a truth value that is none", parameter(TARGET, "enable_kv_cache_reuse", "yes")),
    _deployment(
        "engine-decoupled",
        "an engine is decoupled behind the decoder",
        replace(
            TARGET, 'backend: "tensorrtllm"', 'backend: "tensorrtllm"\nmodel_transaction_policy { decoupled: true }'
        ),
    ),
    _deployment(
        "draft-unknown",
        "the decoder names a draft that does not exist",
        parameter(DECODER, "tensorrt_llm_draft_model_name", "draft"),
    ),
    _deployment("drafts-word", "a number of drafts that is none", parameter(DECODER, "num_draft_tokens", "four")),
    _deployment(
        "too-long",
        "sequences longer than the engine holds",
        parameter(DECODER, "max_seq_len", "4096"),
        _ASK_LONG,
    ),
    _deployment("no-tokenizer", "no tokenizer", remove("preprocessing/1/tokenizer")),
    _deployment(
        "decoder-not-decoupled",
        "the decoder is not decoupled",
        replace(DECODER, "model_transaction_policy { decoupled: true }\n", ""),
        _ASK_STREAM,
    ),
    _deployment("file-gone", "a file of the decoder is gone", remove("speculative_decoder/1/decoder_loop.py")),
    _deployment("file-edited", "a file was edited by hand", append("preprocessing/1/model.py", "# edited\n")),
    _deployment("manifest-cut", "specdeploy.json cut short", lambda root: _cut(root / "specdeploy.json", '"files"')),
)
_NVIDIA: Final = (
    _templates("template-untouched", "NVIDIA's templates as they are", _untouched_templates),
    *(
        _templates(f"template-{placeholder}", f"`${{{placeholder}}}` left in `{model}`", _unfilled(model, placeholder))
        for model, placeholder in (
            ("tensorrt_llm_bls", "decoupled_mode"),
            ("tensorrt_llm_bls", "bls_instance_count"),
            ("tensorrt_llm_bls", "tensorrt_llm_draft_model_name"),
            ("tensorrt_llm", "encoder_input_features_data_type"),
            ("tensorrt_llm", "enable_kv_cache_reuse"),
            ("ensemble", "logits_datatype"),
        )
    ),
    _templates(
        "template-prompt_embedding_table_data_type",
        "`${prompt_embedding_table_data_type}` left in `tensorrt_llm`",
        both(_templates_again("1.2.1"), _unfilled("tensorrt_llm", "prompt_embedding_table_data_type", "1.2.1")),
    ),
    _templates(
        "template-output-twice", "the output that the later templates declare twice", _templates_again("0.19.0")
    ),
    _templates(
        "template-tokenizer-type",
        "`tokenizer_type`, which only old templates had, in an engine",
        parameter(TARGET, "tokenizer_type", "auto"),
    ),
    _templates(
        "template-draft-name",
        "the draft copied without changing its name",
        replace(DRAFT, 'name: "tensorrt_llm_draft"', 'name: "tensorrt_llm"'),
    ),
    _templates(
        "template-draft-engine",
        "the draft copied without changing its engine",
        lambda root: edit(root / DRAFT, "engines/draft", "engines/target"),
    ),
    _templates(
        "template-exclude-input",
        "the prompt is cut off behind `tensorrt_llm_bls`",
        parameter(TARGET, "exclude_input_in_output", "true"),
    ),
    _templates("template-reuse-empty", "KV-cache reuse is not set", parameter(DRAFT, "enable_kv_cache_reuse", "")),
    _templates(
        "template-logits",
        "logits of two types in the ensemble and the engine",
        replace(
            ENSEMBLE, '"generation_logits"\n    data_type: TYPE_FP32', '"generation_logits"\n    data_type: TYPE_FP16'
        ),
    ),
    _templates(
        "template-bls-logits",
        "logits of two types in `tensorrt_llm_bls` and the engine",
        replace(BLS, '"generation_logits"\n    data_type: TYPE_FP32', '"generation_logits"\n    data_type: TYPE_FP16'),
    ),
    _templates("engine-empty", "an empty engine directory", lambda root: _empty(root.parent / "engines" / "target")),
    _templates(
        "engine-config-half",
        "an engine's config.json cut short",
        lambda root: _halve(root.parent / "engines" / "target" / "config.json"),
    ),
    _templates("engine-mode", "a target built without draft tokens", rebuilt("target")),
    _templates("engine-draft-length", "a target that takes no draft tokens", rebuilt("target", mode=2)),
    _templates("engine-version", "engines of two releases", rebuilt("draft", version="0.17.0")),
    _templates(
        "engine-no-reuse",
        "an engine without paged context attention",
        rebuilt("target", mode=2, max_draft_len=5, paged=False),
    ),
    _templates(
        "engine-ranks", "an engine with a rank missing", rebuilt("target", mode=2, max_draft_len=5, world_size=2)
    ),
    _templates(
        "engine-logits",
        "an engine with float16 logits",
        rebuilt("target", mode=2, max_draft_len=5, logits_dtype="float16"),
    ),
    _templates(
        "engine-batch",
        "larger batches than the engine was built for",
        replace(TARGET, "max_batch_size: 4", "max_batch_size: 128"),
    ),
    _templates("world-size", "two GPUs for an engine of one rank", parameter(TARGET, "gpu_device_ids", "0,1")),
    _templates("gpu-ids", "GPU ids that are none", parameter(TARGET, "gpu_device_ids", "cuda:0")),
    _templates(
        "participants",
        "one process that is a rank of two engines",
        both(parameter(TARGET, "participant_ids", "1"), parameter(DRAFT, "participant_ids", "1")),
    ),
    _templates(
        "world-sizes",
        "engines of different world sizes, placed nowhere",
        rebuilt("target", mode=2, max_draft_len=5, world_size=2, ranks=2),
    ),
    _templates(
        "decoding-mode", "medusa on an engine that was not built for it", parameter(TARGET, "decoding_mode", "medusa")
    ),
    _templates("decoding-mode-misspelt", "a misspelt decoding_mode", parameter(TARGET, "decoding_mode", "medussa")),
    _templates(
        "lookahead-unset",
        "lookahead without its three numbers",
        both(_alone, rebuilt("target", mode=8, max_draft_len=83), parameter(TARGET, "decoding_mode", "lookahead")),
    ),
    _templates(
        "lookahead-differs",
        "lookahead with other numbers than the engine was built for",
        both(
            _alone,
            rebuilt("target", mode="LOOKAHEAD_DECODING", max_draft_len=83),
            parameter(TARGET, "decoding_mode", "lookahead"),
            *(
                parameter(TARGET, f"lookahead_{key}", "5")
                for key in ("window_size", "ngram_size", "verification_set_size")
            ),
        ),
    ),
    _templates(
        "medusa-choices",
        "a medusa tree deeper than the heads",
        both(
            _alone,
            rebuilt("target", mode=4, max_draft_len=63, num_medusa_heads=2),
            parameter(TARGET, "medusa_choices", "{0},{0,0},{0,0,0}"),
        ),
    ),
)
CASES: Final = (*_LAYOUT, *_TENSORS, *_PYTHON, *_ENSEMBLES, *_CALLS, *_DEPLOYMENTS, *_NVIDIA)

# --- good repositories --------------------------------------------------------------------------------------------


# What the later templates declare twice in a row.
_DECLARED: Final = '  {\n    name: "kv_cache_alloc_total_blocks"\n    data_type: TYPE_INT32\n    dims: [ 1 ]\n  },\n'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Good:
    """A repository that Triton serves correctly, and lint must not complain about.

    ``apply`` changes its base; ``settings`` are further arguments of ``specdeploy repo``, for a deployment.
    """

    name: str
    base: Base
    settings: tuple[str, ...] = ()
    apply: Break = lambda root: None
    ask: Request | None = None


GOOD: Final = (
    Good(name="plain", base="plain"),
    Good(name="caller", base="plain", ask=_ASK_CALLER),
    Good(
        name="decoupled",
        base="plain",
        apply=both(
            append("second/config.pbtxt", "model_transaction_policy { decoupled: true }\n"),
            write("second/1/model.py", _DECOUPLED),
            append(ENSEMBLE, "model_transaction_policy { decoupled: true }\n"),
        ),
        ask=_ASK_DECOUPLED,
    ),
    Good(
        name="hand-made",
        base="plain",
        # No name, another file, a higher version, a comment with a placeholder, Windows line ends, an optional input.
        apply=both(
            replace(_FIRST, 'name: "first"', "# was ${name}"),
            append(_FIRST, 'default_model_filename: "serve.py"\r\n'),
            append(_FIRST, f"input [ {{ {_TENSOR.format(name='Z')} optional: true }} ]\r\n"),
            move("first/1/model.py", "first/1/serve.py"),
            append("first/1/serve.py", 'NOTE = "${not a placeholder}"\n'),
            move("first/1", "first/12"),
        ),
    ),
    Good(
        name="warm",
        base="plain",
        apply=both(
            append(_FIRST, _WARMUP.format(key="X", kind="TYPE_INT32", data='input_data_file: "two"')),
            write("first/warmup/two", "12345678"),
            append(_FIRST, "dynamic_batching { preferred_batch_size: [ 2, 4 ] }\n"),
            append(_FIRST, "version_policy { specific { versions: [ 1 ] } }\n"),
        ),
    ),
    Good(name="backend-guessed", base="plain", apply=replace(_FIRST, 'backend: "python"\n', "")),
    Good(
        name="odd-text",
        base="plain",
        # Bytes that are not UTF-8, a type and a kind that nobody knows, and text that only looks like a placeholder.
        apply=both(
            append(_FIRST, 'parameters { key: "greeting" value { string_value: "Hello ${name} \\xff" } }\n'),
            append(_FIRST, 'input [ { name: "Z" data_type: 999 dims: [ 1 ] optional: true } ]\n'),
            append(_FIRST, 'default_model_filename: "../1/model.py"\n'),
            write("first/1/conf.yaml", "data: ${DATA_DIR}\n"),
        ),
    ),
    Good(
        name="odd-code",
        base="plain",
        # Files that nobody imports, a class by another name, a method given later, an example of a URL.
        apply=both(
            write("first/1/templates/unfinished.py", "def {{ name }}(:\n"),
            append("first/1/model.py", "\n\n_Model = TritonPythonModel\nTritonPythonModel, _ = _Model, None\n"),
            append("first/1/model.py", "# postgres://user:pass@host/db\n"),
            replace("first/1/model.py", "def execute", "def perform"),
            append("first/1/model.py", "TritonPythonModel.execute = TritonPythonModel.perform\n"),
            append("first/1/model.py", 'def unused():\n    return pb.InferenceRequest(model_name="another")\n'),
        ),
    ),
    Good(name="links", base="plain", apply=lambda root: _odd_files(root / "first" / "1")),
    Good(name="deployment", base="deployment"),
    Good(
        name="deployment-0.18",
        base="deployment",
        settings=("--set", "release=0.18.2", "--set", "speculation.num_draft_tokens=2", "--set", "repo.warmup=true"),
    ),
    Good(
        name="deployment-queue",
        base="deployment",
        settings=(
            *("--set", "repo.max_queue_size=8", "--set", "repo.priority_levels=3", "--set", "build.max_batch_size=2"),
            *("--set", "speculation.use_draft_logits=false", "--set", "repo.preprocessing_instances=2"),
        ),
    ),
    Good(name="templates-0.18", base="templates"),
    Good(
        name="templates-optional",
        base="templates",
        # What has a default may stay as it is in the template.
        apply=both(
            *(
                parameter(TARGET, key, f"${{{key}}}")
                for key in ("sink_token_length", "gpu_device_ids", "exclude_input_in_output", "decoding_mode")
            ),
            parameter("preprocessing/config.pbtxt", "add_special_tokens", "${add_special_tokens}"),
        ),
    ),
    Good(name="templates-0.16", base="templates", apply=_templates_again("0.16.0")),
    Good(
        name="templates-1.x",
        base="templates",
        apply=both(
            _templates_again("1.2.1"),
            lambda root: edit(root / ENSEMBLE, _DECLARED * 2, _DECLARED),
        ),
    ),
    Good(
        name="templates-two-gpus",
        base="templates",
        apply=both(
            rebuilt("target", mode="DRAFT_TOKENS_EXTERNAL", max_draft_len=8, world_size=2, ranks=2),
            parameter(TARGET, "gpu_device_ids", "0,1"),
            parameter(DRAFT, "gpu_device_ids", "2"),
            parameter(TARGET, "kv_cache_free_gpu_mem_fraction", "0.9"),
            parameter(DRAFT, "kv_cache_free_gpu_mem_fraction", ""),
        ),
    ),
    Good(
        name="templates-lookahead",
        base="templates",
        apply=both(
            _alone,
            rebuilt("target", mode=8, max_draft_len=83),
            parameter(TARGET, "decoding_mode", "lookahead"),
            *(
                parameter(TARGET, f"lookahead_{key}", "7")
                for key in ("window_size", "ngram_size", "verification_set_size")
            ),
        ),
    ),
    Good(
        name="templates-medusa",
        base="templates",
        apply=both(
            _alone,
            rebuilt("target", mode="MEDUSA", max_draft_len=63, num_medusa_heads=4),
            parameter(TARGET, "decoding_mode", "medusa"),
            parameter(TARGET, "medusa_choices", "{0}, {0, 0}, {1}"),
        ),
    ),
)
