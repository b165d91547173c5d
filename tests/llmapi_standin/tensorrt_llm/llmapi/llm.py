"""``LLM`` and ``RequestOutput``: what is accepted, when, and how a result grows.

The model folder holds ``table.json`` in place of weights: see :mod:`tensorrt_llm.table`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tensorrt_llm.llmapi.llm_utils import DecodingConfig
from tensorrt_llm.sampling_params import SamplingParams
from tensorrt_llm.table import Engine, Report

_ARGUMENTS = frozenset(
    {
        "backend",
        "disable_overlap_scheduler",
        "dtype",
        "guided_decoding_backend",
        "kv_cache_config",
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "moe_expert_parallel_size",
        "pipeline_parallel_size",
        "sampler_type",
        "speculative_config",
        "tensor_parallel_size",
        "tokenizer",
    }
)


class RequestError(RuntimeError):
    """A request that failed or was refused; the real one is in ``tensorrt_llm.executor.utils``."""


@dataclass(slots=True)
class Logprob:
    """The log probability of one token."""

    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One sequence; ``token_ids`` and ``logprobs`` grow in place."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    request_perf_metrics: Any = None


class RequestOutput:
    """The result of one request, made by ``LLM`` only; it yields itself after every report of the engine."""

    def __init__(self) -> None:
        raise RuntimeError("RequestOutput is designed to be instantiated by the LLM only")

    @classmethod
    def _make(cls, llm: LLM, request_id: int, prompt: list[int], sampling: SamplingParams) -> RequestOutput:
        result = cls.__new__(cls)
        result._llm = llm
        result.request_id = request_id
        result.prompt_token_ids = prompt
        result.sampling_params = sampling
        result.outputs = [CompletionOutput(0)]
        result.decoding_iter = 0
        result._done = False
        result._queue = asyncio.Queue()
        result._loop = asyncio.get_running_loop()
        return result

    @property
    def finished(self) -> bool:
        """Whether the last report is in."""
        return self._done

    def abort(self) -> None:
        """Tell the engine to end this request; its last report says ``cancelled``."""
        self._llm.engine.abort(self.request_id)

    def __aiter__(self) -> RequestOutput:
        """Return itself."""
        return self

    async def __anext__(self) -> RequestOutput:
        """Wait for a report and take it in."""
        if self._done:
            raise StopAsyncIteration
        self._take(await self._queue.get())
        return self

    async def aresult(self) -> RequestOutput:
        """Wait for the last report."""
        while not self._done:
            self._take(await self._queue.get())
        return self

    def report(self, report: Report) -> None:
        """Take a report from the engine's thread."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, report)

    def _take(self, report: Report) -> None:
        if report.error:
            raise RequestError(report.error)
        output = self.outputs[0]
        output.token_ids.extend(report.ids)
        self.decoding_iter = report.iterations
        if self.sampling_params.logprobs:
            output.logprobs.extend({token: Logprob(-0.5, 1)} for token in report.ids)
        if report.finish_reason:
            self._done = True
            output.finish_reason = report.finish_reason
            if self.sampling_params.return_perf_metrics:
                self._fill(output, report)

    def _fill(self, output: CompletionOutput, report: Report) -> None:
        accepted, drafted = report.totals
        counted = {"total_accepted_draft_tokens": accepted, "total_draft_tokens": drafted}
        if self._llm.table["metrics"] == "zeros":
            counted = dict.fromkeys(counted, 0)
        rate = accepted / drafted if drafted else 0.0
        output.request_perf_metrics = SimpleNamespace(
            speculative_decoding=SimpleNamespace(acceptance_rate=rate, **counted)
        )
        if self._llm.table["metrics"] == "positions":
            self.spec_dec_totals = report.totals
            self.per_pos_drafted = report.per_pos_drafted
            self.per_pos_accepted = report.per_pos_accepted


class LLM:
    """The engine behind the LLM API."""

    def __init__(self, model: str | Path, *, skip_tokenizer_init: bool = False, **arguments: Any) -> None:
        unknown = sorted(arguments.keys() - _ARGUMENTS)
        if unknown:
            raise ValueError(
                f"{len(unknown)} validation error for TorchLlmArgs\n{unknown[0]}\n  Extra inputs are not permitted"
            )
        speculation = arguments.get("speculative_config")
        if speculation is not None and not isinstance(speculation, DecodingConfig):
            raise ValueError("speculative_config must be a decoding config, not a mapping")
        for folder in filter(None, (model, getattr(speculation, "speculative_model_dir", None))):
            if not (Path(folder) / "table.json").is_file():
                raise RuntimeError(f"Failed to load weights\n  from {folder}")
        self._folder = Path(model)
        self.table = json.loads((self._folder / "table.json").read_text(encoding="utf-8"))
        self.tokenizer = None if skip_tokenizer_init else SimpleNamespace(eos_token_id=0)
        self._max_num_tokens = arguments.get("max_num_tokens") or 8192
        self.engine = Engine(
            self.table,
            drafts=0 if speculation is None else speculation.max_draft_len,
            slots=arguments.get("max_batch_size") or 2048,
        )
        self._numbers = itertools.count(1)

    def generate_async(
        self, inputs: list[int], sampling_params: SamplingParams | None = None, *, streaming: bool = False
    ) -> RequestOutput:
        """Hand one request to the engine."""
        if self.engine.closed:
            raise RuntimeError("LLM is shutting down")
        if not isinstance(sampling_params, SamplingParams):
            raise TypeError(f"The sampling_params must be type SamplingParams, but got {type(sampling_params)}")
        if sampling_params.end_id is None and self.tokenizer is None:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        if (sampling_params.stop or sampling_params.bad) and self.tokenizer is None:
            raise RuntimeError("SamplingParams.stop is not processed by tokenizer, please call the setup method.")
        if not (isinstance(inputs, list) and inputs and all(type(token) is int for token in inputs)):
            raise TypeError(f"The inputs must be type str or list of int, but got {type(inputs)}")
        if len(inputs) > self._max_num_tokens:
            raise RequestError(
                f"The sum of prompt length ({len(inputs)}), query length (0) should not exceed max_num_tokens "
                f"({self._max_num_tokens})"
            )
        result = RequestOutput._make(self, next(self._numbers), inputs, sampling_params)
        thread = threading.Thread(
            target=self.engine.serve, args=(result.request_id, inputs, sampling_params, streaming, result.report)
        )
        thread.daemon = True
        thread.start()
        return result

    def shutdown(self) -> None:
        """End the engine; a file beside the table says so to a test."""
        self.engine.closed = True
        (self._folder / "shut-down").touch()
