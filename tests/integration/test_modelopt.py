"""ModelOpt for real: what ``python -m specdeploy.modelopt`` writes, tensor by tensor, against the source checkpoint.

The layout below is TensorRT-LLM's, written down from its checkpoint format; it shares nothing with ModelOpt.
"""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.tiny import write_tiny_checkpoint

pytestmark = pytest.mark.modelopt

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("SPECDEPLOY_MODELOPT_PYTHON", str(ROOT / ".venv" / "modelopt" / "bin" / "python"))
_VOCAB, _LAYERS, _HIDDEN, _INNER, _HEADS, _KV_HEADS = 320, 2, 128, 256, 8, 4
_MLP = {"fc": "gate_proj", "gate": "up_proj", "proj": "down_proj"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of this module's own: every conversion below takes a quarter of a minute and is made once."""
    return tmp_path_factory.mktemp("modelopt")


@pytest.fixture(scope="module")
def llama(folder):
    """A Llama of two layers, in float32, with a head of its own."""
    return _tiny(folder / "llama")


@pytest.fixture(scope="module")
def plain(llama, folder):
    """Outputs in full precision: ``one`` and ``two`` ranks of the Llama, ``sixteen`` of a Mistral."""
    mistral = _tiny(folder / "mistral", architectures=["MistralForCausalLM"], model_type="mistral")
    return _converted(
        folder,
        one=(llama,),
        two=(llama, "--tp-size", "2", "--dtype", "bfloat16"),
        sixteen=(mistral, "--tp-size", "8", "--pp-size", "2"),
    )


@pytest.fixture(scope="module")
def families(folder):
    """Outputs in full precision of a ``gemma`` and a ``mixtral``."""
    act = dict.fromkeys(("hidden_act", "hidden_activation"), "gelu_pytorch_tanh")
    names = {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "head_dim": _HIDDEN // _HEADS}
    gemma = _tiny(folder / "gemma-in", tie=True, **names, **act)
    return _converted(folder, gemma=(gemma,), mixtral=(_mixtral(folder / "mixtral-in", experts=4),))


@pytest.fixture(scope="module")
def quantized(llama, folder):
    """Outputs of the Llama: ``fp8``, ``int8_sq`` for two ranks, both with a KV cache of their kind, and ``awq``."""
    texts, lines = folder / "texts.jsonl", folder / "texts.txt"
    texts.write_text("".join(json.dumps({"text": f"def add_{i}(x):\n    return x + {i}\n"}) + "\n" for i in range(8)))
    lines.write_text("def mean(values):\n\n    return sum(values) / len(values)\n")
    calibrated = ["--calib-dataset", str(texts), "--qformat"]
    awq = ["--qformat", "int4_awq", "--awq-block-size", "64", "--calib-dataset", str(lines)]
    return _converted(
        folder,
        fp8=(llama, *calibrated, "fp8", "--kv-cache", "fp8"),
        int8_sq=(llama, *calibrated, "int8_sq", "--kv-cache", "int8", "--tp-size", "2"),
        awq=(llama, *awq),
    )


def _tiny(path, *, tie=False, **overrides):
    return write_tiny_checkpoint(
        path, vocab=_VOCAB, layers=_LAYERS, hidden=_HIDDEN, heads=_HEADS, kv_heads=_KV_HEADS, tie=tie,
        overrides=overrides,
    )  # fmt: skip


def _run(checkpoint, output, *arguments, limit_kib=None):
    """Run the program in a process of its own, with a limit on the size of its files where asked for."""
    argv = [PYTHON, "-m", "specdeploy.modelopt", "--checkpoint", str(checkpoint), "--output", str(output)]
    argv += ["--dtype", "float16", *arguments]  # a later --dtype wins
    if limit_kib is not None:
        argv = ["bash", "-c", f'ulimit -f {limit_kib} && exec "$@"', "bash", *argv]
    cache = {"HF_HOME": str(Path(output).parent / "hub"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | cache
    return subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False, env=environment, cwd=ROOT)


def _converted(folder, **wanted):
    """Make several outputs, two at a time: most of the time goes into importing torch."""
    with ThreadPoolExecutor(2) as pool:
        runs = {
            name: pool.submit(_run, checkpoint, folder / name, *arguments)
            for name, (checkpoint, *arguments) in wanted.items()
        }
    for name, run in runs.items():
        done = run.result()
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(f"wrote {folder / name}\n")
        (folder / f"{name}.log").write_text(done.stdout)
    return {name: folder / name for name in wanted}


def _config(output):
    return json.loads((output / "config.json").read_text())


def _tensors(path):
    """Return every tensor of a safetensors file, also those of types that NumPy alone does not have."""
    import ml_dtypes
    import safetensors

    types = {
        "BF16": ml_dtypes.bfloat16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F16": np.float16,
        "F32": np.float32,
        "I8": np.int8,
    }
    entries = safetensors.deserialize(path.read_bytes())
    return {name: np.frombuffer(e["data"], types[e["dtype"]]).reshape(e["shape"]) for name, e in entries}


def _rank(output, rank=0):
    return _tensors(output / f"rank{rank}.safetensors")


def _kv_share(matrix, tp, rank):
    """Return a rank's rows of the keys or values: some heads of its own, or one head shared with its neighbours."""
    heads = np.split(matrix, _KV_HEADS)
    own = max(_KV_HEADS // tp, 1)
    first = rank * _KV_HEADS // tp
    return np.concatenate(heads[first : first + own])


def _layer(source, layer, tp, rank):
    """Yield a rank's share of one decoder layer of a Llama, by TensorRT-LLM's names within the layer."""
    weight = {part: source[f"model.layers.{layer}.self_attn.{part}_proj.weight"] for part in "qkvo"}
    keys, values = (_kv_share(weight[part], tp, rank) for part in "kv")
    yield "attention.qkv.weight", np.concatenate([np.split(weight["q"], tp)[rank], keys, values])
    yield "attention.dense.weight", np.split(weight["o"], tp, axis=1)[rank]
    for name, part in _MLP.items():
        matrix = source[f"model.layers.{layer}.mlp.{part}.weight"]
        yield f"mlp.{name}.weight", np.split(matrix, tp, axis=1 if name == "proj" else 0)[rank]
    yield "input_layernorm.weight", source[f"model.layers.{layer}.input_layernorm.weight"]
    yield "post_layernorm.weight", source[f"model.layers.{layer}.post_attention_layernorm.weight"]


def _expected(source, *, tp=1, pp=1, rank=0):
    """Return what the file of a rank holds; ranks count through the tensor-parallel group first."""
    stage, rank = divmod(rank, tp)
    per_stage = _LAYERS // pp
    tensors = {}
    for local in range(per_stage):
        layer = _layer(source, stage * per_stage + local, tp, rank)
        tensors |= {f"transformer.layers.{local}.{name}": value for name, value in layer}
    if stage == 0:
        tensors["transformer.vocab_embedding.weight"] = np.split(source["model.embed_tokens.weight"], tp)[rank]
    if stage == pp - 1:
        tensors["transformer.ln_f.weight"] = source["model.norm.weight"]
        if "lm_head.weight" in source:
            tensors["lm_head.weight"] = np.split(source["lm_head.weight"], tp)[rank]
    return tensors


def _source(checkpoint, dtype=np.float16):
    return {name: value.astype(dtype) for name, value in _tensors(checkpoint / "model.safetensors").items()}


def _assert_same(actual, expected):
    """Names, shapes, types and bits are the same."""
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        assert (actual[name].shape, actual[name].dtype) == (value.shape, value.dtype), name
        assert actual[name].tobytes() == value.tobytes(), name


def test_one_rank_holds_the_source_weights_bit_for_bit(llama, plain):
    """Full precision only renames, concatenates and rounds: 17 tensors for two layers, and a configuration for one."""
    one = plain["one"]
    assert {path.name for path in one.iterdir()} == {"config.json", "quant_cfg.json", "rank0.safetensors"}
    actual = _rank(one)
    assert len(actual) == 17
    assert actual["transformer.layers.0.attention.qkv.weight"].shape == (2 * _HIDDEN, _HIDDEN)
    _assert_same(actual, _expected(_source(llama)))
    assert (
        _config(one).items()
        >= {
            "architecture": "LlamaForCausalLM",
            "dtype": "float16",
            "vocab_size": _VOCAB,
            "hidden_size": _HIDDEN,
            "intermediate_size": _INNER,
            "num_hidden_layers": _LAYERS,
            "num_attention_heads": _HEADS,
            "num_key_value_heads": _KV_HEADS,
            "max_position_embeddings": 512,
            "hidden_act": "silu",
            "rotary_base": 10000.0,
            "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        }.items()
    )


def test_every_file_can_be_read_by_other_users(plain):
    """An engine is built and served under other accounts than the one that converts."""
    assert {path.stat().st_mode & 0o444 for path in plain["one"].iterdir()} == {0o444}


def test_two_ranks_split_rows_columns_and_the_vocabulary(llama, plain):
    """Attention heads, feed-forward width and vocabulary are shared between the ranks, norms are repeated."""
    import ml_dtypes

    output = plain["two"]
    config = _config(output)
    assert config["mapping"] == {"world_size": 2, "tp_size": 2, "pp_size": 1}
    assert (config["dtype"], config["use_parallel_embedding"]) == ("bfloat16", True)
    assert len(list(output.glob("rank*"))) == 2
    for rank in range(2):
        _assert_same(_rank(output, rank), _expected(_source(llama, ml_dtypes.bfloat16), tp=2, rank=rank))


def test_ranks_beyond_the_key_heads_share_them_and_stages_share_the_layers(plain, folder):
    """Eight ranks a stage for four key heads: neighbours hold the same one; each of two stages holds one layer."""
    output, source = plain["sixteen"], _source(folder / "mistral")
    assert _config(output)["architecture"] == "MistralForCausalLM"
    assert _config(output)["mapping"] == {"world_size": 16, "tp_size": 8, "pp_size": 2}
    for rank in range(16):
        _assert_same(_rank(output, rank), _expected(source, tp=8, pp=2, rank=rank))


def test_gemma_shares_its_table_and_gets_whole_norms(families, folder):
    """Gemma stores norms less one and reads its logits off the embedding; TensorRT-LLM wants the whole norm."""
    output, source = families["gemma"], _source(folder / "gemma-in")
    norms = {name: value + np.float16(1) for name, value in source.items() if "norm" in name}

    assert _config(output)["share_embedding_table"] is True
    assert _config(output)["hidden_act"] == "gelu_pytorch_tanh"
    _assert_same(_rank(output), _expected(source | norms))


def test_the_experts_of_mixtral_are_stacked(families, folder):
    """All experts of a layer are one tensor, the up projection above the gate; the router keeps its precision."""
    output, source = families["mixtral"], _source(folder / "mixtral-in")

    assert _config(output)["moe"].items() >= {"num_experts": 4, "top_k": 2}.items()
    actual = _rank(output)
    for layer in range(_LAYERS):
        experts = [f"model.layers.{layer}.block_sparse_moe.experts.{number}" for number in range(4)]
        both = [np.concatenate([source[f"{name}.w3.weight"], source[f"{name}.w1.weight"]]) for name in experts]
        prefix = f"transformer.layers.{layer}.mlp"
        np.testing.assert_array_equal(actual[f"{prefix}.fc.weight"], np.stack(both))
        down = [source[f"{name}.w2.weight"] for name in experts]
        np.testing.assert_array_equal(actual[f"{prefix}.proj.weight"], np.stack(down))
        router = source[f"model.layers.{layer}.block_sparse_moe.gate.weight"]
        assert actual[f"{prefix}.router.weight"].dtype == np.float32
        np.testing.assert_array_equal(actual[f"{prefix}.router.weight"], router.astype(np.float32))


def _mixtral(path, experts):
    """Write a Mixtral whose experts are a tiny Llama's feed-forward part, each moved by a little."""
    from safetensors.numpy import load_file, save_file

    names = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": experts}
    _tiny(path, num_experts_per_tok=2, **names)
    tensors, rng = load_file(path / "model.safetensors"), np.random.default_rng(0)
    for layer in range(_LAYERS):
        moe = f"model.layers.{layer}.block_sparse_moe"
        tensors[f"{moe}.gate.weight"] = rng.standard_normal((experts, _HIDDEN)).astype(np.float32)
        for short, part in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            matrix = tensors.pop(f"model.layers.{layer}.mlp.{part}.weight")
            for number in range(experts):
                tensors[f"{moe}.experts.{number}.{short}.weight"] = matrix + np.float32(number)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def _linears(tensors):
    """Return the names of the matrices that are quantised, without ``.weight``."""
    linears = [f"transformer.layers.{layer}.{part}" for layer in range(_LAYERS) for part in _PARTS]
    assert all(f"{name}.weight" in tensors for name in linears)
    return linears


_PARTS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")


def test_fp8_weights_times_their_scale_are_the_source_weights(llama, quantized):
    """One scale for a matrix, E4M3 values with three bits of mantissa; the head stays in float16."""
    fp8 = quantized["fp8"]
    expected, actual = _expected(_source(llama)), _rank(fp8)

    assert _config(fp8)["quantization"].items() >= {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}.items()
    for name in _linears(actual):
        assert actual[f"{name}.weight"].dtype.name == "float8_e4m3fn"
        scale = actual[f"{name}.weights_scaling_factor"]
        assert (scale.shape, scale.dtype) == ((1,), np.float32)
        assert actual[f"{name}.activation_scaling_factor"][0] > 0
        weight = expected[f"{name}.weight"].astype(np.float32)
        # The two halves of a gated feed-forward part share theirs, so that the builder can fuse them.
        halves = name.replace(".gate", ".fc"), name.replace(".fc", ".gate")
        largest = max(np.abs(expected[f"{half}.weight"]).max() for half in halves)
        assert scale[0] == pytest.approx(largest / 448, rel=1e-3)
        error = np.abs(actual[f"{name}.weight"].astype(np.float32) * scale - weight)
        # Half a step of the last bit of the mantissa, or of the smallest number there is, and what float16 lost.
        assert (error <= np.maximum(np.abs(weight) / 16, scale * 2.0**-10) * 1.02).all()
    np.testing.assert_array_equal(actual["lm_head.weight"], expected["lm_head.weight"])


def test_a_quantised_kv_cache_has_scales_in_every_layer(quantized):
    """The configuration names the type, and each attention has the scales of its keys and values."""
    for name, algorithm in (("fp8", "FP8"), ("int8_sq", "INT8")):
        output = quantized[name]
        assert _config(output)["quantization"]["kv_cache_quant_algo"] == algorithm
        tensors = _rank(output)
        for layer in range(_LAYERS):
            assert tensors[f"transformer.layers.{layer}.attention.kv_cache_scaling_factor"].shape == (1,)
            assert tensors[f"transformer.layers.{layer}.attention.kv_cache_scaling_factor"][0] > 0


def test_smoothquant_undoes_to_the_source_weights(llama, quantized):
    """Integer times the scale of its row times the smoothing of its column is the weight, to half a step."""
    int8_sq = quantized["int8_sq"]
    assert _config(int8_sq)["quantization"]["quant_algo"] == "W8A8_SQ_PER_CHANNEL"
    for rank in range(2):
        expected, actual = _expected(_source(llama), tp=2, rank=rank), _rank(int8_sq, rank)
        for name in _linears(actual):
            assert actual[f"{name}.weight"].dtype == np.int8
            weight = expected[f"{name}.weight"].astype(np.float32)
            rows, columns = weight.shape
            scale = actual[f"{name}.weights_scaling_factor"]
            smoothing = actual[f"{name}.prequant_scaling_factor"]
            assert (scale.shape, smoothing.shape) == ((rows,), (columns,))
            step = scale[:, None] * smoothing[None, :].astype(np.float32)
            _assert_within_half_a_step(actual[f"{name}.weight"] * step, weight, step)


def test_awq_undoes_to_the_source_weights(llama, quantized):
    """Two rows share a byte, 64 columns share a scale, and every column was smoothed."""
    output = quantized["awq"]
    algorithm = {"quant_algo": "W4A16_AWQ", "group_size": 64, "has_zero_point": False, "pre_quant_scale": True}
    assert _config(output)["quantization"].items() >= algorithm.items()
    expected, actual = _expected(_source(llama)), _rank(output)
    for name in _linears(actual):
        weight = expected[f"{name}.weight"].astype(np.float32)
        packed = actual[f"{name}.weight"].view(np.uint8)
        assert packed.shape == (weight.shape[0] // 2, weight.shape[1])
        nibbles = np.stack([packed & 15, packed >> 4], axis=1).reshape(weight.shape).astype(np.int8)
        integers = np.where(nibbles > 7, nibbles - 16, nibbles)
        scale = np.repeat(actual[f"{name}.weights_scaling_factor"], 64, axis=1)
        step = scale * actual[f"{name}.prequant_scaling_factor"][None, :].astype(np.float32)
        _assert_within_half_a_step(integers * step, weight, step)


def _assert_within_half_a_step(actual, expected, step):
    """Rounding moves a value by half a step; float16, in which it is smoothed, by a little more."""
    assert (np.abs(actual - expected) <= 0.5 * step + 2e-3 * np.abs(expected).max()).all()


def test_progress_is_numbered_and_the_calibration_is_counted(quantized, plain):
    """A reader of the pipe sees each step as it starts, what does the work, and how far the calibration is."""
    lines = quantized["fp8"].with_suffix(".log").read_text().splitlines()
    assert [line[:5] for line in lines if line.startswith("[")] == [f"[{step}/5]" for step in range(1, 6)]
    assert "    8 of 8 texts" in lines
    assert "    2 of 2 texts" in quantized["awq"].with_suffix(".log").read_text()
    assert any("ModelOpt 0.37.0" in line for line in lines)
    assert "[4/4] " in plain["one"].with_suffix(".log").read_text()


def test_a_checkpoint_without_some_weights_is_refused(llama, tmp_path):
    """Transformers would fill them with random numbers and go on."""
    from safetensors.numpy import load_file, save_file

    holed = tmp_path / "holed"
    holed.mkdir()
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, holed / "model.safetensors", metadata={"format": "pt"})
    (holed / "config.json").write_bytes((llama / "config.json").read_bytes())

    done = _run(holed, tmp_path / "out")

    assert done.returncode == 2
    assert f"error: {holed} lacks the weights model.layers.1.mlp.up_proj.weight\n" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_failure_while_writing_leaves_the_output_as_it_was(llama, tmp_path):
    """The disk is full half-way: exit code 4, the cause in the last lines, and the caller's folder is empty again."""
    output = tmp_path / "out"
    output.mkdir()

    done = _run(llama, output, limit_kib=64)

    assert done.returncode == 4
    assert "error: ModelOpt could not export LlamaForCausalLM" in done.stderr.splitlines()[-2]
    assert "File too large" in done.stderr.splitlines()[-2]
    assert done.stderr.splitlines()[-1].startswith("hint: ")
    assert list(output.iterdir()) == []


def test_quantising_without_texts_is_refused_at_once(llama, tmp_path):
    """Scales come from calibration: without texts the program says so, and imports nothing heavy before it does."""
    done = _run(llama, tmp_path / "out", "--qformat", "fp8")

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: --qformat fp8 --kv-cache auto needs texts to calibrate with\nhint: add --calib-dataset FILE\n"
    )
    assert not (tmp_path / "out").exists()


def test_an_architecture_that_modelopt_cannot_write_is_refused_before_its_weights_are_read(tmp_path):
    """The refusal names it, and comes although the weights are no weights."""
    folder = tmp_path / "qwen"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 2}))
    (folder / "model.safetensors").write_text("not read")

    done = _run(folder, tmp_path / "out")

    assert done.returncode == 2
    assert done.stderr.startswith("error: Qwen2ForCausalLM: ModelOpt alone converts LlamaForCausalLM, ")
    assert not (tmp_path / "out").exists()
