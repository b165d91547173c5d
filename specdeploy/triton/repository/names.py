"""Names of a repository's models and of the files that every repository has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.config.rules import PAIRS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.config.schema import DeployConfig

ENSEMBLE: Final = "ensemble"
BLS: Final = "tensorrt_llm_bls"
PREPROCESSING: Final = "preprocessing"
DECODER: Final = "speculative_decoder"
TARGET: Final = "tensorrt_llm"
DRAFT: Final = "tensorrt_llm_draft"
#: Those of a pair.
MODELS: Final = (ENSEMBLE, PREPROCESSING, DECODER, TARGET, DRAFT, BLS)

ENGINE_MODELS: Final = {"target": TARGET, "draft": DRAFT}
TOKENIZER_DIR: Final = "tokenizer"
CONFIG: Final = "config.pbtxt"
MANIFEST: Final = "specdeploy.json"
MODEL_YAML: Final = "model.yaml"
# Triton insists on a version directory; git and archives do not keep an empty one.
KEPT: Final = ".keep"
#: Where Triton looks for the data of warm-up requests, inside a model's folder.
WARMUP_DIR: Final = "warmup"


def engine_models(config: DeployConfig) -> Mapping[str, str]:
    """Return role -> engine model; the LLM API keeps its engines inside the decoder."""
    if config.profile == "llmapi":
        return {}
    if config.speculation.method in PAIRS:
        return ENGINE_MODELS
    return {"target": TARGET}


def model_names(config: DeployConfig) -> tuple[str, ...]:
    """Return the models of a deployment."""
    return (ENSEMBLE, PREPROCESSING, DECODER, *engine_models(config).values(), BLS)
