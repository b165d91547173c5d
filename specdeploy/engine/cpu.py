"""The ``cpu`` profile: engines of ONNX Runtime GenAI, for any machine.

Llama-family checkpoints go through our own compiler, which needs no torch; every other architecture goes through the
model builder of ONNX Runtime GenAI, which needs torch and transformers. The length and batch limits of the deployment
are set when the engine is loaded, not when it is made, so they are not part of its key.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, Final

from specdeploy.engine.profile import OUTPUT, SCRATCH, BuildStep, content_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.checkpoint.info import CheckpointInfo
    from specdeploy.engine.profile import EngineSpec
    from specdeploy.findings import Finding

# What the compiler calls itself; a test holds the two together. It changes when the same input compiles to other bytes.
COMPILER: Final = "specdeploy.cpu.compile/1"
# The release that the `cpu` extra pins; its model builder's output may change with the release.
BUILDER: Final = "onnxruntime_genai.models.builder/0.18.0"
COMPILED_ARCHITECTURES: Final = frozenset({"LlamaForCausalLM", "MistralForCausalLM"})
_ENGINE_FILES: Final = ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json")
# Bytes for each weight of a matrix product, block scales included: in feed-forward parts, and elsewhere.
_COMPILED_BYTES: Final = {"int8": (1.125, 1.125), "int4": (0.625, 1.125)}
# The embedding of a quantised engine is a float16 table of its own beside the output head, even when they are tied;
# that of a float32 engine is the head, then.
_COMPILED_EMBEDDING_BYTES: Final = 2.0
# The model builder treats all matrices alike, and has a table of its own always; it keeps that at one byte.
_BUILT_BYTES: Final = {"fp32": 4.0, "int8": 1.125, "int4": 0.625}
_BUILT_EMBEDDING_BYTES: Final = {"fp32": 4.0, "int8": 1.125, "int4": 1.125}


@dataclasses.dataclass(frozen=True)
class CpuProfile:
    """The profile; ``python`` is the interpreter that compiles, ours unless told otherwise."""

    python: str = sys.executable
    name: str = "cpu"

    @property
    def inspected(self) -> tuple[str, ...]:
        """Nothing: the compiler is ours, and what it promises are its files."""
        return ()

    def precision(self, wanted: str, checkpoint: CheckpointInfo) -> str:
        """Return fp32 for ``auto``: what a CPU computes in, however the checkpoint is stored."""
        del checkpoint
        return "fp32" if wanted == "auto" else wanted

    def check(self, spec: EngineSpec) -> tuple[Finding, ...]:
        """Return nothing: the pair's own check says what a CPU engine needs."""
        del spec
        return ()

    def verify(self, spec: EngineSpec, files: Mapping[str, bytes], sizes: Mapping[str, int]) -> tuple[Finding, ...]:
        """Return nothing: what the compiler promised to write was looked for already."""
        del spec, files, sizes
        return ()

    def facts(self, spec: EngineSpec) -> Mapping[str, Any]:
        """Return nothing beyond what every manifest has."""
        del spec
        return {}

    def requirements(self) -> tuple[str, ...]:
        """Return what compiling a Llama checkpoint and reading the engine's configuration need."""
        return ("numpy", "onnx", "onnxruntime_genai", "tokenizers")

    def steps(self, spec: EngineSpec) -> tuple[BuildStep, ...]:
        """Return the one command that compiles the checkpoint."""
        compiled = spec.checkpoint.architecture in COMPILED_ARCHITECTURES
        return (self._compile(spec) if compiled else self._build(spec),)

    def limit(self, spec: EngineSpec) -> int:
        """Return the positions that the checkpoint was made for; the KV cache grows up to that."""
        return spec.checkpoint.max_position_embeddings

    def estimated_bytes(self, spec: EngineSpec) -> int:
        """Return the size of the weights as they are stored, graph and tokenizer left out."""
        info = spec.checkpoint
        embedding = info.vocab_size * info.hidden_size
        matrices = info.parameters if info.tie_word_embeddings else info.parameters - embedding
        if info.architecture not in COMPILED_ARCHITECTURES:
            return int(matrices * _BUILT_BYTES[spec.precision] + embedding * _BUILT_EMBEDDING_BYTES[spec.precision])
        if spec.precision == "fp32":
            return int(info.parameters * 4.0)
        feed_forward = 3 * info.num_layers * info.hidden_size * info.intermediate_size
        inside, outside = _COMPILED_BYTES[spec.precision]
        return int(feed_forward * inside + (matrices - feed_forward) * outside + embedding * _COMPILED_EMBEDDING_BYTES)

    def _compile(self, spec: EngineSpec) -> BuildStep:
        arguments = ("--checkpoint", spec.checkpoint.path, "--precision", spec.precision, "--output", OUTPUT)
        return BuildStep(
            name=f"compile to {spec.precision}",
            argv=(self.python, "-m", "specdeploy.cpu.compile", *arguments),
            env={},
            inputs=(spec.checkpoint.path,),
            outputs=(*_ENGINE_FILES, "compile.json"),
            **self._identity(spec, COMPILER),
            requires=("numpy", "onnx"),
        )

    def _build(self, spec: EngineSpec) -> BuildStep:
        arguments = ("-i", spec.checkpoint.path, "-o", OUTPUT, "-p", spec.precision, "-e", "cpu", "-c", SCRATCH)
        return BuildStep(
            name=f"build {spec.checkpoint.architecture} at {spec.precision}",
            argv=(self.python, "-m", "onnxruntime_genai.models.builder", *arguments),
            # The checkpoint is a folder: nothing is to be fetched, and a missing file is to be an error at once.
            env={"HF_HUB_OFFLINE": "1"},
            inputs=(spec.checkpoint.path,),
            outputs=_ENGINE_FILES,
            **self._identity(spec, BUILDER),
            requires=("onnxruntime_genai", "onnx_ir", "torch", "transformers"),
        )

    def _identity(self, spec: EngineSpec, compiler: str) -> dict[str, Any]:
        parts = {
            "profile": self.name,
            "compiler": compiler,
            "checkpoint": spec.checkpoint.fingerprint,
            "precision": spec.precision,
        }
        return {"key": content_key(**parts), "parts": parts}
