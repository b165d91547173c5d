"""Does the release go with what surrounds it: image, driver, Python, GPU? Only what can be seen is judged."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final

from specdeploy.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.engine.tensorrt_llm.precisions import Capability
    from specdeploy.engine.tensorrt_llm.releases import Release

_IMAGE: Final = re.compile(r"tritonserver:(?P<month>\d\d\.\d\d)-trtllm")
# Below it there is no paged context attention, which verification stands on.
_LEAST_CAPABILITY: Final = (8, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What can be seen of where the release is to run; None is what cannot.

    Args:
        image: Name of the container image.
        installed: Version of TensorRT-LLM that is installed where the steps run.
        python: Version of the Python there.
        driver: Version of NVIDIA's driver.
        capability: Compute capability of the GPU.
    """

    image: str | None = None
    installed: str | None = None
    python: str | None = None
    driver: str | None = None
    capability: Capability | None = None


def check_surroundings(release: Release, seen: Seen) -> tuple[Finding, ...]:
    """Return what does not go together; nothing about what was not seen."""
    return (
        *_image(release, seen.image),
        *_installed(release, seen.installed, seen.python),
        *_driver(release, seen.driver),
        *_capability(seen.capability),
    )


def _image(release: Release, image: str | None) -> Iterator[Finding]:
    month = _IMAGE.search(image or "")
    if month is None:
        return
    exact = [known for known in release.images if known.image == month["month"]]
    if not exact:
        right = f"Use {release.image.tag}." if release.image else ""
        message = f"the image {image} is not one with TensorRT-LLM {release.row}"
        yield _finding("error", "image", "container.image", message, right)
    elif exact[0].trtllm != release.version:
        message = f"the image {image} has TensorRT-LLM {exact[0].trtllm}, the release is {release.version}"
        yield _finding("error", "image", "container.image", message, f"Set release to {exact[0].trtllm}.")


def _installed(release: Release, installed: str | None, python: str | None) -> Iterator[Finding]:
    if installed and installed != release.version:
        message = f"TensorRT-LLM {installed} is installed here, the release is {release.version}"
        yield _finding("error", "installed", "release", message, f"Set release to {installed}, or use its container.")
    if installed is None or python is None:
        return
    if ".".join(python.split(".")[:2]) not in release.pythons:
        message = (
            f"TensorRT-LLM {release.version} has wheels for Python {' and '.join(release.pythons)}, this is {python}"
        )
        yield _finding("warning", "python", "release", message, "Use build.runner container.")


def _driver(release: Release, driver: str | None) -> Iterator[Finding]:
    image = release.image
    if driver is None or image is None or _numbers(driver) >= _numbers(image.driver):
        return
    wanted = f"{image.driver} or later (CUDA {image.cuda})"
    message = f"the driver is {driver}; the image of {release.version} is made for {wanted}"
    hint = "Update the driver, or take an older release; data-centre GPUs may run it by CUDA's forward compatibility."
    yield _finding("warning", "driver", "release", message, hint)


def _capability(capability: Capability | None) -> Iterator[Finding]:
    if capability is not None and capability < _LEAST_CAPABILITY:
        shown = f"{capability[0]}.{capability[1]}"
        message = f"the GPU has compute capability {shown}; speculation in engines needs 8.0 or higher"
        yield _finding("error", "gpu", "gpu.name", message, "Use an A100 or newer.")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _finding(severity: Severity, code: str, where: str, message: str, hint: str) -> Finding:
    return Finding(severity=severity, code=f"surroundings.{code}", message=message, hint=hint, where=where)
