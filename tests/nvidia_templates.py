"""Model repositories in the shape of NVIDIA's ``inflight_batcher_llm`` templates, for the releases that we have read.

Made from facts (``data/triton_templates.json``: tensors, parameters and placeholders of each template), not from
NVIDIA's files: the code of the python models is a placeholder that loads and does nothing, and comments are left out.
The shape is theirs where it decides something: which positions are quoted, the output that `ensemble` declares twice,
the renames between the ensemble and its steps, a comma after a field.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any, Final, TypeAlias

DATA: Final = Path(__file__).parent / "data" / "triton_templates.json"
MODELS: Final = ("ensemble", "preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls")
DRAFT: Final = "tensorrt_llm_draft"
#: What a user of a plain GPU deployment fills in: enough for a server to load every model.
FILL: Final = {
    "triton_backend": "tensorrtllm",
    "triton_max_batch_size": "4",
    "decoupled_mode": "false",
    "logits_datatype": "TYPE_FP32",
    "encoder_input_features_data_type": "TYPE_FP16",
    "prompt_embedding_table_data_type": "TYPE_FP16",
    "max_queue_delay_microseconds": "0",
    "max_queue_size": "0",
    "preprocessing_instance_count": "1",
    "postprocessing_instance_count": "1",
    "bls_instance_count": "1",
    "batching_strategy": "inflight_fused_batching",
    "engine_dir": "/engines/target",
    "tokenizer_dir": "/models/target",
    "kv_cache_free_gpu_mem_fraction": "0.5",
    "enable_kv_cache_reuse": "true",
    "exclude_input_in_output": "false",
    "max_beam_width": "1",
    "batch_scheduler_policy": "guaranteed_no_evict",
    "add_special_tokens": "true",
    "skip_special_tokens": "true",
    "accumulate_tokens": "false",
    "tensorrt_llm_model_name": "tensorrt_llm",
    "tensorrt_llm_draft_model_name": DRAFT,
}

Fill: TypeAlias = Mapping[str, Mapping[str, str]] | Mapping[str, str]
_Tensor: TypeAlias = dict[str, Any]

_MODEL_PY: Final = """\
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
# Placeholders that stand bare, where protobuf expects a number, a truth value or the name of a type.
_TENSOR_TYPES: Final = {
    "encoder_input_features_data_type": ("encoder_input_features",),
    "logits_datatype": ("draft_logits", "context_logits", "generation_logits"),
    "prompt_embedding_table_data_type": ("prompt_embedding_table",),
}
_INSTANCES: Final = {
    "preprocessing": "${preprocessing_instance_count}",
    "postprocessing": "${postprocessing_instance_count}",
    "tensorrt_llm_bls": "${bls_instance_count}",
    "tensorrt_llm": "1",
}
_OUTSIDE_PARAMETERS: Final = frozenset(
    {
        *_TENSOR_TYPES,
        *("triton_backend", "triton_max_batch_size", "decoupled_mode", "max_queue_delay_microseconds"),
        *("max_queue_size", "preprocessing_instance_count", "postprocessing_instance_count", "bls_instance_count"),
    }
)
_TO_PREPROCESSING: Final = {
    "QUERY": "text_input",
    "DECODER_QUERY": "decoder_text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
    "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
    "END_ID": "end_id",
    "PAD_ID": "pad_id",
    "PROMPT_TABLE_EXTRA_ID": "prompt_table_extra_id",
}
# Input of `tensorrt_llm` -> output of `preprocessing`.
_FROM_PREPROCESSING: Final = {
    "input_ids": "INPUT_ID",
    "input_lengths": "REQUEST_INPUT_LEN",
    "decoder_input_ids": "DECODER_INPUT_ID",
    "decoder_input_lengths": "REQUEST_DECODER_INPUT_LEN",
    "request_output_len": "REQUEST_OUTPUT_LEN",
    "stop_words_list": "STOP_WORDS_IDS",
    "bad_words_list": "BAD_WORDS_IDS",
    "embedding_bias": "EMBEDDING_BIAS",
    "end_id": "OUT_END_ID",
    "pad_id": "OUT_PAD_ID",
    "prompt_table_extra_ids": "OUT_PROMPT_TABLE_EXTRA_IDS",
}
_RENAMED: Final = {
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "len_penalty": "length_penalty",
    "streaming": "stream",
}
_DECLARED_TWICE: Final = "kv_cache_alloc_total_blocks"


def facts(release: str) -> dict[str, Any]:
    """Return model -> backend, inputs, outputs, parameters and placeholders, of the row that *release* belongs to."""
    rows: dict[str, dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))["releases"]
    wanted = release.removeprefix("v")
    if wanted.startswith("1."):
        return rows["1.x"]
    minor = wanted.split(".")[1]
    return next(models for row, models in rows.items() if row.startswith(f"v0.{minor}."))


def write_templates(folder: Path, release: str, *, fill: Fill | None = None, models: Iterable[str] = MODELS) -> Path:
    """Write the templates of *release* to *folder* and return it.

    Args:
        folder: The model repository; made when absent.
        release: Such as ``0.19.0`` or ``1.2.1``.
        fill: Placeholder -> value for all models, or model -> (placeholder -> value). What is not filled stays as
            ``${placeholder}``; None fills nothing.
        models: Templates to write.
    """
    described = facts(release)
    for model in models:
        text = "\n".join(_lines(model, described)) + "\n"
        target = folder / model
        (target / "1").mkdir(parents=True)
        (target / "config.pbtxt").write_text(Template(text).safe_substitute(_fill_of(model, fill)), encoding="utf-8")
        code = described[model]["backend"] == "python"
        (target / "1" / ("model.py" if code else ".gitkeep")).write_text(_MODEL_PY if code else "", encoding="utf-8")
    return folder


def draft_copy(folder: Path, *, fill: Mapping[str, str] | None = None, name: str = DRAFT) -> Path:
    """Copy `tensorrt_llm` to *name* as the README tells users to, with ``name:`` changed; *fill* what is still open."""
    target = folder / name
    shutil.copytree(folder / "tensorrt_llm", target)
    config = target / "config.pbtxt"
    text = re.sub(r'^name: "tensorrt_llm"$', f'name: "{name}"', config.read_text(encoding="utf-8"), flags=re.MULTILINE)
    config.write_text(Template(text).safe_substitute(fill or {}), encoding="utf-8")
    return target


def write_engine(
    folder: Path,
    *,
    release: str = "1.2.1",
    mode: int | str = 1,
    max_draft_len: int = 0,
    pretrained: Mapping[str, Any] | None = None,
    build: Mapping[str, Any] | None = None,
    tp_size: int = 1,
) -> Path:
    """Write what ``trtllm-build`` leaves behind, as far as anybody reads it here, and return the folder.

    The builder adds the draft length to the longest sequence that it records; so does this. *pretrained* and *build*
    are laid over the two sections of ``config.json``.
    """
    folder.mkdir(parents=True)
    document = {
        "version": release,
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "float16",
            "logits_dtype": "float32",
            "vocab_size": 300,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "mapping": {"world_size": tp_size, "tp_size": tp_size, "pp_size": 1},
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
            **(pretrained or {}),
        },
        "build_config": {
            "max_input_len": 512,
            "max_seq_len": 512 + max_draft_len,
            "max_batch_size": 8,
            "max_num_tokens": 8192,
            "max_beam_width": 1,
            "max_draft_len": max_draft_len,
            "speculative_decoding_mode": mode,
            "kv_cache_type": "PAGED",
            "plugin_config": {"use_paged_context_fmha": True, "remove_input_padding": True},
            **(build or {}),
        },
    }
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    for rank in range(tp_size):
        (folder / f"rank{rank}.engine").write_bytes(b"engine")
    return folder


def refill(folder: Path, model: str, parameters: Mapping[str, str]) -> None:
    """Change string parameters of one model that was written, as somebody edits a file by hand."""
    config = folder / model / "config.pbtxt"
    text = config.read_text(encoding="utf-8")
    for key, value in parameters.items():
        pattern = rf'(key: "{re.escape(key)}"\s+value: \{{\s+string_value: ")[^"]*(")'
        text, changed = re.subn(pattern, rf"\g<1>{value}\g<2>", text)
        assert changed == 1, f"{model} has no parameter {key}"
    config.write_text(text, encoding="utf-8")


def _fill_of(model: str, fill: Fill | None) -> dict[str, str]:
    values: dict[str, Any] = dict(fill or {})
    if values and all(isinstance(value, Mapping) for value in values.values()):
        values = dict(values.get(model, {}))
    return values


def _lines(model: str, described: Mapping[str, Any]) -> Iterator[str]:
    template = described[model]
    placeholders = set(template["placeholders"])
    yield f'name: "{model}"'
    if template["backend"] == "ensemble":
        yield 'platform: "ensemble"'
    else:
        yield f'backend: "{template["backend"].replace("@triton_backend@", "${triton_backend}")}"'
    yield "max_batch_size: ${triton_max_batch_size}"
    if "decoupled_mode" in placeholders:
        yield "model_transaction_policy {\n  decoupled: ${decoupled_mode}\n}"
    yield from _queue(model, placeholders)
    yield from _tensors("input", template["inputs"], placeholders)
    outputs = template["outputs"]
    if model == "ensemble" and _knows(template, "acceptance_rate"):
        at = next(i for i, tensor in enumerate(outputs) if tensor["name"] == _DECLARED_TWICE)
        outputs = [*outputs[: at + 1], outputs[at], *outputs[at + 1 :]]
    yield from _tensors("output", outputs, placeholders)
    if model in _INSTANCES:
        yield f"instance_group [\n  {{\n    count: {_INSTANCES[model]}\n    kind : KIND_CPU\n  }}\n]"
    yield from _parameters(template)
    if model == "ensemble":
        yield from _ensemble(described)


def _knows(template: Mapping[str, Any], output: str) -> bool:
    return any(tensor["name"] == output for tensor in template["outputs"])


def _queue(model: str, placeholders: set[str]) -> Iterator[str]:
    if "max_queue_size" not in placeholders:
        return
    yield "dynamic_batching {"
    if model == "tensorrt_llm":
        yield "    preferred_batch_size: [ ${triton_max_batch_size} ]"
    yield "    max_queue_delay_microseconds: ${max_queue_delay_microseconds}"
    yield "    default_queue_policy: { max_queue_size: ${max_queue_size} }"
    yield "}"


def _tensors(kind: str, tensors: Iterable[_Tensor], placeholders: set[str]) -> Iterator[str]:
    yield f"{kind} ["
    yield ",\n".join(_tensor(tensor, placeholders) for tensor in tensors)
    yield "]"


def _tensor(tensor: _Tensor, placeholders: set[str]) -> str:
    name = tensor["name"]
    bare = [key for key, names in _TENSOR_TYPES.items() if name in names and key in placeholders]
    lines = [
        f'    name: "{name}"',
        f"    data_type: {f'${{{bare[0]}}}' if bare else tensor['dtype']}{',' if name == 'num_draft_tokens' else ''}",
        f"    dims: [ {', '.join(map(str, tensor['dims']))} ]",
    ]
    if tensor["reshape"] is not None:
        lines.append("    reshape: { shape: [ ] }")
    if tensor["ragged"]:
        lines.append("    allow_ragged_batch: true")
    if tensor["optional"]:
        lines.append("    optional: true")
    return "\n".join(["  {", *lines, "  }"])


def _parameters(template: Mapping[str, Any]) -> Iterator[str]:
    given: dict[str, str] = template["parameters"]
    placeholders = set(template["placeholders"])
    for key, value in given.items():
        yield _parameter(key, f"${{{value}}}" if value in placeholders else value)
    # A placeholder of which the facts name no parameter stands in one that is commented out.
    for key in sorted(placeholders - set(given.values()) - _OUTSIDE_PARAMETERS):
        yield "\n".join(f"# {line}" for line in _parameter(key, f"${{{key}}}").splitlines())


def _parameter(key: str, value: str) -> str:
    return f'parameters: {{\n  key: "{key}"\n  value: {{\n    string_value: "{value}"\n  }}\n}}'


def _ensemble(described: Mapping[str, Any]) -> Iterator[str]:
    offered = {tensor["name"] for tensor in described["ensemble"]["inputs"]}
    answered = {tensor["name"] for tensor in described["ensemble"]["outputs"]}
    pre = {inner: outer for inner, outer in _TO_PREPROCESSING.items() if outer in offered}
    known = {tensor["name"] for tensor in described["tensorrt_llm"]["inputs"]}
    engine = {inner: f"_{output}" for inner, output in _FROM_PREPROCESSING.items() if inner in known}
    for name in (tensor["name"] for tensor in described["tensorrt_llm"]["inputs"]):
        outer = _RENAMED.get(name, name)
        if name not in engine and outer in offered:
            engine[name] = outer
    engine_out = {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH"}
    names = [tensor["name"] for tensor in described["tensorrt_llm"]["outputs"]]
    engine_out |= {name: name for name in names if name in answered}
    yield "ensemble_scheduling {\n  step ["
    steps = (
        ("preprocessing", pre, {output: f"_{output}" for output in _FROM_PREPROCESSING.values()}),
        ("tensorrt_llm", engine, engine_out),
        (
            "postprocessing",
            {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"},
            {"OUTPUT": "text_output"},
        ),
    )
    yield ",\n".join("\n".join(_step(*step)) for step in steps)
    yield "  ]\n}"


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Iterator[str]:
    yield f'    {{\n      model_name: "{model}"\n      model_version: -1'
    for field, pairs in (("input_map", inputs), ("output_map", outputs)):
        for key, value in pairs.items():
            yield f'      {field} {{\n        key: "{key}"\n        value: "{value}"\n      }}'
    yield "    }"
