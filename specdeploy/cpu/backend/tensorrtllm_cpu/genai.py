"""Loads an engine directory with ONNX Runtime GenAI and gives out sequences of it. The only module that knows it.

One ``Generator`` is one sequence: ``append_tokens`` runs one forward pass over new tokens and keeps their keys and
values, ``rewind_to`` forgets the last ones at no cost. Generators of one model share its weights; their passes do not
run at the same time, since the library holds Python's lock during a pass, nor beside those of the server's other
engines, which take turns.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime_genai as og
from tensorrtllm_cpu.faults import EngineUnusable
from tensorrtllm_cpu.turns import Turns

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

CONFIG_FILE: Final = "genai_config.json"


class GenaiModel:
    """A loaded engine.

    Args:
        engine_dir: The directory with ``genai_config.json`` and the ONNX model.
        max_seq_len: Tokens per sequence; None for the engine's context length. Each sequence reserves memory for
            all of them.

    Raises:
        EngineUnusable: The directory is missing, incomplete or damaged, or the length is more than it can do.
    """

    def __init__(self, engine_dir: Path, max_seq_len: int | None = None) -> None:
        config = _read_config(engine_dir)
        self.vocab_size = int(config["vocab_size"])
        context = int(config["context_length"])
        self.max_seq_len = context if max_seq_len is None else max_seq_len
        if self.max_seq_len > context:
            raise EngineUnusable(
                f"specdeploy_max_seq_len is {max_seq_len} and the engine {engine_dir} has a context of {context} "
                f"tokens; set it to at most {context}"
            )
        try:
            self._model = og.Model(str(engine_dir))
        except Exception as error:
            raise EngineUnusable(f"the engine {engine_dir} cannot be loaded: {error}; build it again") from error
        self._turns = Turns()

    def new_cache(self) -> GenaiCache:
        """Return an empty sequence."""
        params = og.GeneratorParams(self._model)
        params.set_search_options(max_length=self.max_seq_len, batch_size=1)
        return GenaiCache(og.Generator(self._model, params), self._turns)


class GenaiCache:
    """One sequence of a ``GenaiModel``; a ``KvCache``."""

    def __init__(self, generator: Any, turns: Turns) -> None:  # noqa: ANN401 - the library has no types
        self._generator = generator
        self._turns = turns

    def rewind(self, length: int) -> None:
        """Forget all tokens but the first ``length``."""
        self._generator.rewind_to(length)

    def append(self, ids: NDArray[np.int32]) -> None:
        """Feed ``ids``: one forward pass."""
        with self._turns.turn():
            self._generator.append_tokens(ids)

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Return ``[rows, vocab]`` after the last ``rows`` tokens; a copy of what the engine holds.

        The last row alone has a call of its own, which spares copying those of a whole prompt.
        """
        if rows == 1:
            last: NDArray[np.float32] = self._generator.get_logits()
            return last.reshape(1, -1)
        every: NDArray[Any] = self._generator.get_output("logits")
        return every[0, -rows:].astype(np.float32, copy=False)


def _read_config(engine_dir: Path) -> dict[str, Any]:
    """Return the ``model`` part of the engine's configuration, after a look at the files it names."""
    path = engine_dir / CONFIG_FILE
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["model"]
        network = engine_dir / config["decoder"]["filename"]
        _ = int(config["vocab_size"]), int(config["context_length"])
    except FileNotFoundError as error:
        raise EngineUnusable(f"there is no engine in {engine_dir}: {path} is missing; build it first") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineUnusable(f"{path} is damaged: {error!r}; build the engine again") from error
    if not network.is_file():
        raise EngineUnusable(f"the engine in {engine_dir} is incomplete: {network} is missing; build it again")
    return config
