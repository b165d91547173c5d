"""What is known of each TensorRT-LLM release that still has the engine builder: its flags, its pins, its images.

``releases.json`` holds the facts and says of each set where it is from: read in the release itself, or derived from the
ones around it. A flag that is only derived is not ``certain``, and a finding about it says so.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

Takes: TypeAlias = Literal["one", "nothing", "several"]

_WHOLE: Final = re.compile(r"\d+\.\d+\.\d+(\.(post)?\d+)?(rc\d+)?")
_LAST_WITH_ENGINES: Final = (1, 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """One option of ``trtllm-build``.

    Args:
        name: With its dashes.
        aliases: Other spellings.
        takes: How many values follow it.
        choices: The only accepted values; empty when any will do.
        integer: Whether a value must be one.
        default: What the release takes without it; None when unknown or none.
        certain: Whether the release is known to have it.
    """

    name: str
    aliases: tuple[str, ...] = ()
    takes: Takes = "one"
    choices: tuple[str, ...] = ()
    integer: bool = False
    default: Any = None
    certain: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Image:
    """One of NVIDIA's Triton images with TensorRT-LLM: its month and the versions inside; ``driver`` is the least."""

    image: str
    triton: str
    python: str
    tensorrt: str
    trtllm: str
    cuda: str
    driver: str

    @property
    def tag(self) -> str:
        """What a container engine pulls."""
        return f"nvcr.io/nvidia/tritonserver:{self.image}-trtllm-python-py3"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
    """One release.

    Args:
        version: As it was asked for, such as ``1.2.1``.
        row: Its row of the table: major and minor.
        flags: Flag or alias to its description.
        provenance: Where the flags are from.
        examples: Folder of the model families' converters below the image's copy of the sources.
        pythons: The Pythons that it has wheels for.
        pins: Package to the requirement that the release has on it.
        images: Triton images of the row, oldest first.
    """

    version: str
    row: str
    flags: Mapping[str, Flag] = dataclasses.field(repr=False)
    provenance: str
    examples: str
    pythons: tuple[str, ...]
    pins: Mapping[str, str]
    images: tuple[Image, ...]

    @property
    def image(self) -> Image | None:
        """The newest image with exactly this version, else the newest of the row; None when there is none."""
        exact = [image for image in self.images if image.trtllm == self.version]
        return next(reversed(exact or self.images), None)

    @property
    def split_families(self) -> bool:
        """Whether the converters lie in ``models/core`` and ``models/contrib``, as from 0.20 on."""
        return self.examples.endswith("models")


def known_releases() -> tuple[str, ...]:
    """Return the rows of the table, oldest first."""
    return tuple(_document()["releases"])


@functools.lru_cache(maxsize=16)
def find_release(version: str) -> Release:
    """Return what is known of a release such as ``1.2.1`` or ``0.17.0.post1``.

    Raises:
        ConfigError: It is not a version, too old, or one without the engine builder.
    """
    document = _document()
    row = ".".join(version.split(".")[:2])
    if row in document["releases"] and not _WHOLE.fullmatch(version):
        raise ConfigError(
            f"release: {version!r} is not a whole version, and engines run on exactly the one that built them",
            hint=f"The newest of {row} is {document['releases'][row]['latest']}.",
        )
    if row not in document["releases"]:
        raise ConfigError(
            f"release: TensorRT-LLM {version!r} {_why_not(version)}",
            hint=f"Known releases: {', '.join(document['releases'])}.",
        )
    facts = document["releases"][row]
    flag_set = document["flag_sets"][facts["flags"]]
    flag_set = document["flag_sets"][flag_set["same_as"]] if "same_as" in flag_set else flag_set
    flags = [_flag(name, values) for name, values in flag_set["flags"].items()]
    return Release(
        version=version,
        row=row,
        flags={spelling: flag for flag in flags for spelling in (flag.name, *flag.aliases)},
        provenance=flag_set["provenance"],
        examples=facts["examples"],
        pythons=tuple(facts["python"]),
        pins=facts["pins"],
        images=tuple(Image(**image) for image in document["images"] if image["trtllm"].startswith(f"{row}.")),
    )


def _why_not(version: str) -> str:
    numbers = version.split(".")[:2]
    if all(number.isdigit() for number in numbers) and tuple(map(int, numbers)) > _LAST_WITH_ENGINES:
        return "has no engine builder any more: upstream removed it after 1.2; profile llmapi serves it"
    return "is not a release that specdeploy builds engines with"


def _flag(name: str, values: Mapping[str, Any]) -> Flag:
    return Flag(
        name=name,
        aliases=tuple(values.get("aliases", ())),
        takes=values.get("takes", "one"),
        choices=tuple(values.get("choices", ())),
        integer=values.get("type") == "int",
        default=values.get("default"),
        certain=values.get("certain", True),
    )


@functools.cache
def _document() -> Any:  # noqa: ANN401  # JSON
    text = importlib.resources.files("specdeploy.engine.tensorrt_llm").joinpath("releases.json").read_text("utf-8")
    return json.loads(text)
