"""A run as a seeded simulation would have measured it: records without a server, for statistics, gate and report."""

from __future__ import annotations

import dataclasses
import random

from specdeploy.bench.load_report import RunContext, build_load_report
from specdeploy.bench.prompts import load_bundled
from specdeploy.bench.records import CONTROL, LoadRun, RequestRecord
from specdeploy.bench.schedule import LoadSettings, plan_load


def record(**changes) -> RequestRecord:
    """One good request: sent at 0, four responses of 1, 2, 2 and 2 tokens at 0.1, 0.2, 0.3 and 0.4 s."""
    values = {
        "arm": "speculation",
        "pair": 0,
        "index": 0,
        "concurrency": 1,
        "prompt_id": "prompt",
        "category": "python",
        "intended_s": 0.0,
        "sent_s": 0.0,
        "first_s": 0.1,
        "last_s": 0.4,
        "ended_s": 0.4,
        "chunk_s": (0.1, 0.2, 0.3, 0.4),
        "chunk_tokens": (1, 2, 2, 2),
        "output_ids": (5, 6, 7, 8, 9, 10, 11),
        "input_tokens": 12,
        "output_tokens": 7,
        "num_spec_steps": 3,
        "draft_tokens": 12,
        "accepted_tokens": 3,
        "histogram": (0, 3, 0, 0, 0),
        "finish_reason": "length",
        **changes,
    }
    return RequestRecord(**values)


def failed(label: str = "timeout", **changes) -> RequestRecord:
    """One request that failed before it got a response."""
    nothing = {"first_s": None, "last_s": None, "chunk_s": (), "chunk_tokens": (), "output_ids": ()}
    counts = {"output_tokens": None, "num_spec_steps": None, "draft_tokens": None, "accepted_tokens": None}
    return record(**{**nothing, **counts, "histogram": (), "error": label, "error_message": label, **changes})


@dataclasses.dataclass
class Simulator:
    """Answers every request of a plan: a step takes ``step_s``, accepts drafts with probability ``acceptance``."""

    seed: int = 0
    step_s: float = 0.030
    draft_s: float = 0.005
    prefill_s: float = 0.080
    acceptance: float = 0.75
    drafts: int = 4
    noise: float = 0.04
    control_drafts: bool = False

    def run(self, settings: LoadSettings) -> tuple[LoadRun, object]:
        """Return the run and its plan."""
        plan = plan_load(settings, load_bundled("code"))
        rng, now, records = random.Random(self.seed), 100.0, []
        for block in plan.blocks:
            free = [now] * (len(block.prompts) if block.is_open else block.in_flight)
            pace = rng.lognormvariate(0, self.noise)
            for index, prompt in enumerate(block.prompts):
                worker = index if block.is_open else free.index(min(free))
                start_s = now + block.offsets_s[index] if block.is_open else free[worker]
                item = self._answer(rng, block, index, prompt, start_s, pace, settings.output.max_tokens)
                records.append(item)
                free[worker] = item.ended_s
            now = max(free) + 0.05
        return LoadRun(records=tuple(records), duration_s=now - 100.0), plan

    def _answer(self, rng, block, index, prompt, start_s, pace, max_tokens) -> RequestRecord:
        sent_s = start_s + 0.0002
        # What is answered depends on the prompt alone: greedy decoding gives both arms the same tokens.
        tokens = random.Random(prompt.id).randint(max_tokens // 2, max_tokens)
        times, sizes, histogram = [sent_s + pace * self.prefill_s], [1], [0] * (self.drafts + 1)
        drafted = 0
        while sum(sizes) < tokens:
            wait, accepted = self.step_s, 0
            if block.arm != CONTROL or self.control_drafts:
                wait += self.drafts * self.draft_s
                left = min(self.drafts, tokens - sum(sizes) - 1)
                if left:
                    accepted = next((n for n in range(left) if rng.random() > self.acceptance), left)
                    histogram[accepted] += 1
                    drafted += left
            times.append(times[-1] + wait * pace * rng.lognormvariate(0, 0.05))
            sizes.append(accepted + 1)
        return record(
            arm=block.arm,
            pair=block.pair,
            index=index,
            concurrency=block.point.concurrency,
            rate=block.point.rate,
            prompt_id=prompt.id,
            category=prompt.category,
            intended_s=start_s,
            sent_s=sent_s,
            first_s=times[0],
            last_s=times[-1],
            ended_s=times[-1],
            chunk_s=tuple(times),
            chunk_tokens=tuple(sizes),
            output_ids=tuple(range(tokens)),
            input_tokens=40 + index,
            output_tokens=tokens,
            num_spec_steps=sum(histogram),
            draft_tokens=drafted,
            accepted_tokens=sum(j * count for j, count in enumerate(histogram)),
            histogram=tuple(histogram) if drafted else (),
            bypass_reason="" if drafted else "num_draft_tokens is 0",
        )


CONTEXT = RunContext(
    created="2026-01-31T09:30:00+00:00",
    deployment={
        "name": "smollm2",
        "profile": "cpu",
        "target": {"checkpoint": "smollm2-135m-instruct", "precision": "fp32"},
        "draft": {"checkpoint": "smollm2-135m-instruct", "precision": "int8"},
        "num_draft_tokens": 4,
        "costs": {"target_forward_ms": 30.0, "draft_forward_ms": 5.0, "verify_forward_ms": 30.0},
    },
    environment={"cpu": "Example CPU", "cores": 2, "python": "3.11.9", "triton": "2.51.0", "gpu": None},
)


def load_report(settings: LoadSettings | None = None, **simulator) -> dict:
    """Return a complete ``load.json``."""
    run, plan = Simulator(**simulator).run(settings or LoadSettings(concurrency=(1, 2)))
    return build_load_report(run, plan, CONTEXT)
