"""Does the release go with the image, the driver, the Python and the GPU that can be seen?"""

from __future__ import annotations

import pytest

from specdeploy.engine.tensorrt_llm.releases import find_release
from specdeploy.engine.tensorrt_llm.surroundings import Seen, check_surroundings

TAG = "nvcr.io/nvidia/tritonserver:{}-trtllm-python-py3"


def _found(release="1.2.1", **seen):
    findings = check_surroundings(find_release(release), Seen(**seen))
    return [(finding.severity, finding.code, finding.where) for finding in findings]


def test_nothing_is_said_about_what_cannot_be_seen():
    """A build in a container or on a node is judged where it runs."""
    assert _found() == []


def test_what_goes_together_has_no_finding():
    """All of it at once."""
    seen = {"image": TAG.format("26.07"), "installed": "1.2.1", "python": "3.12.3", "driver": "590.44.01"}

    assert _found(**seen, capability=(9, 0)) == []


@pytest.mark.parametrize(
    ("release", "image", "hint"),
    [
        ("1.2.1", TAG.format("25.10"), "26.07"),
        ("1.2.1", TAG.format("26.03"), "Set release to 1.2.0."),
        ("0.17.0", TAG.format("25.02"), "Set release to 0.17.0.post1."),
        ("1.2.1", f"registry.example/mirror/{TAG.format('25.09').rpartition('/')[2]}", "26.07"),
        ("1.2.1", TAG.format("31.01"), "26.07"),
    ],
)
def test_an_image_of_another_release_is_an_error(release, image, hint):
    """With the image that is right, or the release that the image has."""
    (finding,) = check_surroundings(find_release(release), Seen(image=image))

    assert (finding.severity, finding.code, finding.where) == ("error", "surroundings.image", "container.image")
    assert hint in finding.hint


@pytest.mark.parametrize("image", ["my/own:latest", "nvcr.io/nvidia/tritonserver:26.07-py3", ""])
def test_an_image_that_does_not_say_what_it_holds_is_not_judged(image):
    """A home-made one may be right."""
    assert _found(image=image) == []


def test_an_installed_release_has_to_be_the_one_that_is_planned():
    """An engine runs on its own release only."""
    assert _found(installed="1.0.0") == [("error", "surroundings.installed", "release")]
    assert _found(installed="1.2.1", python="3.12.1") == []


@pytest.mark.parametrize("python", ["3.11.9", "3.13.0", "3.9.1"])
def test_a_python_without_wheels_is_a_warning(python):
    """It may have been compiled by hand; without TensorRT-LLM the Python does not matter."""
    assert _found(installed="1.2.1", python=python) == [("warning", "surroundings.python", "release")]
    assert _found(python=python) == []


@pytest.mark.parametrize(
    ("release", "driver", "fine"),
    [
        ("1.2.1", "590.44.01", True),
        ("1.2.1", "580.95.05", False),
        ("1.2.1", "600.1", True),
        ("0.17.0.post1", "570.86.10", True),
        ("0.17.0.post1", "550.54.15", False),
    ],
)
def test_a_driver_that_is_older_than_the_images_is_a_warning(release, driver, fine):
    """Data-centre GPUs may run it all the same."""
    assert _found(release, driver=driver) == ([] if fine else [("warning", "surroundings.driver", "release")])


@pytest.mark.parametrize(("capability", "fine"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_a_gpu_without_paged_context_attention_is_an_error(capability, fine):
    """Verification stands on it."""
    assert _found(capability=capability) == ([] if fine else [("error", "surroundings.gpu", "gpu.name")])
