"""The workloads of a load test: which texts are sent, how long they are and, in a trace, when.

Bundled prompt sets, the formats of a user's files, texts of a wanted length, and what keeps a KV cache from flattering
the numbers. Texts, tokens and random numbers come in as values: the caller reads files and loads tokenizers. Every
choice is a function of a seed, the same on every machine.
"""

from __future__ import annotations

from specdeploy.bench.prompts.bundled import BUNDLED, load_bundled
from specdeploy.bench.prompts.files import is_sharegpt, is_trace, parse_prompts, parse_workload
from specdeploy.bench.prompts.output import OutputLength
from specdeploy.bench.prompts.prefixes import Prefixes, make_prefixes, shared_prefix, unique
from specdeploy.bench.prompts.prompt import CHATML, PLAIN, Prompt, PromptSet, make_prompt
from specdeploy.bench.prompts.sharegpt import parse_sharegpt
from specdeploy.bench.prompts.synthetic import Lengths, Made, Synthesiser, Tokenizer, synthetic_prompts
from specdeploy.bench.prompts.trace import Trace, has_lengths, parse_trace

__all__ = [
    "BUNDLED",
    "CHATML",
    "PLAIN",
    "Lengths",
    "Made",
    "OutputLength",
    "Prefixes",
    "Prompt",
    "PromptSet",
    "Synthesiser",
    "Tokenizer",
    "Trace",
    "has_lengths",
    "is_sharegpt",
    "is_trace",
    "load_bundled",
    "make_prefixes",
    "make_prompt",
    "parse_prompts",
    "parse_sharegpt",
    "parse_trace",
    "parse_workload",
    "shared_prefix",
    "synthetic_prompts",
    "unique",
]
