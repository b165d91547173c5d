"""A language model that is a table, the caches it gives out, and a job that keeps its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tensorrtllm_cpu.engine import SlotPool
from tensorrtllm_cpu.inputs import Limits, read_request
from tensorrtllm_cpu.scheduler import Scheduler

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tensorrtllm_cpu.generation import Answer
    from tensorrtllm_cpu.inputs import GenerationRequest

MAX_SEQ_LEN = 64


class TableModel:
    """The logits of the next token depend on the last two; ``caches`` are those it has given out."""

    def __init__(self, *, vocab: int = 7, seed: int = 0, spread: float = 2.0) -> None:
        self.vocab = vocab
        self.table = (np.random.default_rng(seed).standard_normal((vocab, vocab, vocab)) * spread).astype(np.float32)
        self.caches: list[TableCache] = []
        self.poison: int | None = None
        self.order: list[TableCache] = []

    def new_cache(self) -> TableCache:
        """Return an empty sequence."""
        self.caches.append(TableCache(self))
        return self.caches[-1]

    def row(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the logits after ``ids``."""
        before, last = ([0, 0, *ids])[-2:]
        return self.table[before, last]

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """Return the ``count`` most likely next tokens, one plain step after the other."""
        new: list[int] = []
        for _ in range(count):
            new.append(int(np.argmax(self.row([*ids, *new]))))
        return new


class TableCache:
    """A ``KvCache``: it knows only what was fed and not rewound, so a wrong rewind gives wrong logits."""

    def __init__(self, model: TableModel) -> None:
        self.model = model
        self.ids: list[int] = []
        self.passes: list[int] = []
        self._rows: list[NDArray[np.float32]] = []

    def rewind(self, length: int) -> None:
        """Forget all but ``length`` tokens."""
        assert length <= len(self.ids)
        del self.ids[length:]

    def append(self, ids: NDArray[np.int32]) -> None:
        """Feed tokens."""
        assert len(ids)
        if self.model.poison in ids.tolist():
            raise RuntimeError("the network failed")
        self.passes.append(len(ids))
        self.model.order.append(self)
        self._rows = []
        for token in ids.tolist():
            self.ids.append(token)
            self._rows.append(self.model.row(self.ids))

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Return the last rows."""
        assert rows <= len(self._rows)
        return np.stack(self._rows[-rows:])


class KeptJob:
    """A ``Job`` that keeps what it is answered with."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.answers: list[Answer] = []
        self.errors: list[Exception] = []
        self.abandoned = 0
        self.ended = 0
        self.gone = False
        self.asked = 0

    def cancelled(self) -> bool:
        """Say what the test decided."""
        self.asked += 1
        return self.gone

    def respond(self, answer: Answer, *, final: bool) -> None:
        """Keep an answer."""
        self.answers.append(answer)
        self.ended += final

    def fail(self, error: Exception) -> None:
        """Keep an error."""
        self.errors.append(error)
        self.ended += 1

    def abandon(self) -> None:
        """Count an end without an answer."""
        self.abandoned += 1
        self.ended += 1

    @property
    def ids(self) -> list[int]:
        """All ids that were answered."""
        return [token for answer in self.answers for token in answer.ids.tolist()]


class TableEngine:
    """A table model behind slots and a scheduler, driven turn by turn by the test."""

    def __init__(self, model: TableModel | None = None, *, slots: int = 2, reuse: bool = True, chunk: int = 8) -> None:
        self.model = model or TableModel()
        self.limits = Limits(vocab_size=self.model.vocab, max_seq_len=MAX_SEQ_LEN, decoupled=True)
        self.now = 0.0
        pool = SlotPool(self.model.new_cache, count=slots, capacity=MAX_SEQ_LEN, reuse=reuse)
        self.scheduler = Scheduler(pool, prefill_chunk=chunk, clock=lambda: self.now)

    def job(self, prompt: list[int], count: int, **inputs: object) -> KeptJob:
        """Return a job for ``count`` tokens after ``prompt``, not submitted yet."""
        tensors = {"input_ids": prompt, "input_lengths": [len(prompt)], "request_output_len": [count], **inputs}
        arrays = {name: np.asarray(value)[None] for name, value in tensors.items() if value is not None}
        return KeptJob(read_request(arrays, self.limits))

    def submit(self, prompt: list[int], count: int, **inputs: object) -> KeptJob:
        """Submit a job."""
        job = self.job(prompt, count, **inputs)
        self.scheduler.submit(job)
        return job

    def run(self, prompt: list[int], count: int, **inputs: object) -> KeptJob:
        """Submit a job and take turns until all is done."""
        job = self.submit(prompt, count, **inputs)
        self.drain()
        return job

    def drain(self) -> None:
        """Take turns until there is nothing to do."""
        while self.scheduler.turn():
            pass
