"""A repository of the ``llmapi`` profile on disk, with the stand-in for TensorRT-LLM inside the decoder's folder."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from specdeploy.config.schema import BuildConfig, DeployConfig, ModelConfig
from specdeploy.triton.repository import EngineFacts, build_repository, names
from specdeploy.triton.sources import model_sources

if TYPE_CHECKING:
    from tokenizers import Tokenizer

STANDIN: Final = Path(__file__).parent / "tensorrt_llm"
SLOTS: Final = 4
DRAFTS: Final = 3
MAX_SEQ_LEN: Final = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment:
    """What a test's deployment is.

    Args:
        tokenizer: Of the model that is not there.
        end_id: Of requests that name none.
        table: What the stand-in's ``table.json`` says; see ``tensorrt_llm/table.py``.
        speculates: The engine drafts.
        version: Of the TensorRT-LLM that is played.
        document: Further keys of ``model.yaml``.
    """

    tokenizer: Tokenizer
    end_id: int
    table: dict[str, Any]
    speculates: bool = True
    version: str = "1.2.1"
    document: dict[str, Any] = dataclasses.field(default_factory=dict)


def write_deployment(root: Path, deployment: Deployment) -> None:
    """Write the repository to ``root``, and the model folders that it names beside it."""
    for folder in ("target", "draft"):
        (root.parent / folder).mkdir(parents=True)
        (root.parent / folder / "table.json").write_text(json.dumps(deployment.table), encoding="utf-8")
    for name, data in _tree(deployment).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    version = root / names.DECODER / "1"
    shutil.copytree(STANDIN, version / STANDIN.name, ignore=shutil.ignore_patterns("__pycache__"))
    package = version / STANDIN.name / "__init__.py"
    package.write_text(package.read_text(encoding="utf-8").replace("1.2.1", deployment.version), encoding="utf-8")
    # The images have PyYAML with TensorRT-LLM; the embedded runtime, which has neither, takes ours.
    shutil.copytree(Path(yaml.__file__).parent, version / "yaml", ignore=shutil.ignore_patterns("*.so", "__pycache__"))


def _tree(deployment: Deployment) -> dict[str, bytes]:
    """Return the generated repository."""
    checkpoint = ModelConfig(checkpoint="nowhere")
    build = BuildConfig(max_batch_size=SLOTS, max_seq_len=MAX_SEQ_LEN)
    config = DeployConfig(name="llm", profile="llmapi", target=checkpoint, draft=checkpoint, build=build)
    speculation = dataclasses.replace(config.speculation, num_draft_tokens=DRAFTS)
    facts = EngineFacts(
        key="0" * 64,
        name="llm",
        profile="llmapi",
        precision="bf16",
        checkpoint="nowhere",
        size_bytes=1,
        vocab_size=deployment.tokenizer.get_vocab_size(),
        max_seq_len=MAX_SEQ_LEN,
        eos_token_ids=(deployment.end_id,),
    )
    tree = build_repository(
        dataclasses.replace(config, speculation=speculation),
        {"target": facts, "draft": facts},
        engine_paths={},
        tokenizer_files={"tokenizer.json": deployment.tokenizer.to_str().encode()},
        sources=model_sources(),
        model_yaml=yaml.safe_dump(_document(deployment)),
    )
    return dict(tree)


def _document(deployment: Deployment) -> dict[str, Any]:
    speculation = {"decoding_type": "DraftTarget", "max_draft_len": DRAFTS, "speculative_model_dir": "../draft"}
    return {
        "model": "../target",
        "backend": "pytorch",
        "max_batch_size": SLOTS,
        "max_seq_len": MAX_SEQ_LEN,
        "triton_config": {"max_batch_size": 0, "decoupled": True},
        **({"speculative_config": speculation} if deployment.speculates else {}),
        **deployment.document,
    }
