"""Engines: the profiles that say how one is made, the store that keeps them, the executor that makes them.

``PROFILES`` is the whole registry: a profile is an entry here and nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.engine.cpu import CpuProfile
from specdeploy.engine.llmapi import LlmApiProfile
from specdeploy.engine.tensorrt_llm import TensorrtLlmProfile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdeploy.config.schema import DeployConfig
    from specdeploy.engine.profile import EngineProfile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What a profile has to know of the machine that builds.

    Args:
        capability: Compute capability of its GPUs, None when it is not known.
        calibration: Absolute path of the texts to calibrate on; empty when there are none.
        calibration_fingerprint: What is in them.
        modelopt_python: The interpreter that has nvidia-modelopt.
        package: Folder of this package, which that interpreter need not have.
        examples_dir: TensorRT-LLM's own scripts, where the steps run; empty is as the configuration says.
        environment: Variables that change what the builder makes.
        named_files: Files and folders that the user's own arguments name, and the SHA-256 of what is in them.
    """

    capability: tuple[int, int] | None = None
    calibration: str = ""
    calibration_fingerprint: str = ""
    modelopt_python: str = "python3"
    package: str = ""
    examples_dir: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    named_files: Mapping[str, str] = dataclasses.field(default_factory=dict)


PROFILES: Final[Mapping[str, Callable[[DeployConfig, Machine], EngineProfile]]] = {
    "cpu": lambda _config, _machine: CpuProfile(),
    "tensorrt_llm": lambda config, machine: TensorrtLlmProfile(config=config, **vars(machine)),
    "llmapi": lambda config, _machine: LlmApiProfile(config),
}
