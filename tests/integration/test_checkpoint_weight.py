"""Reading a checkpoint is light, in packages and in time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "numpy", "yaml", "onnx"}


def test_reading_and_comparing_need_no_heavy_package():
    """A 70B checkpoint is understood on a machine that has none of them."""
    code = "import sys, specdeploy.checkpoint.read, specdeploy.checkpoint.compat; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
    )

    assert not HEAVY & set(done.stdout.split())


def test_reading_opens_no_more_than_headers_and_samples(tmp_path):
    """The bytes read do not grow with the weights: a gigabyte (sparse on disk) costs what little does."""
    script = (
        "import json, sys\nfrom pathlib import Path\n"
        "from specdeploy.checkpoint.safetensors import read_weight_file\n"
        "def read(): return int(open('/proc/self/io').read().split()[1])\n"
        "header = json.dumps({'a': {'dtype': 'U8', 'shape': [1 << 30], 'data_offsets': [0, 1 << 30]}}).encode()\n"
        "path = Path(sys.argv[1])\n"
        "with path.open('wb') as file:\n"
        "    file.write(len(header).to_bytes(8, 'little') + header)\n"
        "    file.truncate(8 + len(header) + (1 << 30))\n"
        "before = read()\n"
        "read_weight_file(path)\n"
        "print(read() - before)\n"
    )
    argv = [sys.executable, "-c", script, str(tmp_path / "model.safetensors")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT)

    assert 2 * 64 * 1024 <= int(done.stdout) < 1024 * 1024
