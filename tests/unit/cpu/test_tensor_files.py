"""Safetensors files: what is read back, and what is said about damaged ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from specdeploy.cpu.tensor_files import TensorFolder, write_tensors
from specdeploy.errors import CheckpointError


def _raw_file(path, header, body):
    """Write a safetensors file from its parts."""
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def _single(folder, dtype, shape, body):
    """Return a folder with one tensor ``w``."""
    _raw_file(
        folder / "model.safetensors", {"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(body)]}}, body
    )
    return TensorFolder(folder)


@given(
    st.dictionaries(
        st.text(min_size=1).filter(lambda name: name != "__metadata__"),
        npst.arrays(np.float16, npst.array_shapes(max_dims=3, max_side=4), elements=st.floats(-8, 8, width=16)),
        min_size=1,
        max_size=4,
    )
)
def test_what_is_written_is_read_back(tmp_path_factory, tensors):
    """Names, shapes and float16 values survive a round trip."""
    folder = tmp_path_factory.mktemp("tensors")
    write_tensors(folder / "model.safetensors", {name: value.shape for name, value in tensors.items()}, tensors.get)
    stored = TensorFolder(folder)
    for name, value in tensors.items():
        assert stored.shape(name) == value.shape
        np.testing.assert_array_equal(stored.read(name), value)


def test_the_official_library_reads_what_is_written(tmp_path):
    """The writer keeps to the format, alignment of the header included."""
    safetensors = pytest.importorskip("safetensors.numpy")
    value = np.arange(6, dtype=np.float16).reshape(2, 3)
    write_tensors(tmp_path / "model.safetensors", {"w": (2, 3)}, lambda _: value)
    np.testing.assert_array_equal(value, safetensors.load_file(tmp_path / "model.safetensors")["w"])


def test_bfloat16_is_widened_exactly(tmp_path):
    """A bfloat16 number is the upper half of the float32 with the same value."""
    values = np.array([1.0, -2.5, 3.1415927, 1e-30, 65536.0], np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    expected = (halves.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(expected, _single(tmp_path, "BF16", [5], halves.tobytes()).read("w"))
    np.testing.assert_allclose(expected, values, rtol=2**-7)


def test_shards_are_found_through_the_index(tmp_path):
    """A tensor is read from whichever shard the index names."""
    for number, name in enumerate(("a", "b")):
        write_tensors(tmp_path / f"{name}.safetensors", {name: (2,)}, lambda _, n=number: np.full(2, n, np.float16))
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    stored = TensorFolder(tmp_path)
    assert [stored.read(name).tolist() for name in ("a", "b")] == [[0, 0], [1, 1]]


def test_a_missing_shard_is_named(tmp_path):
    """The error names the first missing file and how many are missing."""
    index = {"weight_map": {"a": "a-00001.safetensors", "b": "b-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "a-00001.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"1 of 2 shards .* missing, first b-00002\.safetensors"):
        TensorFolder(tmp_path)


def test_a_folder_without_safetensors_is_refused(tmp_path):
    """The error says which files were looked for."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        TensorFolder(tmp_path)


@pytest.mark.parametrize("cut", [0, 4, 20, 200])
def test_a_truncated_file_is_refused_wherever_it_was_cut(tmp_path, cut):
    """Cut in the length, in the header or in the data: never a tensor of wrong numbers."""
    path = tmp_path / "model.safetensors"
    write_tensors(path, {"w": (16, 16)}, lambda _: np.ones((16, 16), np.float16))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        TensorFolder(tmp_path)


@pytest.mark.parametrize(
    ("header", "seen"),
    [
        ({"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, "stored as F8_E4M3"),
        ({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 4]}}, r"shape \(4,\) has 4 bytes"),
        ({"w": {"dtype": "F32", "data_offsets": [0, 4]}}, "unreadable header"),
        ({"w": 3}, "unreadable header"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused(tmp_path, header, seen):
    """Formats that are not read and sizes that do not fit are named."""
    _raw_file(tmp_path / "model.safetensors", header, bytes(4))
    with pytest.raises(CheckpointError, match=seen):
        TensorFolder(tmp_path)


def test_nan_in_a_weight_is_refused(tmp_path):
    """A diverged or damaged tensor is named instead of being compiled."""
    stored = _single(tmp_path, "F32", [2], np.array([1.0, np.nan], np.float32).tobytes())
    with pytest.raises(CheckpointError, match="tensor w holds NaN"):
        stored.read("w")


def test_a_missing_tensor_is_named(tmp_path):
    """The error names the tensor and how many others there are."""
    stored = _single(tmp_path, "F32", [1], bytes(4))
    assert "w" in stored
    with pytest.raises(CheckpointError, match=r"tensor v is missing \(1 tensors found\)"):
        stored.shape("v")
