"""The stand-in toolchain as its users meet it: installed into a folder, run as processes, failing on demand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.toolchain import install_toolchain, read_calls, set_faults
from tests.toolchain.safetensors_file import read_header
from tests.unit.toolchain.runs import document, main_build, main_convert, names, run, write_model, write_source

_GPU_QUERY = ("--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader,nounits")


@pytest.fixture
def toolchain(tmp_path):
    """A toolchain of the last release, on a machine with one GPU."""
    return install_toolchain(tmp_path / "trtllm", "1.2.1")


@pytest.fixture
def source(tmp_path):
    """A Hugging Face folder."""
    return write_source(tmp_path / "source")


class TestLayout:
    """Where things lie, and what is refused."""

    @pytest.mark.parametrize(
        ("release", "llama", "falcon"),
        [
            ("0.17.0.post1", "llama", "falcon"),
            ("0.19.0", "llama", "falcon"),
            ("0.20.0", "models/core/llama", "models/contrib/falcon"),
            ("1.2.1", "models/core/llama", "models/contrib/falcon"),
        ],
    )
    def test_converters_lie_where_the_release_keeps_them(self, tmp_path, release, llama, falcon):
        """Model families moved in 0.20; the converters for heads and quantize.py never did."""
        toolchain = install_toolchain(tmp_path, release)
        found = {str(path.parent.relative_to(toolchain.examples)) for path in toolchain.examples.rglob("*.py")}
        core = {llama.replace("llama", family) for family in ("llama", "qwen", "gemma", "gpt", "phi")}
        assert found == core | {falcon, "medusa", "eagle", "redrafter", "quantization"}
        assert toolchain.converter("falcon").is_file()
        assert toolchain.quantizer.is_file()

    @pytest.mark.parametrize("release", ["0.15.0", "1.3.0rc22"])
    def test_a_release_outside_the_engine_flow_is_refused(self, tmp_path, release):
        """Nobody tests by mistake against a release that is not played."""
        with pytest.raises(ValueError, match=release):
            install_toolchain(tmp_path, release)

    def test_a_fault_that_there_is_not_is_refused(self, tmp_path):
        """A misspelt fault would make a test pass for nothing."""
        with pytest.raises(ValueError, match="no such fault"):
            install_toolchain(tmp_path, "1.2.1", faults={"trtllm-build": "out_of_memroy"})

    def test_the_programs_need_a_bare_python_and_may_be_moved(self, toolchain, source, tmp_path):
        """Nothing of the checkout or of the environment is needed, and no path is written into the programs."""
        moved = toolchain.root.rename(tmp_path / "elsewhere")
        done = subprocess.run(
            [
                *(sys.executable, "-I", "-S", moved / toolchain.converter("llama").relative_to(toolchain.root)),
                *("--model_dir", source, "--output_dir", tmp_path / "checkpoint"),
            ],
            cwd="/",
            env={},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert names(tmp_path / "checkpoint") == {"config.json", "rank0.safetensors"}


class TestEndToEnd:
    """Conversion and build, one after the other."""

    def test_plain_conversion_and_build_over_two_by_two_ranks(self, toolchain, source, tmp_path):
        """A checkpoint of four ranks becomes four engines; the first stages take the layers that do not divide."""
        checkpoint, engine = tmp_path / "checkpoint", tmp_path / "engine"
        arguments = ("--model_dir", source, "--output_dir", checkpoint, "--tp_size", "2", "--pp_size", "2")
        done = run(toolchain, sys.executable, toolchain.converter("llama"), *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert names(checkpoint) == {"config.json", *(f"rank{rank}.safetensors" for rank in range(4))}
        first, last = read_header(checkpoint / "rank1.safetensors"), read_header(checkpoint / "rank2.safetensors")
        assert "transformer.vocab_embedding.weight" in first
        assert "transformer.layers.1.mlp.gate.weight" in first
        assert {"transformer.ln_f.weight", "lm_head.weight"} <= last.keys()
        assert not any(name.startswith("transformer.layers.1.") for name in last)
        done = run(toolchain, "trtllm-build", "--checkpoint_dir", checkpoint, "--output_dir", engine, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert names(engine) == {"config.json", *(f"rank{rank}.engine" for rank in range(4))}
        assert len({(engine / f"rank{rank}.engine").read_bytes() for rank in range(4)}) == 4
        record = document(engine)
        assert record["version"] == "1.2.1"
        assert record["pretrained_config"]["mapping"]["world_size"] == 4
        assert record["pretrained_config"]["dtype"] == "float16"  # of float32, "auto" makes float16
        assert record["build_config"]["kv_cache_type"] == "PAGED"
        assert record["build_config"]["speculative_decoding_mode"] == 1
        assert record["build_config"]["plugin_config"]["gpt_attention_plugin"] == "auto"
        assert record["build_config"]["plugin_config"]["nccl_plugin"] == "float16"
        assert (tmp_path / "model.cache").is_file()  # the default lands in the working directory

    @pytest.mark.parametrize("release", ["0.17.0", "1.2.1"])
    def test_medusa(self, source, tmp_path, release):
        """The draft length comes from the checkpoint; the head's own count of heads does not overrule the flag."""
        toolchain = install_toolchain(tmp_path / "trtllm", release)
        head = write_source(tmp_path / "head", medusa_num_heads=2, medusa_num_layers=1)
        arguments = ("--model_dir", source, "--medusa_model_dir", head, "--num_medusa_heads", 4)
        checkpoint = self._convert(toolchain, "medusa", tmp_path, *arguments, "--max_medusa_token_len", 31)
        assert "medusa_heads.3.medusa_layers.0.linear.weight" in read_header(checkpoint / "rank0.safetensors")
        build = self._build(toolchain, checkpoint, tmp_path, "--speculative_decoding_mode", "medusa")
        assert (build["max_draft_len"], build["speculative_decoding_mode"]) == (31, 4)
        assert build["max_seq_len"] == 512 + 31

    def test_eagle(self, toolchain, source, tmp_path):
        """The sequence grows by the draft length and by the depth; paged context FMHA is forced on."""
        head = write_source(tmp_path / "head", num_hidden_layers=1)
        arguments = ("--model_dir", source, "--eagle_model_dir", head, "--num_eagle_layers", 4)
        checkpoint = self._convert(toolchain, "eagle", tmp_path, *arguments, "--max_draft_len", 63)
        assert document(checkpoint)["eagle_net_config"]["num_hidden_layers"] == 1
        flags = ("--speculative_decoding_mode", "eagle", "--max_batch_size", 4, "--use_paged_context_fmha", "disable")
        build = self._build(toolchain, checkpoint, tmp_path, *flags)
        assert (build["max_seq_len"], build["speculative_decoding_mode"]) == (512 + 63 + 4, 32)
        assert build["plugin_config"]["use_paged_context_fmha"] is True

    def test_redrafter(self, toolchain, source, tmp_path):
        """Mode and draft length follow from the checkpoint, whatever the command line says."""
        head = write_source(tmp_path / "head", num_draft_layers=2, exit_dim=128, rnn=True)
        base = tmp_path / "base"
        assert main_convert(toolchain, "llama", "--model_dir", source, "--output_dir", base) == 0
        arguments = ("--base_model_checkpoint_dir", base, "--drafter_model_dir", head, "--redrafter_num_beams", 3)
        checkpoint = self._convert(toolchain, "redrafter", tmp_path, *arguments)
        assert "drafter.rnn_u.weight" in read_header(checkpoint / "rank0.safetensors")
        build = self._build(toolchain, checkpoint, tmp_path, "--max_draft_len", 1)
        assert (build["max_draft_len"], build["speculative_decoding_mode"]) == (3 * 5, 16)

    def test_lookahead(self, toolchain, source, tmp_path):
        """An ordinary checkpoint, with the draft length of the window."""
        checkpoint = self._convert(toolchain, "llama", tmp_path, "--model_dir", source)
        flags = ("--speculative_decoding_mode", "lookahead_decoding", "--max_draft_len", 83)
        build = self._build(toolchain, checkpoint, tmp_path, *flags, "--max_batch_size", 256)
        assert (build["max_draft_len"], build["speculative_decoding_mode"]) == (83, 8)
        assert build["max_num_tokens"] == 256 * 84

    @staticmethod
    def _convert(toolchain, family, tmp_path, *arguments):
        assert main_convert(toolchain, family, *arguments, "--output_dir", tmp_path / "checkpoint") == 0
        return tmp_path / "checkpoint"

    @staticmethod
    def _build(toolchain, checkpoint, tmp_path, *arguments):
        flags = ("--checkpoint_dir", checkpoint, "--output_dir", tmp_path / "engine")
        assert main_build(toolchain, *flags, *arguments) == 0
        assert names(tmp_path / "engine") == {"config.json", "rank0.engine"}
        return document(tmp_path / "engine")["build_config"]


class TestGpus:
    """GPUs that are there, hidden or missing."""

    def test_nvidia_smi_answers_one_line_a_gpu(self, tmp_path):
        """The query of the toolkit gets name, memory, driver and compute capability, comma-separated."""
        toolchain = install_toolchain(tmp_path, "1.0.0", gpus=2, gpu_name="NVIDIA L4", compute_capability="8.9")
        done = run(toolchain, "nvidia-smi", *_GPU_QUERY, cwd=tmp_path, CUDA_VISIBLE_DEVICES="0")
        assert (done.returncode, done.stdout) == (0, 2 * "NVIDIA L4, 23034, 575.57.08, 8.9\n")
        done = run(toolchain, "nvidia-smi", "--query-gpu=nme", "--format=csv", cwd=tmp_path)
        assert (done.returncode, "is not a valid field" in done.stdout) == (2, True)

    def test_without_a_gpu_only_conversion_works(self, source, tmp_path):
        """The builder fails before it looks at the checkpoint, leaving an empty folder; nvidia-smi fails too."""
        toolchain = install_toolchain(tmp_path / "trtllm", "1.2.1", gpus=0)
        flags = ("--checkpoint_dir", tmp_path / "missing", "--output_dir", tmp_path / "engine", "--dry_run")
        done = run(toolchain, "trtllm-build", *flags, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.endswith("AssertionError: Torch not compiled with CUDA enabled\n")
        assert names(tmp_path / "engine") == set()
        assert run(toolchain, "nvidia-smi", *_GPU_QUERY, cwd=tmp_path).returncode == 9
        assert main_convert(toolchain, "llama", "--model_dir", source, "--output_dir", tmp_path / "checkpoint") == 0

    @pytest.mark.parametrize("devices", ["", "-1", "1", "x,0"])
    def test_devices_that_are_hidden_are_not_there(self, toolchain, tmp_path, monkeypatch, devices):
        """CUDA_VISIBLE_DEVICES counts as CUDA counts it: the first invalid entry ends the list."""
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
            main_build(toolchain, "--checkpoint_dir", tmp_path, "--output_dir", tmp_path / "engine")

    def test_0_17_can_be_told_the_cluster_and_still_needs_a_gpu(self, tmp_path):
        """--cluster_key passes the first question for a GPU and fails at the second."""
        toolchain = install_toolchain(tmp_path / "trtllm", "0.17.0", gpus=0)
        with pytest.raises(ValueError, match="max_workers must be greater than 0"):
            main_build(toolchain, "--cluster_key", "H100-SXM", "--output_dir", tmp_path / "engine")

    def test_a_container_without_its_gpus_has_no_driver(self, toolchain, tmp_path):
        """The fault that a missing ``--gpus all`` causes, with torch's words for it."""
        set_faults(toolchain, {"trtllm-build": "no_driver"})
        with pytest.raises(RuntimeError, match="Found no NVIDIA driver on your system"):
            main_build(toolchain, "--checkpoint_dir", tmp_path, "--output_dir", tmp_path / "engine")


class TestCalls:
    """The record of what ran."""

    def test_every_call_is_recorded_even_one_that_is_refused(self, toolchain, tmp_path, monkeypatch):
        """What ran can be read back: tool, arguments, working directory and the variables that matter."""
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        assert read_calls(toolchain) == []
        done = run(toolchain, "trtllm-build", "--no_such_flag", cwd=tmp_path, SLURM_JOB_ID="17")
        assert done.returncode == 2
        assert "error: unrecognized arguments: --no_such_flag" in done.stderr
        (call,) = read_calls(toolchain)
        assert (call["tool"], call["argv"]) == ("trtllm-build", ["--no_such_flag"])
        assert (call["cwd"], call["env"]) == (str(tmp_path), {"SLURM_JOB_ID": "17"})


class TestFaults:
    """Every way to fail, and what it leaves behind."""

    @pytest.fixture
    def checkpoint(self, toolchain, source, tmp_path):
        """A converted checkpoint of two ranks."""
        arguments = ("--model_dir", source, "--tp_size", 2, "--output_dir", tmp_path / "checkpoint")
        main_convert(toolchain, "llama", *arguments)
        return tmp_path / "checkpoint"

    def _build(self, toolchain, checkpoint, fault):
        set_faults(toolchain, {"trtllm-build": fault})
        flags = ("--checkpoint_dir", checkpoint, "--output_dir", checkpoint.parent / "engine")
        return run(toolchain, "trtllm-build", *flags, cwd=checkpoint.parent), checkpoint.parent / "engine"

    def test_out_of_memory(self, toolchain, checkpoint):
        """A traceback that ends in torch's words, exit 1, nothing written."""
        done, engine = self._build(toolchain, checkpoint, "out_of_memory")
        assert done.returncode == 1
        assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in done.stderr
        assert names(engine) == set()

    def test_killed_half_way(self, toolchain, checkpoint):
        """SIGKILL between two ranks: the configuration and the first engine are there."""
        done, engine = self._build(toolchain, checkpoint, "killed_half_way")
        assert done.returncode == -9
        assert names(engine) == {"config.json", "rank0.engine"}

    def test_killed_half_way_through_the_only_rank(self, toolchain, source, tmp_path):
        """With one rank it dies in the middle of its file, which no reader takes for whole."""
        set_faults(toolchain, {"convert_checkpoint.py": "killed_half_way"})
        arguments = ("--model_dir", source, "--output_dir", tmp_path / "checkpoint")
        assert run(toolchain, toolchain.converter("llama"), *arguments, cwd=tmp_path).returncode == -9
        assert names(tmp_path / "checkpoint") == {"rank0.safetensors"}
        with pytest.raises(Exception, match="Error while deserializing header"):
            read_header(tmp_path / "checkpoint" / "rank0.safetensors")

    def test_wrong_exit_code(self, toolchain, checkpoint):
        """All is written, and the exit code says otherwise."""
        done, engine = self._build(toolchain, checkpoint, "wrong_exit_code")
        assert done.returncode == 3
        assert names(engine) == {"config.json", "rank0.engine", "rank1.engine"}

    def test_success_without_file(self, toolchain, checkpoint):
        """It says that all went well, and wrote the configuration alone."""
        done, engine = self._build(toolchain, checkpoint, "success_without_file")
        assert (done.returncode, "Total time of building all engines" in done.stdout) == (0, True)
        assert names(engine) == {"config.json"}

    def test_no_paged_fmha(self, toolchain, checkpoint):
        """The record says that paged context FMHA is off, although it was asked for."""
        done, engine = self._build(toolchain, checkpoint, "no_paged_fmha")
        assert done.returncode == 0
        assert document(engine)["build_config"]["plugin_config"]["use_paged_context_fmha"] is False

    @pytest.mark.parametrize(("fault", "version"), [("other_version", "0.16.0"), ("other_version:1.0.0", "1.0.0")])
    def test_other_version(self, toolchain, checkpoint, fault, version):
        """Another release is recorded than the one that ran."""
        done, engine = self._build(toolchain, checkpoint, fault)
        assert (done.returncode, document(engine)["version"]) == (0, version)

    def test_fail_once(self, toolchain, checkpoint):
        """The first call fails as a network file system does, the second works."""
        done, engine = self._build(toolchain, checkpoint, "fail_once")
        assert (done.returncode, "Stale file handle" in done.stderr) == (1, True)
        done, engine = self._build(toolchain, checkpoint, "fail_once")
        assert (done.returncode, "rank1.engine" in names(engine)) == (0, True)

    def test_slow_until_told(self, toolchain, checkpoint, tmp_path):
        """It prints while it waits for its file, and then does its work."""
        set_faults(toolchain, {"trtllm-build": f"slow:{tmp_path / 'go'}"})
        flags = ["--checkpoint_dir", checkpoint, "--output_dir", tmp_path / "engine"]
        command = [toolchain.bin / "trtllm-build", *flags]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            try:
                for _ in range(3):
                    _wait_for_work(process)
                assert not (tmp_path / "engine" / "config.json").exists()
                (tmp_path / "go").touch()
                process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 0
        assert "rank1.engine" in names(tmp_path / "engine")

    def test_slow_can_be_interrupted(self, toolchain, checkpoint, tmp_path):
        """A terminated build ends at once and leaves no engine."""
        set_faults(toolchain, {"trtllm-build": "slow"})
        command = [toolchain.bin / "trtllm-build", "--checkpoint_dir", checkpoint, "--output_dir", tmp_path / "engine"]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            try:
                _wait_for_work(process)
                process.terminate()
                process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == -15
        assert names(tmp_path / "engine") == set()


def _wait_for_work(process):
    """Read up to the next line of a slow tool; the pipe ends with the process, so this does, too."""
    assert any("working" in line for line in process.stdout)


def test_the_same_inputs_make_the_same_engine(toolchain, tmp_path):
    """Engines can be compared: equal inputs, equal bytes; one changed number, other bytes."""
    checkpoint = write_model(tmp_path / "model", toolchain)
    engines = []
    for index, length in enumerate((128, 128, 256)):
        flags = ("--checkpoint_dir", checkpoint, "--output_dir", tmp_path / str(index), "--max_seq_len", length)
        main_build(toolchain, *flags)
        engines.append((tmp_path / str(index) / "rank0.engine").read_bytes())
    assert engines[0] == engines[1] != engines[2]
    assert 2000 < len(engines[0]) < 10000
