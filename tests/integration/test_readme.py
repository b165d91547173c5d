"""The README's commands, run in its order as a newcomer would, on the real checkpoint."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.deployments import specdeploy
from tests.tiny import perturb_checkpoint, write_tiny_checkpoint
from tests.toolchain import install_toolchain

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def _commands(heading: str) -> list[str]:
    """Return the lines of the ``console`` block below a heading, without their prompts."""
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```console\n(.*?)```", section, flags=re.DOTALL)
    lines = block.splitlines()
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


@pytest.mark.cpu
@pytest.mark.triton
@pytest.mark.model
@pytest.mark.timeout(1200)
def test_the_steps_of_the_readme_work_in_their_order(tmp_path: Path, smollm2: Path) -> None:
    """Every command of the step-by-step section ends with 0, from an empty folder to a stopped server."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / smollm2.name).symlink_to(smollm2)
    environment: dict[str, str] = {}
    try:
        for command in _commands("Step by step"):
            words = shlex.split(command)
            if words[0] == "export":
                environment |= dict(word.split("=", 1) for word in words[1:])
                continue
            assert words[0] == "specdeploy"
            # The real model wants both cores, and the tests beside this one have them, too.
            done = specdeploy(*words[1:], cwd=tmp_path, env=environment, timeout_s=600)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    finally:
        specdeploy("serve", "stop", cwd=tmp_path, env=environment)
    assert (tmp_path / "reports" / "report.html").is_file()


def test_the_commands_for_engines_work_in_their_order(tmp_path: Path) -> None:
    """With the section's own configuration, on stand-ins of TensorRT-LLM's programs and of the checkpoints."""
    section = README.split("## TensorRT-LLM engines\n")[1].split("\n## ")[0]
    (text,) = re.findall(r"```yaml\n(.*?)```", section, flags=re.DOTALL)
    config = yaml.safe_load(text)
    write_tiny_checkpoint(
        tmp_path / config["target"]["checkpoint"], seed=1, max_positions=8192, hidden=128, heads=8, kv_heads=4
    )
    perturb_checkpoint(tmp_path / config["target"]["checkpoint"], tmp_path / config["draft"]["checkpoint"], 0.02)
    (tmp_path / "calibration").mkdir()
    (tmp_path / "calibration" / "texts.txt").write_text("One text a line.\n")
    toolchain = install_toolchain(tmp_path / "toolchain", config["release"], gpus=8)
    config["build"]["runner"] = "local"
    config["tensorrt_llm"]["examples_dir"] = str(toolchain.examples)
    (tmp_path / "specdeploy.yaml").write_text(yaml.safe_dump(config))

    for command in (*_commands("TensorRT-LLM engines"), *_commands("The repository and the server, on GPUs")):
        words = shlex.split(command)
        done = specdeploy(*words[1:], cwd=tmp_path, env=dict(toolchain.env))
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

    assert {"rank0.engine", "rank3.engine", "manifest.json"} <= {
        path.name for path in (tmp_path / "exported" / "target").iterdir()
    }


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    """`make demo` and `make test`, and every other target that the documents name, exist."""
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    documents = README + (ROOT / "CONTRIBUTING.md").read_text()

    assert {"demo", "test"} <= targets
    assert set(re.findall(r"(?:`| {4})make ([a-z-]+)", documents)) <= targets | {"install"}


def test_the_exit_codes_of_the_readme_are_those_of_the_code() -> None:
    """The table of exit codes lists each code that the code base defines."""
    from specdeploy import errors

    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
    defined = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}

    assert listed == defined


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_files_that_the_documents_name_exist(name: str) -> None:
    """A path in backticks that looks like one of ours is there."""
    text = (ROOT / name).read_text()
    for path in re.findall(r"`((?:specdeploy|tests|build|engines|triton_repo|\.ci)/[\w./-]*)`", text):
        assert (ROOT / path).exists() or path.startswith(("triton_repo/models",)), path


def test_python_dash_m_is_the_same_program() -> None:
    """``python -m specdeploy`` prints the version that the package has."""
    done = specdeploy("--version", cwd=ROOT)

    assert done.stdout.startswith("specdeploy, version ")
