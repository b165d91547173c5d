"""The recipes in ``build/``: each loads, fits its GPUs, and becomes exactly the command lines that are written down.

``tests/data/command_lines`` holds them, a folder a recipe and a file a release, and in ``refused`` what becomes of
combinations that some release cannot do. The files are compared, never made in passing: after a change that is meant,
write them anew with ``SPECDEPLOY_UPDATE_GOLDENS=1 pytest tests/unit/engine/test_recipes.py`` and read the difference.
A key that changes there means that everybody's engines are built again.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
import yaml

from specdeploy.checkpoint.compat import check_alone, check_pair
from specdeploy.checkpoint.fitness import check_fitness
from specdeploy.checkpoint.head_compat import check_head
from specdeploy.config.load import load_config
from specdeploy.engine.llmapi import LlmApiProfile
from specdeploy.engine.profile import OUTPUT
from specdeploy.engine.tensorrt_llm.methods import max_draft_len
from specdeploy.gate.rules import parse_rules
from specdeploy.pipeline.machine import find_gpus
from specdeploy.planning.build import plan_build
from specdeploy.planning.footprint import EngineMemorySpec, ModelMemory
from specdeploy.planning.memory import plan_memory
from tests.toolchain import install_toolchain
from tests.toolchain.convert_arguments import converter_parser
from tests.toolchain.flags import build_parser, load_flags
from tests.toolchain.quantize import quantize_parser
from tests.toolchain.release import family_folder, flags_release
from tests.unit.engine.tensorrt_llm.trtllm_cases import (
    MODELS,
    RELEASES,
    ROOT,
    codes,
    plan,
    profile_for,
    recipe,
    sources,
)
from tests.unit.engine.tensorrt_llm.trtllm_play import play, write_calibration, write_checkpoints

GOLDENS = ROOT / "tests" / "data" / "command_lines"
FLAGS = ROOT / "tests" / "data" / "trtllm_build_flags"
EXAMPLES = "/app/examples/"
FILES = sorted((ROOT / "build").glob("*.yaml"))
RECIPES = (
    "llama-3.3-70b",
    "qwen2.5-32b",
    "vicuna-7b-medusa",
    "vicuna-7b-eagle",
    "vicuna-7b-redrafter",
    "qwen2.5-coder-7b-lookahead",
)
LLMAPI = "llama-3.1-8b-eagle3"
LLMAPI_RELEASES = ("1.0.0", "1.2.1", "1.3.0rc3")
EVERY = [(name, release) for name in RECIPES for release in RELEASES]
TEXTS = {"tensorrt_llm.calib_dataset": "../calibration/texts"}
QWEN = {"target.checkpoint": "../checkpoints/qwen2.5-coder-7b-instruct"}
# What somebody might want next, and some release or GPU cannot do.
VARIANTS = (
    ("llama-3.3-70b", {"tensorrt_llm.calib_dataset": ""}),
    ("llama-3.3-70b", {"gpu.name": "A100-80GB"}),
    ("llama-3.3-70b", {"target.kv_cache": "int8"}),
    ("llama-3.3-70b", {"target.precision": "bf16"}),
    ("llama-3.3-70b", {"target.tp_size": "8", "target.ep_size": "2"}),
    ("qwen2.5-32b", {"target.precision": "int4_awq", "gpu.name": "B200", **TEXTS}),
    ("qwen2.5-32b", {"target.extra_build_args": "--use_paged_context_fmha disable"}),
    ("vicuna-7b-medusa", {"target.precision": "fp8", **TEXTS}),
    ("vicuna-7b-medusa", {"tensorrt_llm.converter": "modelopt"}),
    ("vicuna-7b-eagle", {"target.precision": "fp8", **TEXTS}),
    ("vicuna-7b-eagle", {"target.pp_size": "2"}),
    ("vicuna-7b-eagle", {"speculation.tree_tokens": "300", "build.max_batch_size": "1024"}),
    ("vicuna-7b-eagle", QWEN),
    ("vicuna-7b-redrafter", {"target.precision": "fp8", **TEXTS}),
    ("vicuna-7b-redrafter", QWEN),
    ("qwen2.5-coder-7b-lookahead", {"target.extra_build_args": "--auto_parallel 2"}),
    ("qwen2.5-coder-7b-lookahead", {"target.extra_build_args": "--dora_plugin enable"}),
    ("qwen2.5-coder-7b-lookahead", {"build.max_seq_len": "64"}),
)


class TestRecipes:
    """What a recipe is before any release is asked."""

    @pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
    def test_a_recipe_loads_and_says_what_it_is_for(self, file):
        """Strictly, with a comment at its head, and with everything where the checkout keeps it."""
        loaded = load_config(file, {}, {})
        config, text = loaded.config, file.read_text(encoding="utf-8")

        assert text.startswith("# ")
        assert max(map(len, text.splitlines())) <= 120
        assert config.name == file.stem
        assert loaded.resolve(config.build.engines_dir).resolve() == ROOT / "engines"
        assert loaded.resolve(config.repo.path).resolve() == ROOT / "triton_repo" / "models"
        assert loaded.resolve(config.report.path).resolve() == ROOT / "reports" / file.stem
        assert loaded.resolve(config.target.checkpoint).resolve().parent == ROOT / "checkpoints"
        assert len(parse_rules(config.gate.rules)) == len(config.gate.rules)

    def test_every_recipe_is_covered(self):
        """A new file in ``build/`` needs its command lines here; the CPU's is run for real elsewhere."""
        assert {file.stem for file in FILES} == {*RECIPES, LLMAPI, "smollm2-135m", "smollm2-135m-gpu"}

    @pytest.mark.parametrize("name", [*RECIPES, LLMAPI])
    def test_the_parts_belong_together_and_fit_the_gpus(self, name):
        """By the models' public sizes: no check has an error, and the memory holds the whole batch."""
        config = recipe(name)
        made, gpus = sources(config), find_gpus(config)
        profile = LlmApiProfile(config) if name == LLMAPI else profile_for(config)
        planned = plan_build(config, made, profile, devices=tuple(map(str, range(gpus.count))))
        memory = plan_memory(
            [_memory(config, engine.spec) for engine in planned.engines],
            gpu=gpus.spec,
            max_batch_size=config.build.max_batch_size,
            max_seq_len=config.build.max_seq_len,
            gpu_count=gpus.count,
        )
        findings = (*_belonging(config, made), *_fitness(config, planned), *planned.findings, *memory.findings)

        assert gpus.capability is not None
        assert [finding for finding in findings if finding.severity != "info"] == _expected_warnings(name, findings)

    @pytest.mark.parametrize("name", sorted(MODELS))
    def test_the_sizes_of_the_table_add_up(self, name):
        """A decoder of these sizes has the published number of parameters."""
        sizes = MODELS[name]
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        bias = queries + 2 * keys if sizes.architecture.startswith("Qwen2") else 0
        attention = sizes.hidden * (2 * queries + 2 * keys) + bias
        layer = attention + 3 * sizes.hidden * sizes.intermediate + 2 * sizes.hidden
        embeddings = sizes.vocab * sizes.hidden * (1 if sizes.tied else 2)

        assert sizes.layers * layer + embeddings + sizes.hidden == sizes.parameters


class TestCommandLines:
    """What a recipe becomes, release by release."""

    @pytest.mark.parametrize(("name", "release"), EVERY)
    def test_the_command_lines_are_those_that_are_written_down(self, name, release):
        """Word by word, with the keys that the store knows the engines by."""
        config = recipe(name, release)
        _compare(GOLDENS / name / f"{release}.txt", _transcript(config, plan(config)))

    @pytest.mark.parametrize("release", RELEASES)
    def test_what_a_release_cannot_do_is_written_down(self, release):
        """With the findings that say so, and with the steps where it can."""
        parts = [f"# Variants of the recipes with TensorRT-LLM {release}"]
        for name, changes in VARIANTS:
            config = recipe(name, release, changes)
            parts += ["", f"== {name}: {' '.join(f'{key}={value}' for key, value in changes.items())}"]
            for engine in plan(config).engines:
                parts += [f"{engine.spec.role}: {', '.join(step.name for step in engine.steps) or 'cannot be made'}"]
                parts += [f"    {line}" for finding in engine.findings for line in _finding_lines(finding)]
        _compare(GOLDENS / "refused" / f"{release}.txt", "\n".join(parts) + "\n")

    @pytest.mark.parametrize("release", LLMAPI_RELEASES)
    def test_the_llm_api_is_configured_as_written_down(self, release):
        """Its one file, in each of the spellings that there have been."""
        config = recipe(LLMAPI, release)
        (engine,) = plan_build(config, sources(config), LlmApiProfile(config)).engines
        text = engine.steps[0].writes["model.yaml"]

        assert codes(engine.findings) == []
        assert yaml.safe_load(text)["speculative_config"]["max_draft_len"] == 3
        _compare(GOLDENS / LLMAPI / f"{release}.yaml", text)

    def test_nothing_else_lies_there(self):
        """A golden file that no test reads would say nothing."""
        expected = {GOLDENS / name / f"{release}.txt" for name, release in EVERY}
        expected |= {GOLDENS / "refused" / f"{release}.txt" for release in RELEASES}
        expected |= {GOLDENS / LLMAPI / f"{release}.yaml" for release in LLMAPI_RELEASES}

        assert {path for path in GOLDENS.rglob("*") if path.is_file()} == expected


class TestTools:
    """The tools of the releases take what is planned."""

    @pytest.mark.parametrize(("name", "release"), EVERY)
    def test_the_builder_takes_the_line(self, name, release):
        """By the release's own list of flags, which our table is not made from here: names, choices, types."""
        flags = load_flags(FLAGS / f"trtllm_build_flags_{flags_release(release)}.json")
        known = {spelling for flag in flags for spelling in (flag["flag"], *flag["aliases"])}
        for engine in plan(recipe(name, release)).engines:
            program, *words = engine.steps[-1].argv
            parsed = _parse(build_parser(flags), words)

            assert program == "trtllm-build"
            # argparse would take a unique prefix, too.
            assert {word for word in words if word.startswith("--")} <= known
            assert parsed.max_batch_size == engine.spec.max_batch_size
            assert parsed.max_seq_len == engine.spec.max_seq_len
            assert parsed.use_paged_context_fmha == "enable"
            assert (parsed.speculative_decoding_mode is None) == (engine.spec.role == "draft")

    def test_flags_of_0_17_are_known_from_both_sides(self):
        """What is planned for it, a version before and one after have, too."""
        sides = [
            {flag["flag"] for flag in load_flags(FLAGS / f"trtllm_build_flags_{version}.json")}
            for version in ("0.16.0.dev2024121000", "0.21.0")
        ]
        for name in RECIPES:
            for engine in plan(recipe(name, "0.17.0.post1")).engines:
                assert {word for word in engine.steps[-1].argv if word.startswith("--")} <= sides[0] & sides[1]

    @pytest.mark.parametrize(("name", "release"), EVERY)
    def test_the_converters_take_the_line(self, name, release):
        """Where the release keeps them, with options that they have, spelled in full."""
        for engine in plan(recipe(name, release)).engines:
            for step in engine.steps[:-1]:
                python, script, *words = step.argv
                parser = _converter(script.removeprefix(EXAMPLES), release)
                parsed = _parse(parser, words)

                assert (python, script.startswith(EXAMPLES)) == ("python3", True)
                assert {word for word in words if word.startswith("--")} <= parser._option_string_actions.keys()
                assert parsed.tp_size == engine.spec.tp_size
                assert parsed.output_dir == OUTPUT

    @pytest.mark.parametrize(("name", "release"), EVERY)
    def test_what_the_tools_make_is_what_was_planned(self, name, release, tmp_path):
        """The whole chain runs in the stand-in, and the inspection of its engines finds nothing."""
        config = recipe(name, release)
        profile = profile_for(config, write_calibration(tmp_path / "texts"))
        toolchain = install_toolchain(tmp_path / "trtllm", release, gpus=config.gpu.count)
        made = sources(config, write_checkpoints(tmp_path / "checkpoints", config))

        for engine in plan_build(config, made, profile, devices=tuple(map(str, range(config.gpu.count)))).engines:
            built = play(toolchain, engine.steps, tmp_path / engine.spec.role)
            sizes = {file.name: file.stat().st_size for file in built.iterdir()}
            files = {"config.json": (built / "config.json").read_bytes()}

            assert profile.verify(engine.spec, files, sizes) == ()
            assert sizes.keys() >= set(engine.steps[-1].outputs)


def _belonging(config, made):
    if made.head is not None:
        heads = config.speculation.num_heads if config.speculation.method == "medusa" else None
        return check_head(made.target, made.head, method=config.speculation.method, num_heads=heads)
    if made.draft is None:
        return check_alone(made.target, max_seq_len=config.build.max_seq_len)
    return check_pair(
        made.target,
        made.draft,
        method=config.speculation.method,
        max_seq_len=config.build.max_seq_len,
        num_draft_tokens=config.speculation.num_draft_tokens,
        use_draft_logits=config.speculation.use_draft_logits,
        tp_sizes=(config.target.tp_size, config.draft.tp_size),
    )


def _fitness(config, planned):
    for engine in planned.engines:
        spec = engine.spec
        yield from check_fitness(
            spec.checkpoint,
            role=spec.role,
            precision=spec.precision,
            max_seq_len=config.build.max_seq_len,
            tp_size=spec.tp_size,
            pp_size=spec.pp_size,
            ep_size=spec.ep_size,
        )


def _memory(config, spec):
    return EngineMemorySpec(
        role=spec.role,
        model=ModelMemory.of(spec.checkpoint),
        precision=spec.precision,
        kv_cache=spec.kv_cache,
        tp_size=spec.tp_size,
        pp_size=spec.pp_size,
        max_num_tokens=config.tensorrt_llm.max_num_tokens,
        max_draft_tokens=max_draft_len(config.speculation) if spec.role == "target" else 0,
        head_bytes=0 if spec.head is None else spec.head.weight_bytes,
    )


def _expected_warnings(name, findings):
    """Return the one warning that a recipe carries with it: Medusa's configuration contradicts its weights."""
    return [finding for finding in findings if name == "vicuna-7b-medusa" and finding.code == "head.medusa-count"]


def _compare(path, text):
    if os.environ.get("SPECDEPLOY_UPDATE_GOLDENS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is missing; the module's docstring says how to write it"
    assert text == path.read_text(encoding="utf-8")


def _transcript(config, planned):
    """Return a plan as text, an option a line."""
    capability = ".".join(map(str, find_gpus(config).capability))
    lines = [f"# {config.name} with TensorRT-LLM {config.release}, for GPUs of compute capability {capability}"]
    for engine in planned.engines:
        place = f", on GPUs {','.join(map(str, engine.devices))}" if engine.devices else ""
        lines += ["", f"== {engine.spec.role} {engine.spec.name}{place}", f"key {engine.key}"]
        lines += [line for finding in engine.findings for line in _finding_lines(finding)]
        for number, step in enumerate(engine.steps, start=1):
            lines += ["", f"-- {number} {step.name}, GPUs: {step.gpus}", f"key {step.key}"]
            lines += [f"{name}={value}" for name, value in sorted(step.env.items())]
            lines += _grouped(step.argv)
            lines += [f"writes {' '.join(step.outputs)}"]
    return "\n".join(lines) + "\n"


def _grouped(argv):
    lines: list[str] = []
    for word in argv:
        if word.startswith("--"):
            lines.append(f"    {word}")
        elif lines:
            lines[-1] += f" {shlex.quote(word) if '{' not in word else word}"
        else:
            lines.append(word)
    return lines


def _finding_lines(finding):
    yield f"{finding.severity} {finding.code} at {finding.where}: {finding.message}"
    if finding.hint:
        yield f"    {finding.hint}"


def _parse(parser, words):
    try:
        return parser.parse_args(words)
    except SystemExit:
        pytest.fail(f"{parser.prog} refuses {shlex.join(words)}")


def _converter(script, release):
    """Return the parser of a script of the image, which lies where the release keeps it."""
    if script == "quantization/quantize.py":
        return quantize_parser()
    family = Path(script).parent.name
    assert script == f"{family_folder(release, family)}/convert_checkpoint.py"
    return converter_parser(family, release)
