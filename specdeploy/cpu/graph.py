"""The Llama decoder as an ONNX graph for ONNX Runtime GenAI.

Knows the layers, the names that GenAI feeds and reads, and Hugging Face's tensor names. Does not know files: matrices
are given as promises and read when the weights are written. Logits come out for every appended position, and keys and
values live in one buffer that GenAI shares between past and present: that is what lets one pass check drafted tokens.

Operators of the ``com.microsoft`` domain:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx

from specdeploy.cpu.graph_builder import MICROSOFT, GraphBuilder, Weight
from specdeploy.cpu.linear import Linear, Matrix, linear_float32, linear_int4, linear_int8, multiply_transposed
from specdeploy.cpu.rope import rope_tables
from specdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.cpu.llama_config import LlamaConfig
    from specdeploy.cpu.tensor_files import TensorFolder

PAST_KEY: Final = "past_key_values.%d.key"
PAST_VALUE: Final = "past_key_values.%d.value"
PRESENT_KEY: Final = "present.%d.key"
PRESENT_VALUE: Final = "present.%d.value"

# How to multiply in the feed-forward parts, and in attention and the head. The int4 engine keeps 8 bits in the latter:
# for SmolLM2-135M that is a quarter more agreement with float32 among the tokens that 4 bits get wrong, at no cost in
# time, since a single new token is bound by the number of operators there, not by the bytes read.
_LINEAR: Final[dict[str, tuple[Linear, Linear]]] = {
    "fp32": (linear_float32, linear_float32),
    "int8": (linear_int8, linear_int8),
    "int4": (linear_int4, linear_int8),
}


class LlamaGraph:
    """Builds the graph of one checkpoint at one precision.

    Args:
        config: The shape of the model.
        tensors: Its tensors; shapes are checked now, contents are read by ``write_weights``.
        precision: ``fp32``, ``int8`` or ``int4``.
    """

    def __init__(self, config: LlamaConfig, tensors: TensorFolder, precision: str) -> None:
        self.builder = GraphBuilder()
        self._config = config
        self._tensors = tensors
        self._precision = precision
        self._mlp_linear, self._linear = _LINEAR[precision]

    def build(self, producer: str) -> onnx.ModelProto:
        """Return the whole model.

        Raises:
            CheckpointError: A tensor is missing or has another shape than config.json says.
        """
        self._add_lengths()
        self._add_rope_tables()
        hidden, skip = self._add_embedding(), ""
        for layer in range(self._config.num_layers):
            hidden, skip = self._add_layer(layer, hidden, skip)
        normed, _ = self._add_norm("model.norm", "final norm", hidden, skip)
        self._add_head(normed)
        return self.builder.model(_inputs(self._config), _outputs(self._config), producer)

    def _add_lengths(self) -> None:
        """Derive what attention needs from the mask: past + new tokens, as a row length less one and as a total."""
        one = self.builder.constant("one", np.array([1], np.int64))
        length = self.builder.node("ReduceSum", ["attention_mask", one], ["lengths/sum"], keepdims=0)
        last = self.builder.node("Sub", [length, one], ["lengths/last"])
        self.builder.node("Cast", [last], ["seqlens_k"], to=onnx.TensorProto.INT32)
        shape = self.builder.node("Shape", ["attention_mask"], ["lengths/shape"], start=1, end=2)
        total = self.builder.node("Squeeze", [shape], ["lengths/total"])
        self.builder.node("Cast", [total], ["total_sequence_length"], to=onnx.TensorProto.INT32)

    def _add_rope_tables(self) -> None:
        config = self._config
        shape = (config.max_positions, config.head_dim // 2)
        tables = [Weight(name=name, dtype="float32", shape=shape) for name in ("cos_cache", "sin_cache")]
        self.builder.weights("position tables", lambda: rope_tables(config), *tables)

    def _add_embedding(self) -> str:
        """Look tokens up; a quantized engine reads float16 rows, a float engine shares the table with a tied head."""
        dtype = "float32" if self._precision == "fp32" else "float16"
        table = self._matrix("model.embed_tokens", "embedding", self._config.vocab_size, self._config.hidden_size)
        weight = Weight(name=table.name, dtype=dtype, shape=(table.rows, table.columns))
        self.builder.weights(table.label, lambda: [table.load()], weight)
        rows = self.builder.node("Gather", [table.name, "input_ids"], ["embedding"], axis=0)
        if dtype == "float32":
            return rows
        return self.builder.node("Cast", [rows], ["embedding/float"], to=onnx.TensorProto.FLOAT)

    def _add_layer(self, layer: int, hidden: str, skip: str) -> tuple[str, str]:
        """Add one decoder layer; return its output and the residual stream it is to be added to."""
        prefix, label = f"model.layers.{layer}", f"layer {layer + 1} of {self._config.num_layers}"
        normed, skip = self._add_norm(f"{prefix}.input_layernorm", label, hidden, skip)
        attended = self._add_attention(layer, prefix, label, normed)
        normed, skip = self._add_norm(f"{prefix}.post_attention_layernorm", label, attended, skip)
        return self._add_mlp(prefix, label, normed), skip

    def _add_norm(self, name: str, label: str, hidden: str, skip: str) -> tuple[str, str]:
        """Add the residual and normalise; return the normalised value and the new residual stream."""
        size = self._config.hidden_size
        self._expect(f"{name}.weight", (size,))
        weight = Weight(name=f"{name}.weight", dtype="float32", shape=(size,))
        self.builder.weights(label, lambda: [self._tensors.read(weight.name)], weight)
        epsilon = self._config.rms_norm_eps
        if not skip:
            inputs, outputs = [hidden, weight.name], [name]
            return self.builder.node("SimplifiedLayerNormalization", inputs, outputs, axis=-1, epsilon=epsilon), hidden
        inputs, outputs = [hidden, skip, weight.name], [name, "", "", f"{name}/residual"]
        self.builder.node("SkipSimplifiedLayerNormalization", inputs, outputs, domain=MICROSOFT, epsilon=epsilon)
        return name, f"{name}/residual"

    def _add_attention(self, layer: int, prefix: str, label: str, normed: str) -> str:
        """Project to queries, keys and values in one product, attend, project back."""
        config = self._config
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = {f"{prefix}.self_attn.{name}_proj": rows for name, rows in (("q", queries), ("k", keys), ("v", keys))}
        stacked = self._stack(f"{prefix}.self_attn.qkv_proj", label, parts, config.hidden_size)
        packed = self._add_linear(stacked, parts, normed, self._linear)
        past, present = (PAST_KEY % layer, PAST_VALUE % layer), (PRESENT_KEY % layer, PRESENT_VALUE % layer)
        attended = self.builder.node(
            "GroupQueryAttention",
            [packed, "", "", *past, "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"],
            [f"{prefix}.self_attn", *present],
            domain=MICROSOFT,
            num_heads=config.num_heads,
            kv_num_heads=config.num_kv_heads,
            do_rotary=1,
        )
        output = f"{prefix}.self_attn.o_proj"
        projection = self._matrix(output, label, config.hidden_size, queries)
        return self._add_linear(projection, {output: config.hidden_size}, attended, self._linear)

    def _add_mlp(self, prefix: str, label: str, normed: str) -> str:
        """Add the gated feed-forward part, ``down(silu(gate(x)) * up(x))``."""
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        gate, up = (
            self._add_linear(self._matrix(name, label, inner, hidden), {name: inner}, normed, self._mlp_linear)
            for name in (f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj")
        )
        sigmoid = self.builder.node("Sigmoid", [gate], [f"{prefix}.mlp/sigmoid"])
        silu = self.builder.node("Mul", [gate, sigmoid], [f"{prefix}.mlp/silu"])
        gated = self.builder.node("Mul", [silu, up], [f"{prefix}.mlp/gated"])
        down = f"{prefix}.mlp.down_proj"
        return self._add_linear(self._matrix(down, label, hidden, inner), {down: hidden}, gated, self._mlp_linear)

    def _add_head(self, normed: str) -> None:
        config = self._config
        tied = config.tie_word_embeddings
        if tied and self._precision == "fp32":
            multiply_transposed(self.builder, normed, "model.embed_tokens.weight", "logits")
            return
        source = "model.embed_tokens" if tied else "lm_head"
        matrix = self._matrix(source, "head", config.vocab_size, config.hidden_size, name="lm_head.weight")
        self._linear(self.builder, normed, matrix, "logits")

    def _add_linear(self, matrix: Matrix, parts: Mapping[str, int], x: str, linear: Linear) -> str:
        """Multiply ``x`` by ``matrix`` and add the biases of its ``parts`` where the checkpoint has them."""
        name = matrix.name.removesuffix(".weight")
        if not any(f"{part}.bias" in self._tensors for part in parts):
            return linear(self.builder, x, matrix, name)
        product = linear(self.builder, x, matrix, f"{name}/product")
        return self._add_bias(name, matrix.label, parts, product)

    def _stack(self, name: str, label: str, parts: Mapping[str, int], columns: int) -> Matrix:
        """Return one matrix with the rows of all ``parts``, one below the other."""
        loads = [self._matrix(part, label, rows, columns).load for part, rows in parts.items()]
        return Matrix(
            name=f"{name}.weight",
            label=label,
            rows=sum(parts.values()),
            columns=columns,
            load=lambda: np.concatenate([load() for load in loads]) if len(loads) > 1 else loads[0](),
        )

    def _add_bias(self, name: str, label: str, parts: Mapping[str, int], product: str) -> str:
        for part, rows in parts.items():
            self._expect(f"{part}.bias", (rows,))
        weight = Weight(name=f"{name}.bias", dtype="float32", shape=(sum(parts.values()),))
        self.builder.weights(
            label, lambda: [np.concatenate([self._tensors.read(f"{part}.bias") for part in parts])], weight
        )
        return self.builder.node("Add", [product, weight.name], [name])

    def _matrix(self, source: str, label: str, rows: int, columns: int, *, name: str = "") -> Matrix:
        """Return the promise of tensor ``source.weight`` after checking its shape."""
        tensor = f"{source}.weight"
        self._expect(tensor, (rows, columns))
        load = functools.partial(self._tensors.read, tensor)
        return Matrix(name=name or tensor, label=label, rows=rows, columns=columns, load=load)

    def _expect(self, tensor: str, shape: tuple[int, ...]) -> None:
        """Raise when ``tensor`` is missing or has another shape."""
        seen = self._tensors.shape(tensor)
        if seen != shape:
            raise CheckpointError(
                f"{self._tensors.folder}: tensor {tensor} has shape {list(seen)}, config.json asks for {list(shape)}",
                hint="config.json and the weights belong to different models",
            )


def _inputs(config: LlamaConfig) -> list[onnx.ValueInfoProto]:
    """Return the graph inputs, as GenAI feeds them."""
    ids: list[onnx.ValueInfoProto] = [
        onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["batch", "sequence"]),
        onnx.helper.make_tensor_value_info("attention_mask", onnx.TensorProto.INT64, ["batch", "total_sequence"]),
    ]
    return ids + _cache(config, PAST_KEY, PAST_VALUE, "past_sequence")


def _outputs(config: LlamaConfig) -> list[onnx.ValueInfoProto]:
    """Return the graph outputs: logits of every new position, and the cache."""
    shape: list[str | int | None] = ["batch", "sequence", config.vocab_size]
    logits = onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, shape)
    return [logits, *_cache(config, PRESENT_KEY, PRESENT_VALUE, "total_sequence")]


def _cache(config: LlamaConfig, key: str, value: str, length: str) -> list[onnx.ValueInfoProto]:
    """Return the key and value tensors of every layer."""
    shape: list[str | int | None] = ["batch", config.num_kv_heads, length, config.head_dim]
    names = [name % layer for layer in range(config.num_layers) for name in (key, value)]
    return [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in names]
