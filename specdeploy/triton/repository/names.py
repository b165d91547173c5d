"""Names of the repository's six models and of the files that every repository has."""

from __future__ import annotations

from typing import Final

ENSEMBLE: Final = "ensemble"
BLS: Final = "tensorrt_llm_bls"
PREPROCESSING: Final = "preprocessing"
DECODER: Final = "speculative_decoder"
TARGET: Final = "tensorrt_llm"
DRAFT: Final = "tensorrt_llm_draft"
MODELS: Final = (ENSEMBLE, PREPROCESSING, DECODER, TARGET, DRAFT, BLS)

ENGINE_MODELS: Final = {"target": TARGET, "draft": DRAFT}
TOKENIZER_DIR: Final = "tokenizer"
CONFIG: Final = "config.pbtxt"
MANIFEST: Final = "specdeploy.json"
# Triton insists on a version directory; git and archives do not keep an empty one.
KEPT: Final = ".keep"
