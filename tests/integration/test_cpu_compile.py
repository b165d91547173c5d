"""Compiled engines against an independent forward pass in NumPy, and the compiler as a program.

The reference below is written from the model's definition, in float64, with the whole sequence at once and no cache: it
shares nothing with the compiler but the checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def _compile(checkpoint, precision, output, *, limit_kib=None):
    """Run the compiler in a process of its own, with a limit on the size of its files where asked for."""
    argv = [sys.executable, "-m", "specdeploy.cpu.compile", "--checkpoint", str(checkpoint)]
    argv += ["--precision", precision, "--output", str(output)]
    if limit_kib is not None:
        argv = ["bash", "-c", f'ulimit -f {limit_kib} && exec "$@"', "bash", *argv]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, env=environment, cwd=ROOT)


def _engine(checkpoint, precision, output):
    """Compile, and load the engine."""
    import onnxruntime_genai as og

    done = _compile(checkpoint, precision, output)
    assert done.returncode == 0, done.stderr
    return og.Model(str(output))


def _generator(model, max_length=128):
    import onnxruntime_genai as og

    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=max_length)
    return og.Generator(model, parameters)


def _append(generator, ids):
    """Append tokens; return the logits of every one of them, ``[len(ids), vocab]``."""
    generator.append_tokens(np.asarray(ids, np.int32))
    return np.array(generator.get_output("logits"))[0]


def _ids(count, seed=0):
    return np.random.default_rng(seed).integers(3, 300, count)


class Reference:
    """The Llama forward pass of a tiny checkpoint, straight from its definition."""

    def __init__(self, checkpoint):
        from safetensors.numpy import load_file

        self.config = json.loads((checkpoint / "config.json").read_text())
        self.weights = {
            name: value.astype(np.float64) for name, value in load_file(checkpoint / "model.safetensors").items()
        }

    def __call__(self, ids):
        """Return the logits of every position, ``[len(ids), vocab]``."""
        x = self.weights["model.embed_tokens.weight"][ids]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}"
            x = x + self._attention(f"{prefix}.self_attn", self._norm(f"{prefix}.input_layernorm", x))
            x = x + self._mlp(f"{prefix}.mlp", self._norm(f"{prefix}.post_attention_layernorm", x))
        head = "model.embed_tokens" if self.config["tie_word_embeddings"] else "lm_head"
        return self._norm("model.norm", x) @ self.weights[f"{head}.weight"].T

    def _norm(self, name, x):
        mean_square = np.square(x).mean(-1, keepdims=True)
        return x / np.sqrt(mean_square + self.config["rms_norm_eps"]) * self.weights[f"{name}.weight"]

    def _linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def _mlp(self, prefix, x):
        gate = self._linear(f"{prefix}.gate_proj", x)
        return self._linear(f"{prefix}.down_proj", gate / (1 + np.exp(-gate)) * self._linear(f"{prefix}.up_proj", x))

    def _attention(self, prefix, x):
        heads, groups = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        size, length = self.config["hidden_size"] // heads, len(x)
        q, k, v = (
            self._linear(f"{prefix}.{part}_proj", x).reshape(length, count, size)
            for part, count in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k = self._rotate(q), self._rotate(k)
        out = np.zeros((length, heads, size))
        for head in range(heads):
            shared = head // (heads // groups)
            for now in range(length):
                scores = k[: now + 1, shared] @ q[now, head] / math.sqrt(size)
                shares = np.exp(scores - scores.max())
                out[now, head] = shares / shares.sum() @ v[: now + 1, shared]
        return self._linear(f"{prefix}.o_proj", out.reshape(length, -1))

    def _rotate(self, x):
        """Rotate the first half of every head against the second, by angles that grow with the position."""
        half = x.shape[-1] // 2
        frequencies = np.array([self._frequency(pair, 2 * half) for pair in range(half)])
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * np.outer(np.arange(len(x)), frequencies))[:, None]
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def _frequency(self, pair, size):
        frequency = self.config["rope_theta"] ** (-2 * pair / size)
        scaling = self.config["rope_scaling"]
        if scaling is None:
            return frequency
        if scaling["rope_type"] == "linear":
            return frequency / scaling["factor"]
        wavelength, old = 2 * math.pi / frequency, scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        if wavelength < old / high:
            return frequency
        if wavelength > old / low:
            return frequency / scaling["factor"]
        smooth = (old / wavelength - low) / (high - low)
        return (1 - smooth) * frequency / scaling["factor"] + smooth * frequency


@pytest.fixture
def checkpoint(tmp_path):
    """A tiny checkpoint with a tied head."""
    from tests.tiny import write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("options", "overrides"),
    [
        ({}, {}),
        ({"tie": False, "kv_heads": 1}, {}),
        ({"heads": 2, "kv_heads": 2, "dtype": "float16"}, {"architectures": ["MistralForCausalLM"]}),
        ({}, {"attention_bias": True}),
        ({}, {"rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
        ({}, {"rope_scaling": _LLAMA3}),
    ],
    ids=["tied", "untied-mqa", "mistral-mha-fp16", "bias", "linear-rope", "llama3-rope"],
)
def test_fp32_gives_the_logits_of_the_definition(tmp_path, options, overrides):
    """Every position of every append is within 1e-3 of the reference: prompt, single tokens, and after a rewind."""
    from tests.tiny import write_tiny_checkpoint

    checkpoint = write_tiny_checkpoint(tmp_path / "checkpoint", overrides=overrides, **options)
    generator = _generator(_engine(checkpoint, "fp32", tmp_path / "engine"))
    ids = _ids(48)
    prompt = _append(generator, ids[:20])
    singles = [_append(generator, ids[at : at + 1]) for at in range(20, 25)]
    drafted = _append(generator, [*ids[25:28], 7, 8])
    generator.rewind_to(28)
    rest = _append(generator, ids[28:])
    expected = Reference(checkpoint)(ids)
    actual = np.concatenate([prompt, *singles, drafted[:3], rest])
    np.testing.assert_allclose(actual, expected, atol=1e-3)
    assert expected.std() > 0.5  # or the tolerance would mean nothing


def test_a_rewind_forgets_the_rejected_tokens(tmp_path, checkpoint):
    """After a rewind to any point the continuation is that of a generator that never saw the rest."""
    model = _engine(checkpoint, "fp32", tmp_path / "engine")
    used, fresh = _generator(model), _generator(model)
    ids, other = _ids(30), _ids(30, seed=1)
    _append(used, np.concatenate([ids[:10], other]))
    used.rewind_to(10)
    _append(fresh, ids[:10])
    np.testing.assert_allclose(_append(used, ids[10:]), _append(fresh, ids[10:]), atol=1e-4)
    used.rewind_to(0)
    np.testing.assert_allclose(_append(used, ids[:5]), Reference(checkpoint)(ids[:5]), atol=1e-3)


@pytest.mark.parametrize(("precision", "agreement", "error"), [("int8", 0.9, 0.15), ("int4", 0.5, 0.8)])
def test_quantised_engines_are_close_to_fp32(tmp_path, checkpoint, precision, agreement, error):
    """The likeliest token mostly stays, and logits move by a fraction of their own spread."""
    ids = _ids(120)
    exact = Reference(checkpoint)(ids)
    model = _engine(checkpoint, precision, tmp_path / precision)
    chunk = _append(_generator(model), ids)
    stepper = _generator(model)
    steps = np.concatenate([_append(stepper, ids[at : at + 1]) for at in range(len(ids))])
    for actual in (chunk, steps):
        assert (actual.argmax(-1) == exact.argmax(-1)).mean() >= agreement
        assert np.sqrt(np.square(actual - exact).mean()) <= error * exact.std()


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_the_same_checkpoint_gives_the_same_bytes(tmp_path, checkpoint, precision):
    """Engines are addressed by their contents: neither the time nor the paths may be in them."""
    copy = shutil.copytree(checkpoint, tmp_path / "elsewhere" / "copy")
    contents = []
    for source, output in ((checkpoint, tmp_path / "a"), (copy, tmp_path / "b" / "deeper")):
        assert _compile(source, precision, output).returncode == 0
        contents.append({path.name: path.read_bytes() for path in output.iterdir()})
    assert contents[0] == contents[1]
    assert not [name for name, text in contents[0].items() if str(tmp_path).encode() in text]
    assert json.loads(contents[0]["compile.json"])["precision"] == precision


def test_the_engine_carries_the_tokenizer(tmp_path, checkpoint):
    """The engine's tokenizer is the checkpoint's, byte for byte."""
    _compile(checkpoint, "fp32", tmp_path / "engine")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (checkpoint / name).read_bytes() == (tmp_path / "engine" / name).read_bytes()


def test_progress_counts_to_its_end(tmp_path, checkpoint):
    """The lines read ``[k/n]``, from 1 to n."""
    lines = [line for line in _compile(checkpoint, "int8", tmp_path / "engine").stdout.splitlines() if line[0] == "["]
    numbers = [line[1 : line.index("]")].split("/") for line in lines]
    total = len(lines)
    assert [[str(number), str(total)] for number in range(1, total + 1)] == numbers


def test_sharded_bfloat16_gives_the_engine_of_one_float32_file(tmp_path):
    """Container and number format do not matter, only the values."""
    import ml_dtypes
    from safetensors.numpy import load_file, save_file

    from tests.tiny import write_tiny_checkpoint

    single = write_tiny_checkpoint(tmp_path / "single")
    halves = {
        name: (value.view(np.uint32) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)
        for name, value in load_file(single / "model.safetensors").items()
    }
    widened = {name: value.astype(np.float32) for name, value in halves.items()}
    sharded = shutil.copytree(single, tmp_path / "sharded", ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(widened, single / "model.safetensors")
    weight_map = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(halves)}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for shard in set(weight_map.values()):
        save_file({name: halves[name] for name in halves if weight_map[name] == shard}, sharded / shard)
    for source, output in ((single, "a"), (sharded, "b")):
        done = _compile(source, "fp32", tmp_path / output)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "a" / "model.onnx.data").read_bytes() == (tmp_path / "b" / "model.onnx.data").read_bytes()


def _break_architecture(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text()) | {"architectures": ["MixtralForCausalLM"]}
    (checkpoint / "config.json").write_text(json.dumps(config))


def _break_weights(checkpoint):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def _break_shards(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))


def _break_shape(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text()) | {"vocab_size": 301}
    (checkpoint / "config.json").write_text(json.dumps(config))


def _break_layers(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text()) | {"num_hidden_layers": 3}
    (checkpoint / "config.json").write_text(json.dumps(config))


def _break_tokenizer(checkpoint):
    (checkpoint / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("damage", "seen"),
    [
        (_break_architecture, "architectures ['MixtralForCausalLM'] is not supported"),
        (_break_weights, "model.safetensors: not a whole safetensors file; truncated"),
        (_break_shards, "1 of 1 shards in model.safetensors.index.json are missing"),
        (_break_shape, "model.embed_tokens.weight has shape [300, 64], config.json asks for [301, 64]"),
        (_break_layers, "tensor model.layers.2.input_layernorm.weight is missing"),
        (_break_tokenizer, "tokenizer.json is missing"),
        (shutil.rmtree, "config.json is missing"),
    ],
)
def test_a_bad_checkpoint_ends_with_2_and_one_clear_line(tmp_path, checkpoint, damage, seen):
    """The error names the file and the value, gives a cure, and comes before anything is written."""
    damage(checkpoint)
    done = _compile(checkpoint, "fp32", tmp_path / "engine")
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert seen in error
    assert hint.startswith("hint: ")
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("limit_kib", [0, 64])
def test_a_full_disk_ends_with_4_and_says_what_was_needed(tmp_path, checkpoint, limit_kib):
    """The error names the path and the bytes; there is no traceback."""
    done = _compile(checkpoint, "fp32", tmp_path / "engine", limit_kib=limit_kib)
    path = tmp_path / "engine" / "model.onnx.data"
    assert done.returncode == 4
    assert done.stderr.startswith(f"error: no space left to write {path}: ")
    needed = int(done.stderr.split(": ")[2].split(" ")[0])
    assert _compile(checkpoint, "fp32", tmp_path / "again").returncode == 0
    assert (tmp_path / "again" / "model.onnx.data").stat().st_size == needed


def test_an_output_folder_in_use_is_refused(tmp_path, checkpoint):
    """What lies there is neither mixed with an engine nor removed."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "notes.txt").write_text("mine")
    done = _compile(checkpoint, "fp32", tmp_path / "engine")
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [path.name for path in (tmp_path / "engine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("arguments", [["--precision", "int3"], ["--precision", "int8", "--threads", "0"], []])
def test_wrong_arguments_end_with_2(tmp_path, capsys, arguments):
    """Usage errors are told apart from faults of the machine."""
    from specdeploy.cpu.compile import main

    with pytest.raises(SystemExit) as caught:
        main(["--checkpoint", str(tmp_path), "--output", str(tmp_path / "engine"), *arguments])
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.model
def test_the_real_model_answers_and_its_int8_copy_agrees(tmp_path, smollm2):
    """SmolLM2 at fp32 knows the capital of France, and int8 mostly predicts what fp32 wrote."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(prompt).ids
    start = len(ids)
    target = _generator(_engine(smollm2, "fp32", tmp_path / "fp32"))
    logits = _append(target, ids)
    while ids[-1] != tokenizer.token_to_id("<|im_end|>") and len(ids) < start + 40:
        ids.append(int(logits[-1].argmax()))
        logits = _append(target, ids[-1:])
    assert "Paris" in tokenizer.decode(ids[start:])
    draft = _append(_generator(_engine(smollm2, "int8", tmp_path / "int8")), ids[:-1])
    assert (draft[start - 1 :].argmax(-1) == ids[start:]).mean() > 0.85
