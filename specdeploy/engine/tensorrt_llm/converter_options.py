"""Options that the image's converters are known to have, to find a slip of the user's before an hour of conversion.

Read in the scripts of several releases; what a release has beside them is not known, so an option that is not here is a
warning and not an error.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from specdeploy.engine.tensorrt_llm.flags import named_values, split_arguments
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.engine.profile import EngineSpec

# Of the model families, gemma in its own spelling, the heads, quantize.py, and our own program for ModelOpt.
_NAMES: Final = """
model_dir meta_ckpt_dir output_dir dtype tp_size pp_size cp_size moe_tp_size moe_ep_size workers log_level
use_weight_only weight_only_precision disable_weight_only_quant_plugin smoothquant per_channel per_token
per_group int8_kv_cache fp8_kv_cache quant_ckpt_path use_fp8 use_nvfp4 use_fp8_rowwise use_qserve group_size
use_meta_fp8_rowwise_recipe load_by_shard load_model_on_cpu use_parallel_embedding embedding_sharding_dim
save_config_only remove_duplicated_kv_heads calib_dataset calib_size calib_max_seq_length hidden_act rotary_base
rotary_scaling vocab_size n_positions n_layer n_head n_kv_head n_embd inter_size moe_num_experts moe_top_k
moe_renorm_mode rms_norm_eps ffn_dim_multiplier multiple_of gpt_variant nemo_ckpt_path nemo_rename_key
dataset_cache_dir ckpt-type model-dir output-model-dir world-size enable_fp8 use-weight-only-with-precision
tokenizer_dir use-int8-weight-only-embedding use_smooth_quant calibrate_kv_cache eagle_model_dir max_draft_len
num_eagle_layers max_non_leaves_per_layer medusa_model_dir num_medusa_heads num_medusa_layers
max_medusa_token_len fixed_num_medusa_heads medusa_hidden_act model_type base_model_name drafter_model_dir
base_model_checkpoint_dir redrafter_num_beams redrafter_draft_len_per_beam redrafter_greedy_search
redrafter_no_greedy_search dense_context_fmha storage-type dataset-cache-dir load-model-on-cpu convert-model-on-
cpu device device_map batch_size qformat kv_cache_dtype awq_block_size quantize_lm_head export_format
autoq_format auto_quantize_bits quant_medusa_head seed tokenizer_max_seq_length max_seq_length checkpoint output
kv-cache tp-size pp-size calib-dataset calib-size calib-seq-len awq-block-size
"""
_KNOWN: Final = frozenset(f"--{name}" for name in _NAMES.split())


# What specdeploy.yaml says already, under whatever name a converter has for it.
_DECIDED: Final = """
model_dir output_dir dtype tp_size pp_size moe_tp_size moe_ep_size qformat kv_cache_dtype use_weight_only
weight_only_precision calib_dataset calib_size workers model-dir output-model-dir world-size ckpt-type
eagle_model_dir medusa_model_dir drafter_model_dir base_model_checkpoint_dir num_medusa_heads
max_medusa_token_len max_draft_len num_eagle_layers redrafter_num_beams redrafter_draft_len_per_beam checkpoint
output kv-cache tp-size pp-size calib-dataset calib-size
"""
_OWNED: Final = frozenset(f"--{name}" for name in _DECIDED.split())


def check_convert_arguments(spec: EngineSpec) -> Iterator[Finding]:
    """Yield an error for what the configuration decides, and a warning for what no converter is known to have."""
    for name, _ in named_values(split_arguments(spec.extra_convert_args)):
        if name in _OWNED:
            yield Finding(
                severity="error",
                code="flags.owned",
                message=f"{name} is decided by the other keys of the configuration",
                hint="Leave it out here.",
                where=f"{spec.role}.extra_convert_args",
            )
        elif name.startswith("--") and name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.7)
            yield Finding(
                severity="warning",
                code="convert.unknown-option",
                message=f"no converter is known to have {name}",
                hint=f"did you mean {near[0]}?" if near else "If it has none, the conversion ends at once and says so.",
                where=f"{spec.role}.extra_convert_args",
            )
