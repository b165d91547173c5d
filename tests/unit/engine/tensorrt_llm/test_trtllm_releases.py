"""The packed table of releases against the flags of the real parsers, and against itself."""

from __future__ import annotations

import json

import pytest

from specdeploy.engine.tensorrt_llm.releases import Flag, find_release, known_releases
from specdeploy.errors import ConfigError
from tests.unit.engine.tensorrt_llm.trtllm_cases import ROOT

# Row to the files that it follows from: one, or one before it and one after it.
SOURCES = {
    "0.17": ("0.16.0.dev2024121000", "0.21.0"),
    "0.18": ("0.16.0.dev2024121000", "0.21.0"),
    "0.19": ("0.21.0",),
    "0.20": ("0.21.0",),
    "0.21": ("0.21.0",),
    "1.0": ("1.0.0",),
    "1.1": ("1.0.0",),
    "1.2": ("1.2.1",),
}
# What the flag files leave to the type of the value.
KV_CACHE_TYPES = ("continuous", "paged", "disabled")


def _read(version):
    path = ROOT / "tests" / "data" / "trtllm_build_flags" / f"trtllm_build_flags_{version}.json"
    return {flag["flag"]: _flag(flag) for flag in json.loads(path.read_text(encoding="utf-8"))["flags"]}


def _flag(facts):
    takes = {None: "one", 0: "nothing"}.get(facts["nargs"], "several")
    choices = KV_CACHE_TYPES if facts["type"] == "KVCacheType" else (facts["choices"] or ())
    return Flag(
        name=facts["flag"],
        aliases=tuple(facts["aliases"]),
        takes=takes,
        choices=tuple(choices),
        integer=facts["type"] == "int",
        default=None if facts["default"] == "==SUPPRESS==" else facts["default"],
        certain=facts.get("verified_on_both_sides", True),
    )


def _between(before, after):
    """Return a flag of the releases between two: certain where both have it in one form, its default where equal."""
    return Flag(
        name=after.name,
        aliases=after.aliases,
        takes=after.takes,
        choices=after.choices,
        integer=after.integer,
        default=after.default if before is None or before.default == after.default else None,
        certain=before is not None and before.takes == after.takes,
    )


@pytest.mark.parametrize("row", SOURCES)
def test_the_flags_are_those_that_the_parsers_have(row):
    """Nothing is missing, nothing is made up, and what is only derived is not certain."""
    *before, after = map(_read, SOURCES[row])
    expected = {name: _between(before[0].get(name), flag) for name, flag in after.items()} if before else after
    packed = {flag.name: flag for flag in find_release(f"{row}.9").flags.values()}

    assert packed == expected


def test_every_row_is_compared():
    """A new row needs its source here, and the rows stand in order."""
    assert known_releases() == tuple(SOURCES)


def test_flags_that_came_and_went_are_where_they_belong():
    """Auto-parallelism ended with 1.1; four plugins came after 0.16, nobody knows when."""
    newer = ("--dora_plugin", "--gemm_allreduce_plugin", "--norm_quant_fusion", "--fuse_fp4_quant")

    assert "--auto_parallel" in find_release("1.1.0").flags
    assert "--auto_parallel" not in find_release("1.2.1").flags
    assert {find_release("0.17.0").flags[name].certain for name in newer} == {False}
    assert {find_release("1.2.1").flags[name].certain for name in newer} == {True}


def test_an_alias_names_its_flag():
    """As in the parser."""
    assert find_release("1.2.1").flags["--max_decoder_seq_len"].name == "--max_seq_len"


def test_the_images_stand_in_order_beside_their_rows():
    """Month after month from 25.01 to 26.07, with versions that never go back and a TensorRT that the row pins."""
    months = [image.image for row in known_releases() for image in find_release(f"{row}.0").images]
    images = [image for row in known_releases() for image in find_release(f"{row}.0").images]

    assert months == sorted(set(months))
    assert (months[0], months[-1], len(months)) == ("25.01", "26.07", 19)
    for name in ("triton", "tensorrt", "trtllm", "cuda", "driver"):
        numbers = [_numbers(getattr(image, name)) for image in images]
        assert numbers == sorted(numbers), name
    for row in known_releases():
        release = find_release(f"{row}.0")
        for image in release.images:
            # 1.0.3.2510 is no release of PyPI: it was made for its image, with a younger TensorRT.
            if "tensorrt" in release.pins and image.trtllm != "1.0.3.2510":
                pinned = release.pins["tensorrt"].removeprefix("tensorrt~=")
                assert image.tensorrt.startswith(f"{pinned.rpartition('.')[0]}."), image
            assert ".".join(image.python.split(".")[:2]) in release.pythons


def _numbers(version):
    return [int(number) for number in version.replace("post", "").split(".")]


@pytest.mark.parametrize(
    ("version", "month"),
    [
        ("0.17.0", "25.01"),
        ("0.17.0.post1", "25.02"),
        ("0.18.2", "25.04"),
        ("0.20.0", "25.07"),
        ("1.0.0", "25.10"),
        ("1.0.3.2510", "25.11"),
        ("1.0.1", "25.11"),
        ("1.2.0", "26.03"),
        ("1.2.1", "26.07"),
    ],
)
def test_the_image_of_a_release_is_the_newest_with_exactly_it(version, month):
    """Or, when none has it, the newest of its row."""
    image = find_release(version).image

    assert image.image == month
    assert image.tag == f"nvcr.io/nvidia/tritonserver:{month}-trtllm-python-py3"


@pytest.mark.parametrize(("version", "split"), [("0.17.0.post1", False), ("0.19.0", False), ("0.20.0", True)])
def test_the_converters_moved_in_0_20(version, split):
    """Into folders of their own below ``models``."""
    assert find_release(version).split_families is split


@pytest.mark.parametrize("version", ["1.3.0", "1.3.0rc15", "1.4.0rc1", "2.0"])
def test_a_release_without_the_builder_points_to_the_other_profile(version):
    """What upstream removed, nobody can plan."""
    with pytest.raises(ConfigError, match="profile llmapi") as caught:
        find_release(version)

    assert "0.17, 0.18, 0.19, 0.20, 0.21, 1.0, 1.1, 1.2" in caught.value.hint


@pytest.mark.parametrize("version", ["0.16.0", "latest", "", "1", "v1.2.1"])
def test_an_unknown_release_names_the_known_ones(version):
    """Too old, or no version at all."""
    with pytest.raises(ConfigError, match="is not a release that specdeploy builds engines with") as caught:
        find_release(version)

    assert "1.2" in caught.value.hint


@pytest.mark.parametrize("version", ["1.2", "1.2.foo", "1.2.1 ", "0.17"])
def test_a_version_must_be_whole(version):
    """Engines run on the very release that built them, so half a number says nothing; the newest is named."""
    with pytest.raises(ConfigError, match="not a whole version") as caught:
        find_release(version)

    assert "The newest of" in caught.value.hint
