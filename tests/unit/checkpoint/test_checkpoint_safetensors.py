"""Safetensors headers: every way in which a file can lie about its data."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.checkpoint.safetensors import read_weight_file
from specdeploy.errors import CheckpointError
from tests.unit.checkpoint.folders import safetensors

SHAPES = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda name: name != "__metadata__"),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    max_size=5,
)


def _file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _refusal(tmp_path, content: bytes) -> str:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_weight_file(path)
    assert str(path) in caught.value.message
    return caught.value.message


@given(shapes=SHAPES)
def test_every_well_formed_file_is_read(tmp_path_factory, shapes):
    """Names, shapes and sizes come back as they were written."""
    path = tmp_path_factory.mktemp("st") / "model.safetensors"
    path.write_bytes(safetensors(shapes))

    read = read_weight_file(path)

    assert {tensor.name: tensor.shape for tensor in read.tensors} == shapes
    assert read.size == path.stat().st_size


@given(shapes=SHAPES, cut=st.integers(1, 60))
def test_every_truncation_is_noticed(tmp_path_factory, shapes, cut):
    """A file that lost its end is never taken for a whole one, wherever it was cut."""
    content = safetensors(shapes)
    path = tmp_path_factory.mktemp("st") / "model.safetensors"
    path.write_bytes(content[: max(0, len(content) - cut)])

    with pytest.raises(CheckpointError):
        read_weight_file(path)


def test_a_truncated_file_tells_bytes_expected_and_seen(tmp_path):
    """The two numbers show how much of the copy is missing."""
    content = safetensors({"a": (4, 4)})

    message = _refusal(tmp_path, content[:-10])

    assert f"expected {len(content)} bytes, it has {len(content) - 10}" in message


def test_trailing_bytes_are_refused(tmp_path):
    """Data that no tensor owns is a sign of a damaged header."""
    assert "has 3 bytes after its last tensor" in _refusal(tmp_path, safetensors({"a": (1,)}) + b"abc")


def test_a_git_lfs_pointer_is_recognised(tmp_path):
    """The commonest broken download is named, with its cure."""
    assert "Git LFS pointer" in _refusal(
        tmp_path, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is truncated: 0 bytes"),
        (b"PK\x03\x04" + b"\xff" * 60, "no safetensors file or truncated"),
        (_file(b"{nope"), "not valid JSON"),
        (_file([1]), "is a list"),
        (_file({"a": 1}), "no valid data_offsets"),
        (_file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, -4]}}), "no valid data_offsets"),
        (_file({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, b"1234"), "unknown type 'F99'"),
        (_file({"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}, b"1234"), "no valid shape"),
        (_file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"), "takes 8 bytes"),
        (_file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678"), "begins at byte 4"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path, content, said):
    """Each kind of damage has words of its own."""
    assert said in _refusal(tmp_path, content)


def test_overlapping_tensors_are_refused(tmp_path):
    """Two tensors cannot own the same bytes."""
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}

    assert "begins at byte 0 of the data, expected 4" in _refusal(tmp_path, _file({"a": entry, "b": entry}, b"1234"))


def test_packed_types_are_sized_in_bits(tmp_path):
    """Two 4-bit values share a byte."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(_file({"a": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}}, b"1234"))

    assert [tensor.nbytes for tensor in read_weight_file(path).tensors] == [4]


def test_the_digest_sees_every_tensor(tmp_path):
    """A change in the first or last 64 KiB, or in the middle of any tensor, shows; the rest is not read."""
    content = bytearray(safetensors({"a": (1 << 16,), "b": (1 << 16,)}))
    path = tmp_path / "model.safetensors"
    size = 4 * (1 << 16)
    start = len(content) - 2 * size

    def digest_with(position: int) -> str:
        changed = bytearray(content)
        changed[position] = 1
        path.write_bytes(changed)
        return read_weight_file(path).digest

    path.write_bytes(content)
    plain = read_weight_file(path).digest

    assert digest_with(start) != plain
    assert digest_with(len(content) - 1) != plain
    assert digest_with(start + size // 2 + 100) != plain
    assert digest_with(start + size + size // 2) != plain
    assert digest_with(start + size - 100) == plain
