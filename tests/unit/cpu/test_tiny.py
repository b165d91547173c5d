"""The tiny checkpoints that other tests stand on: their tokenizer and their determinism."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The tokenizer of a tiny checkpoint."""
    from tokenizers import Tokenizer

    from tests.tiny import write_tiny_checkpoint

    return Tokenizer.from_file(str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")) / "tokenizer.json"))


@given(st.text())
def test_any_text_round_trips(tokenizer, text):
    """Byte-level: no text is unknown, nothing is normalised away."""
    assert text == tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)


def test_special_tokens_have_the_first_ids(tokenizer):
    """As in SmolLM2, and as config.json says."""
    assert [tokenizer.token_to_id(token) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [0, 1, 2]
    assert tokenizer.get_vocab_size() == 300


def test_the_seed_decides_every_byte(tmp_path):
    """The same seed gives the same file, another seed another."""
    from tests.tiny import write_tiny_checkpoint

    folders = [write_tiny_checkpoint(tmp_path / name, seed=seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))]
    digests = [hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() for folder in folders]
    assert digests[0] == digests[1] != digests[2]


def test_a_perturbed_copy_moves_every_tensor_by_the_scale(tmp_path):
    """The noise is proportional to each tensor's own spread, and the other files are the same."""
    from safetensors.numpy import load_file

    from tests.tiny import perturb_checkpoint, write_tiny_checkpoint

    source = write_tiny_checkpoint(tmp_path / "a")
    copy = perturb_checkpoint(source, tmp_path / "b", 0.1)
    before, after = (load_file(folder / "model.safetensors") for folder in (source, copy))
    ratios = [float((after[name] - before[name]).std() / before[name].std()) for name in before]
    np.testing.assert_allclose(ratios, 0.1, rtol=0.3)
    assert (source / "tokenizer.json").read_bytes() == (copy / "tokenizer.json").read_bytes()
