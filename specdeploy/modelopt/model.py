"""The part that needs torch: load with transformers, quantise and export with ModelOpt.

Every failure of these packages becomes an error of ours here; nothing of them is known elsewhere.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import modelopt
import modelopt.torch.quantization as mtq
import torch
import transformers
from modelopt.torch.export import export_tensorrt_llm_checkpoint

from specdeploy.errors import BuildFailed, CheckpointError, ConfigError, EnvironmentFault, SpecdeployError, ToolMissing
from specdeploy.modelopt.console import in_one_line, say
from specdeploy.modelopt.formats import quantization_config
from specdeploy.modelopt.packages import INSTALL, is_installed
from specdeploy.modelopt.source import DECODER_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from specdeploy.modelopt.options import Conversion
    from specdeploy.modelopt.source import Source


def versions() -> str:
    """Name what does the work, for the log."""
    return f"ModelOpt {modelopt.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"


def load_model(wanted: Conversion) -> Any:  # noqa: ANN401 - a torch module, whose class is the checkpoint's
    """Load the weights; nothing outside the folder is read, and none of its code is run.

    Raises:
        CheckpointError: transformers cannot load it, or it lacks weights.
        EnvironmentFault: There is no GPU, or not enough memory.
    """
    if wanted.device == "cuda" and not torch.cuda.is_available():
        raise EnvironmentFault("--device cuda: torch sees no GPU here", hint="use --device cpu, or look at nvidia-smi")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with _loading(wanted.checkpoint):
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            wanted.checkpoint,
            torch_dtype=getattr(torch, wanted.dtype),
            device_map="auto" if wanted.device == "cuda" else None,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    # transformers fills what it does not find with random numbers.
    missing = sorted(info["missing_keys"])
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise CheckpointError(
            f"{wanted.checkpoint} lacks the weights {', '.join(missing[:3])}{more}", hint="copy the checkpoint again"
        )
    return model.eval()


def quantize(model: Any, wanted: Conversion, texts: Sequence[str]) -> None:  # noqa: ANN401
    """Quantise ``model`` in place, with scales that come from running it on ``texts``.

    Raises:
        CheckpointError: The tokenizer cannot be loaded.
        ConfigError: The texts hold no token.
        BuildFailed: ModelOpt failed.
    """
    prompts = _tokenize(wanted, texts)
    config = quantization_config(
        wanted.qformat, wanted.kv_cache, wanted.awq_block_size, lambda name: getattr(mtq, name)
    )
    with _in_modelopt(f"quantise to {wanted.qformat}"), torch.no_grad():
        mtq.quantize(model, config, lambda quantized: _run(quantized, prompts))


def export(model: Any, wanted: Conversion, source: Source, folder: Path) -> None:  # noqa: ANN401
    """Write ``model`` as a TensorRT-LLM checkpoint into ``folder``.

    Raises:
        BuildFailed: ModelOpt failed.
    """
    with _in_modelopt(f"export {source.architecture}"), _without_false_alarms(), torch.inference_mode():
        export_tensorrt_llm_checkpoint(
            model,
            DECODER_TYPES.get(source.architecture) or _decoder_type(model),
            getattr(torch, wanted.dtype),
            export_dir=folder,
            inference_tensor_parallel=wanted.tp_size,
            inference_pipeline_parallel=wanted.pp_size,
        )


@contextlib.contextmanager
def _without_false_alarms() -> Iterator[None]:
    """Leave out two warnings: that TensorRT-LLM, known to be absent, is; that the head, which is not, is quantised."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Enable lm_head quantization")
        if not is_installed("tensorrt_llm"):
            warnings.filterwarnings("ignore", message="Cannot export tensorrt_llm checkpoint config")
        yield


def _decoder_type(model: Any) -> str:  # noqa: ANN401
    """Return ModelOpt's own name for a model that is not in our table."""
    from modelopt.torch.export.model_utils import get_model_type  # noqa: PLC0415 - not in every release

    return get_model_type(model) or "unknown"


def _tokenize(wanted: Conversion, texts: Sequence[str]) -> list[torch.Tensor]:
    """Return the token ids of every text that has some, each ``[1, tokens]``."""
    with _loading(wanted.checkpoint):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            wanted.checkpoint, local_files_only=True, trust_remote_code=False
        )
    encoded = [
        tokenizer(text, truncation=True, max_length=wanted.calib_seq_len, return_tensors="pt").input_ids
        for text in texts
    ]
    prompts = [ids for ids in encoded if ids.numel()]
    if not prompts:
        raise ConfigError(f"--calib-dataset: {wanted.calib_dataset} holds no token", hint="use ordinary text")
    return prompts


def _run(model: Any, prompts: Sequence[torch.Tensor]) -> None:  # noqa: ANN401
    """Run ``model`` once over every prompt; ModelOpt watches. Some formats ask for it several times."""
    report_every = max(1, len(prompts) // 4)
    for number, ids in enumerate(prompts, 1):
        model(input_ids=ids.to(model.device), use_cache=False)
        if number % report_every == 0 or number == len(prompts):
            say(f"    {number} of {len(prompts)} texts")


@contextlib.contextmanager
def _loading(folder: Path) -> Iterator[None]:
    """Translate what transformers raises about a checkpoint."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise EnvironmentFault(f"not enough memory to load {folder}: {in_one_line(error)}") from error
    except ImportError as error:
        raise ToolMissing(f"cannot load {folder}: {in_one_line(error)}", hint=INSTALL) from error
    except Exception as error:
        raise CheckpointError(
            f"cannot load {folder}: {in_one_line(error)}", hint="`specdeploy check` looks at a checkpoint in detail"
        ) from error


@contextlib.contextmanager
def _in_modelopt(task: str) -> Iterator[None]:
    """Translate whatever ModelOpt raises."""
    try:
        yield
    except SpecdeployError:
        raise
    except Exception as error:
        raise BuildFailed(
            f"ModelOpt could not {task}: {in_one_line(error)}", hint="its traceback stands above; nothing was kept"
        ) from error
