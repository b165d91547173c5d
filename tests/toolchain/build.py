"""``trtllm-build``: a TensorRT-LLM checkpoint becomes an engine folder, on a machine with a GPU."""

from __future__ import annotations

import copy
import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.toolchain.build_config import from_arguments, from_keyed_file, from_pydantic_file, plugin_config
from tests.toolchain.checkpoint import read_config, read_rank
from tests.toolchain.console import Console, took
from tests.toolchain.faults import Faults
from tests.toolchain.flags import build_parser, load_flags
from tests.toolchain.machine import Machine
from tests.toolchain.release import has_pydantic_build_config, infers_cluster_first
from tests.toolchain.rewrites import check_plugins, rewrite
from tests.toolchain.safetensors_file import zeros

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

TOOL: Final = "trtllm-build"
FLAGS: Final = "flags.json"
_ENGINE_BLOCKS: Final = 128  # of 32 bytes


def main(argv: Sequence[str], root: Path) -> int:
    """Run the builder of the toolchain in ``root``; return its exit code."""
    machine, faults = Machine.load(root), Faults(root, TOOL)
    machine.record_call(TOOL, argv)
    print(f"[TensorRT-LLM] TensorRT-LLM version: {machine.release}", flush=True)
    flags = load_flags(root / FLAGS)
    parser = build_parser(flags)
    args = parser.parse_args(argv)
    start, console = time.monotonic(), Console(args.log_level)
    _check_logits(args, console)
    # The real tool makes the folder this early, too: it is there, and empty, after almost any failure.
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    faults.start()
    _require_gpu(args, machine, faults)
    plugins = plugin_config(args, flags)
    for name, value in plugins.items():
        console.info(f"Set {name} to {value}.")
    if plugins["paged_kv_cache"] is not None:
        console.warning("Option --paged_kv_cache is deprecated, use --kv_cache_type=paged/disabled instead.")
    check_plugins(plugins, machine.sm)
    config_path, weights = _checkpoint(args)
    model = read_config(config_path, console)
    if args.build_config is None:
        request = from_arguments(args, plugins, machine)
    elif has_pydantic_build_config(machine.release):
        request = from_pydantic_file(args.build_config, plugin_config(parser.parse_args([]), flags))
    else:
        request = from_keyed_file(args.build_config, plugins)
    _build_all(args, model, request, weights, _Site(machine, faults, console))
    console.info(f"Total time of building all engines: {took(start)}")
    return faults.exit_code


class _Site:
    """What every rank's build needs beside its inputs."""

    def __init__(self, machine: Machine, faults: Faults, console: Console) -> None:
        self.machine, self.faults, self.console = machine, faults, console


def _check_logits(args: argparse.Namespace, console: Console) -> None:
    if hasattr(args, "gather_generation_logits"):  # always: it has a default
        console.warning(
            "Option --gather_generation_logits is deprecated, a build flag is not required anymore. Use "
            "--output_generation_logits at runtime instead."
        )
    if args.gather_all_token_logits:
        args.gather_context_logits = args.gather_generation_logits = True
    if args.gather_context_logits and args.max_draft_len > 0:
        raise RuntimeError(
            "Gather context logits is not support with draft len > 0. If want to get the accepted tokens' logits from "
            "target model, please just enable gather_generation_logits"
        )


def _require_gpu(args: argparse.Namespace, machine: Machine, faults: Faults) -> None:
    """Fail without a GPU, ``--dry_run`` or not, before any file of the checkpoint is read."""
    if infers_cluster_first(machine.release) and args.cluster_key and machine.visible_gpus() == 0:
        raise ValueError("max_workers must be greater than 0")
    machine.require_cuda(driver=faults.driver)


def _checkpoint(args: argparse.Namespace) -> tuple[Path, Path | None]:
    """Return the configuration file, and the folder of the weights or None when only a configuration was given."""
    given = args.checkpoint_dir if args.checkpoint_dir is not None else args.model_config
    if given is None:
        raise AttributeError("'NoneType' object has no attribute 'lower'")
    if given.lower().endswith(".json"):
        return Path(given), None
    return Path(given) / "config.json", Path(given)


def _build_all(
    args: argparse.Namespace, model: dict[str, Any], request: dict[str, Any], weights: Path | None, site: _Site
) -> None:
    """Build rank after rank; that ``--workers`` builds several at once makes no difference to what is written."""
    ranks = model["mapping"]["world_size"]
    if args.logits_dtype is not None:
        model = {**model, "logits_dtype": args.logits_dtype}
    if request.get("auto_parallel_config", {}).get("world_size", 1) > 1 and ranks > 1:
        raise RuntimeError("manually TP and PP are not supported in auto parallel mode.")
    for rank in range(ranks):
        data = read_rank(weights, model, rank) if weights else b""
        built = copy.deepcopy(request)
        rewrite(built, model, site.machine.sm, site.console)
        if site.faults.drops_paged_fmha:
            built["plugin_config"]["use_paged_context_fmha"] = False
        record = {
            "version": site.faults.version(site.machine.release),
            "pretrained_config": model,
            "build_config": built,
        }
        site.faults.allocate()
        _save(args, record, data, rank, site)


def _save(args: argparse.Namespace, record: dict[str, Any], weights: bytes, rank: int, site: _Site) -> None:
    output, ranks = Path(args.output_dir), record["pretrained_config"]["mapping"]["world_size"]
    if rank == 0:
        _write_timing_cache(record["build_config"]["output_timing_cache"], site)
        (output / "config.json").write_text(json.dumps(record, indent=4), encoding="utf-8")
    if not args.dry_run:
        path = output / f"rank{rank}.engine"
        site.console.info(f"Serializing engine to {path}...")
        site.faults.write_rank(path, _engine(record, weights, rank), rank=rank, ranks=ranks)
        site.console.info("Engine serialized. Total time: 00:00:00")
    if record["build_config"]["plugin_config"]["manage_weights"]:
        managed = zeros(["transformer.vocab_embedding.weight"], record["pretrained_config"]["dtype"])
        (output / f"rank{rank}_managed_weights.safetensors").write_bytes(managed)


def _write_timing_cache(path: str | None, site: _Site) -> None:
    """Write the timing cache; its default path is relative to the working directory."""
    if path is not None:
        Path(path).write_bytes(b"timing cache of " + site.machine.gpu_name.encode())
        site.console.info(f"Timing cache serialized to {path}")


def _engine(record: dict[str, Any], weights: bytes, rank: int) -> bytes:
    """Return an engine: the same inputs, the same bytes."""
    # Where the cache goes is recorded, but is no property of the engine.
    build = {name: value for name, value in record["build_config"].items() if not name.endswith("timing_cache")}
    inputs = json.dumps([record | {"build_config": build}, rank], sort_keys=True).encode() + weights
    seed = hashlib.sha256(inputs).digest()
    blocks = (hashlib.sha256(seed + index.to_bytes(4, "little")).digest() for index in range(_ENGINE_BLOCKS))
    return b"ftrt" + b"".join(blocks)
