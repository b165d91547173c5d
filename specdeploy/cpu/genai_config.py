"""``genai_config.json``: how ONNX Runtime GenAI is to load and run the compiled graph.

Pure. The keys: https://onnxruntime.ai/docs/genai/reference/config.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.cpu.graph import PAST_KEY, PAST_VALUE, PRESENT_KEY, PRESENT_VALUE

if TYPE_CHECKING:
    from specdeploy.cpu.llama_config import LlamaConfig

MODEL_FILE: Final = "model.onnx"


def genai_config(config: LlamaConfig, *, threads: int) -> dict[str, Any]:
    """Return the configuration of an engine that runs ``threads`` threads inside an operator."""
    model: dict[str, Any] = {
        "type": "llama",
        "vocab_size": config.vocab_size,
        "context_length": config.max_positions,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
        "pad_token_id": _pad_token_id(config),
        "decoder": _decoder(config, threads),
    }
    search = {"do_sample": False, "num_beams": 1, "max_length": config.max_positions, "past_present_share_buffer": True}
    return {"model": {key: value for key, value in model.items() if value not in (None, [])}, "search": search}


def _decoder(config: LlamaConfig, threads: int) -> dict[str, Any]:
    """Return the shapes and names of the graph, and its session options."""
    return {
        "filename": MODEL_FILE,
        "session_options": _session_options(threads),
        "hidden_size": config.hidden_size,
        "head_size": config.head_dim,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "num_hidden_layers": config.num_layers,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": PAST_KEY,
            "past_value_names": PAST_VALUE,
        },
        "outputs": {"logits": "logits", "present_key_names": PRESENT_KEY, "present_value_names": PRESENT_VALUE},
    }


def _session_options(threads: int) -> dict[str, Any]:
    """Return the session options for two engines that take turns on the same cores.

    Idle threads of the engine that waits would spin on the cores of the one that works: without the stop, a round of
    four drafts and their verification took 194 ms instead of 110 (SmolLM2-135M, 2 cores). Not spinning at all was
    slower too, 139 ms.
    """
    return {
        "log_id": "specdeploy",
        "intra_op_num_threads": threads,
        "session.force_spinning_stop": "1",
        "provider_options": [],
    }


def _pad_token_id(config: LlamaConfig) -> int | None:
    """Return the padding id; GenAI wants one, so the first end id stands in where the checkpoint has none."""
    return config.pad_token_id if config.pad_token_id is not None else next(iter(config.eos_token_ids), None)
