"""Planned steps run by the stand-in toolchain in this process, on small models in the place of real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdeploy.engine.profile import OUTPUT, PREVIOUS, SCRATCH
from tests.unit.engine.tensorrt_llm.trtllm_cases import MODELS
from tests.unit.toolchain.runs import main_build, main_convert, main_quantize, write_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdeploy.config.schema import DeployConfig
    from specdeploy.engine.profile import BuildStep
    from tests.toolchain import Toolchain

# All that any kind of head has, and widths that every group of quantised weights divides.
_HEAD = {"medusa_num_layers": 1, "num_draft_layers": 2, "exit_dim": 128, "rnn": True}
_WIDTHS = {"hidden_size": 512, "intermediate_size": 1024}


def write_model(folder: Path, architecture: str = "LlamaForCausalLM", model_type: str = "llama") -> Path:
    """Write a small model."""
    return write_source(folder, architectures=[architecture], model_type=model_type, **_WIDTHS)


def write_head(folder: Path) -> Path:
    """Write what each of the converters takes for a head."""
    return write_source(folder, **_WIDTHS, **_HEAD)


def write_checkpoints(folder: Path, config: DeployConfig) -> str:
    """Write small models under the names of a recipe's, and return the folder that they lie in."""
    for name in {Path(part.checkpoint).name for part in (config.target, config.draft)} - {""}:
        if name not in MODELS:
            write_head(folder / name)
        elif name.startswith("qwen"):
            write_model(folder / name, "Qwen2ForCausalLM", "qwen2")
        else:
            write_model(folder / name)
    return str(folder)


def write_calibration(folder: Path) -> str:
    """Write a text to calibrate on."""
    folder.mkdir()
    (folder / "train.jsonl").write_text(json.dumps({"text": "a text"}) + "\n", encoding="utf-8")
    return str(folder)


def play(toolchain: Toolchain, steps: Sequence[BuildStep], place: Path, **words: str) -> Path:
    """Run steps, each on what the one before it wrote, and return the folder of the last.

    Args:
        toolchain: The stand-in.
        steps: What to run.
        place: A new folder.
        words: Values of options that are to be others than planned.
    """
    previous = Path()
    for number, step in enumerate(steps):
        output, scratch = place / f"{number}-output", place / f"{number}-scratch"
        output.mkdir(parents=True)
        scratch.mkdir()
        places = {OUTPUT: str(output), SCRATCH: str(scratch), PREVIOUS: str(previous)}
        _run(toolchain, _changed([_filled(word, places) for word in step.argv], words))
        previous = output
    return previous


def recorded(engine: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """Return what the inspection reads of an engine: its configuration and the sizes of its files."""
    sizes = {file.name: file.stat().st_size for file in engine.iterdir()}
    return {name: (engine / name).read_bytes() for name in sizes if name == "config.json"}, sizes


def edit(engine: Path, section: str, **changes: Any) -> None:
    """Change what an engine's configuration records in a section; a mapping is laid over the one that is there."""
    document = json.loads((engine / "config.json").read_text(encoding="utf-8"))
    for name, value in changes.items():
        old = document[section].get(name)
        document[section][name] = old | value if isinstance(value, dict) else value
    (engine / "config.json").write_text(json.dumps(document), encoding="utf-8")


def _run(toolchain: Toolchain, argv: Sequence[str]) -> None:
    program, *words = argv
    if program == "trtllm-build":
        assert main_build(toolchain, *words) == 0
    elif words[0].endswith("quantize.py"):
        assert main_quantize(toolchain, *words[1:]) == 0
    else:
        assert main_convert(toolchain, Path(words[0]).parent.name, *words[1:]) == 0


def _filled(word: str, places: Mapping[str, str]) -> str:
    for placeholder, path in places.items():
        word = word.replace(placeholder, path)
    return word


def _changed(argv: list[str], words: Mapping[str, str]) -> list[str]:
    before = ["", *argv]
    return [words.get(option.removeprefix("--"), word) for option, word in zip(before, argv, strict=False)]
