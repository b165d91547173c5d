"""The profile: from an engine that is wanted to the commands that make it, and back from its files to a verdict."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.engine.profile import OUTPUT, PREVIOUS, SCRATCH, BuildStep, content_key
from specdeploy.engine.tensorrt_llm.conversion_checks import check_conversion
from specdeploy.engine.tensorrt_llm.convert import convert
from specdeploy.engine.tensorrt_llm.converted import check_converted, converted_kv_cache, converted_precision
from specdeploy.engine.tensorrt_llm.flags import check_build_arguments, named_values, split_arguments
from specdeploy.engine.tensorrt_llm.inspection import CONFIG, Expected, inspect_engine
from specdeploy.engine.tensorrt_llm.methods import (
    REUSING,
    build_flags,
    check_method,
    expected_mode,
    max_draft_len,
)
from specdeploy.engine.tensorrt_llm.precisions import PRECISIONS, check_precision, resolve_precision
from specdeploy.engine.tensorrt_llm.releases import find_release
from specdeploy.planning.precision import precision as weight_cost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdeploy.checkpoint.info import CheckpointInfo
    from specdeploy.config.schema import DeployConfig
    from specdeploy.engine.profile import EngineSpec
    from specdeploy.engine.tensorrt_llm.convert import Conversion
    from specdeploy.engine.tensorrt_llm.precisions import Capability
    from specdeploy.engine.tensorrt_llm.releases import Release
    from specdeploy.findings import Finding

_BUILDER: Final = "trtllm-build"
_RUN_IN_PACKAGE: Final = (
    "import runpy, sys, types; package = types.ModuleType('specdeploy'); package.__path__ = [sys.argv.pop(1)]; "
    "sys.modules['specdeploy'] = package; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
# They change where or how fast an engine is made, and how much is said meanwhile, not what it is.
_IRRELEVANT: Final = frozenset({"--workers", "--log_level", "--output_timing_cache", "--input_timing_cache"})
_KV_ALGORITHMS: Final = {"fp8": "FP8", "int8": "INT8"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorrtLlmProfile:
    """The profile for one deployment.

    Args:
        config: The deployment.
        capability: Compute capability of the GPUs, None when it is not known.
        calibration: Absolute path of the texts to calibrate on; empty when there are none.
        calibration_fingerprint: What is in them, for the key.
        modelopt_python: The interpreter that has nvidia-modelopt, for the converter of that name.
        package: Folder of this package, which that interpreter need not have.
        examples_dir: TensorRT-LLM's own scripts, where the steps run; empty is as the configuration says.
        environment: Variables that change what the builder makes.
        named_files: Files and folders that the user's own arguments name, and the SHA-256 of what is in them.
    """

    config: DeployConfig
    capability: Capability | None = None
    calibration: str = ""
    calibration_fingerprint: str = ""
    modelopt_python: str = "python3"
    package: str = ""
    examples_dir: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    named_files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    name: str = "tensorrt_llm"

    @property
    def release(self) -> Release:
        """The release that builds and serves; raises ConfigError for one without the engine builder."""
        return find_release(self.config.release)

    @property
    def inspected(self) -> tuple[str, ...]:
        """What the builder recorded."""
        return (CONFIG,)

    def requirements(self) -> tuple[str, ...]:
        """Return the builder; the converters are files of the image."""
        return (_BUILDER,)

    def precision(self, wanted: str, checkpoint: CheckpointInfo) -> str:
        """Return what ``auto`` means for the checkpoint: as it is stored, or as it was converted."""
        if wanted == "auto" and checkpoint.converted is not None:
            return converted_precision(checkpoint.converted)
        return resolve_precision(wanted, checkpoint.dtype)

    def check(self, spec: EngineSpec) -> tuple[Finding, ...]:
        """Return what cannot be converted, built or served."""
        speculation, settings = self.config.speculation, self.config.tensorrt_llm
        return (
            *check_method(spec, speculation),
            *(
                check_conversion(spec, speculation, settings, self.release)
                if spec.checkpoint.converted is None
                else check_converted(spec, spec.checkpoint.converted, speculation.method)
            ),
            *check_precision(
                dataclasses.replace(spec, kv_cache=self._kv_cache(spec)),
                capability=self.capability,
                # What was converted before was calibrated then.
                calibration=self.calibration if spec.checkpoint.converted is None else spec.checkpoint.path,
                reuses=speculation.method in REUSING,
            ),
            *check_build_arguments(spec.extra_build_args, self.release, f"{spec.role}.extra_build_args"),
        )

    def steps(self, spec: EngineSpec) -> tuple[BuildStep, ...]:
        """Return the conversion (two for heads that are joined to a converted checkpoint) and the build.

        A checkpoint that was converted before is built as it is.
        """
        config = self.config
        if spec.checkpoint.converted is not None:
            return (self._build_step(spec),)
        conversions = convert(spec, config.speculation, config.tensorrt_llm, self.release, self.calibration)
        return (*(self._convert_step(spec, conversion) for conversion in conversions), self._build_step(spec))

    def verify(self, spec: EngineSpec, files: Mapping[str, bytes], sizes: Mapping[str, int]) -> tuple[Finding, ...]:
        """Return how what was recorded differs from what the deployment needs."""
        return inspect_engine(self._expected(spec), files.get(CONFIG), sizes, spec.name)

    def facts(self, spec: EngineSpec) -> Mapping[str, Any]:
        """Return release, GPU, method, longest draft and division of an engine."""
        expected = self._expected(spec)
        return {
            "release": self.config.release,
            "compute_capability": self._architecture(),
            "method": self.config.speculation.method if spec.role == "target" else "none",
            "speculative_decoding_mode": expected.mode,
            "max_draft_len": expected.max_draft_len,
            "max_batch_size": spec.max_batch_size,
            "tp_size": spec.tp_size,
            "pp_size": spec.pp_size,
            "world_size": spec.world_size,
            "kv_cache": self._kv_cache(spec),
            "logits_dtype": expected.logits_dtype,
        }

    def limit(self, spec: EngineSpec) -> int:
        """Return what was asked for: it is built in."""
        return spec.max_seq_len

    def estimated_bytes(self, spec: EngineSpec) -> int:
        """Return the size of the weights; what the ranks each keep a copy of is left out."""
        info = spec.checkpoint
        embedding = info.vocab_size * info.hidden_size * (1 if info.tie_word_embeddings else 2)
        layers = max(0, info.parameters - embedding)
        head = 0 if spec.head is None else spec.head.weight_bytes
        return int(layers * weight_cost(spec.precision).bytes_per_weight + embedding * 2.0) + head

    def _convert_step(self, spec: EngineSpec, conversion: Conversion) -> BuildStep:
        settings = self.config.tensorrt_llm
        in_process = settings.converter == "modelopt"
        examples = self.examples_dir or settings.examples_dir
        script = f"{examples.rstrip('/')}/{conversion.script}"
        # Only this package is shown to an interpreter that may lack it, not the folder with all that lies beside it.
        in_package = (self.modelopt_python, "-c", _RUN_IN_PACKAGE, self.package, conversion.script)
        program = in_package if in_process else (settings.python, script)
        named = self._named(conversion.extra)
        inputs = tuple(path for path in conversion.paths.values() if path not in {OUTPUT, PREVIOUS, ""})
        sources = {"checkpoint": spec.checkpoint, "head": spec.head}
        calibrated = not {"--calib_dataset", "--calib-dataset"}.isdisjoint(conversion.paths)
        parts = {
            "release": self.config.release,
            "program": conversion.script,
            **{role: source.fingerprint for role, source in sources.items() if source and source.path in inputs},
            **({"calibration": self.calibration_fingerprint} if calibrated else {}),
            **conversion.parts,
            **({"files": named} if named else {}),
        }
        ranks = tuple(f"rank{rank}.safetensors" for rank in range(spec.world_size))
        return BuildStep(
            name=conversion.name,
            argv=(*program, *conversion.arguments),
            # A checkpoint is a folder here: nothing is to be fetched, and a missing file is to be an error at once.
            env={"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
            inputs=(*inputs, *named, *((self.package,) if in_process and self.package else ())),
            outputs=("config.json", *ranks),
            key=content_key(**parts),
            parts=parts,
            requires=(self.modelopt_python,) if in_process else (settings.python, script),
            # The scripts import TensorRT-LLM, which loads the driver's library; a container or a node shows it only to
            # those who ask for a GPU.
            gpus=conversion.gpus if in_process else max(1, conversion.gpus),
        )

    def _build_step(self, spec: EngineSpec) -> BuildStep:
        flags = self._flags(spec)
        extra = split_arguments(spec.extra_build_args)
        named = {**flags, **{name: " ".join(values) for name, values in named_values(extra)}}
        files = self._named(extra)
        converted = spec.checkpoint if spec.checkpoint.converted is not None else None
        parts = {
            "release": self.config.release,
            "gpu": self._architecture(),
            **({} if converted is None else {"checkpoint": converted.fingerprint}),
            **({"files": files} if files else {}),
            **self.environment,
            **{name.lstrip("-"): value or True for name, value in named.items() if name not in _IRRELEVANT},
        }
        workers = self.config.tensorrt_llm.workers or spec.world_size
        return BuildStep(
            name="build",
            argv=(
                _BUILDER,
                *("--checkpoint_dir", PREVIOUS if converted is None else converted.path, "--output_dir", OUTPUT),
                *(word for name, value in flags.items() for word in (name, value)),
                *extra,
                *("--workers", str(workers)),
                # By default it is written to the working directory.
                *("--output_timing_cache", f"{SCRATCH}/model.cache"),
            ),
            env=dict(self.environment),
            inputs=(*(() if converted is None else (converted.path,)), *files),
            outputs=(CONFIG, *(f"rank{rank}.engine" for rank in range(spec.world_size))),
            key=content_key(**parts),
            parts=parts,
            requires=(_BUILDER,),
            gpus=min(workers, spec.world_size),
        )

    def _flags(self, spec: EngineSpec) -> dict[str, str]:
        """Return what decides the engine; also what has the right default today, for defaults have changed before."""
        settings = self.config.tensorrt_llm
        unquantised = PRECISIONS[spec.precision].algorithm is None
        return {
            "--max_batch_size": str(spec.max_batch_size),
            "--max_seq_len": str(spec.max_seq_len),
            "--max_num_tokens": str(self._max_num_tokens(spec)),
            "--max_beam_width": "1",
            "--kv_cache_type": "paged",
            "--use_paged_context_fmha": "enable",
            "--logits_dtype": settings.logits_dtype,
            # Quantised weights keep the release's own choice.
            **({"--gemm_plugin": "auto"} if unquantised else {}),
            **build_flags(self.config.speculation, spec.role),
        }

    def _max_num_tokens(self, spec: EngineSpec) -> int:
        """Return the tokens of a pass; the builder would raise a smaller number than a step of all sequences needs."""
        drafted = max_draft_len(self.config.speculation) if spec.role == "target" else 0
        return max(self.config.tensorrt_llm.max_num_tokens, spec.max_batch_size * (drafted + 1))

    def _named(self, words: Sequence[str]) -> dict[str, str]:
        """Return the files among the user's arguments and what is in them; ``--flag=value`` counts as well."""
        values = [word.partition("=")[2] or word for word in words]
        return {value: self.named_files[value] for value in values if value in self.named_files}

    def _kv_cache(self, spec: EngineSpec) -> str:
        """Return the type of the KV cache; a converted checkpoint has decided it where the configuration does not."""
        converted = spec.checkpoint.converted
        return converted_kv_cache(converted) if converted is not None and spec.kv_cache == "auto" else spec.kv_cache

    def _architecture(self) -> str:
        return "unknown" if self.capability is None else f"{self.capability[0]}.{self.capability[1]}"

    def _expected(self, spec: EngineSpec) -> Expected:
        speculation = self.config.speculation
        return Expected(
            version=self.config.release,
            mode=expected_mode(speculation, spec.role),
            max_draft_len=max_draft_len(speculation) if spec.role == "target" else 0,
            exact_draft_len=speculation.method == "lookahead" and spec.role == "target",
            max_seq_len=spec.max_seq_len,
            max_batch_size=spec.max_batch_size,
            tp_size=spec.tp_size,
            pp_size=spec.pp_size,
            logits_dtype=self.config.tensorrt_llm.logits_dtype,
            kv_algorithm=_KV_ALGORITHMS.get(self._kv_cache(spec)),
            reuses=speculation.method in REUSING,
        )
