"""What a load test sends: a bundled set, a user's file, or made texts, and what their requests have in common.

Knows which keys of ``load`` decide the texts, and which of them contradict each other. Texts are made with the target's
tokenizer, which is read only where a length in tokens is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from specdeploy.bench.prompts import (
    BUNDLED,
    Lengths,
    Prefixes,
    PromptSet,
    Synthesiser,
    Trace,
    has_lengths,
    is_sharegpt,
    is_trace,
    load_bundled,
    make_prefixes,
    parse_workload,
    synthetic_prompts,
)
from specdeploy.errors import ConfigError
from specdeploy.pipeline.subject import text_of
from specdeploy.pipeline.tokenizing import tokenizer_of

if TYPE_CHECKING:
    from specdeploy.bench.schedule import LoadSettings
    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.tokenizing import TargetTokenizer

SYNTHETIC: Final = "synthetic"
#: A longer run sends synthetic prompts again: to make one of a thousand tokens takes some hundredths of a second.
MOST_SYNTHETIC: Final = 500
_DRAWN: Final = ("input_tokens_mean", "input_tokens_stddev", "output_tokens_mean", "output_tokens_stddev")


class Workload(NamedTuple):
    """Prompts, the trace that they are from, if it is one, and what a share of them begins with."""

    prompts: PromptSet
    trace: Trace | None
    prefixes: Prefixes


def workload_of(loaded: LoadedConfig, settings: LoadSettings) -> Workload:
    """Return what a load test sends.

    Args:
        loaded: The configuration: ``load.prompts`` is one of `BUNDLED`, ``synthetic``, or the path of a file of prompts
            or of a trace, relative to its folder; and the target's tokenizer.

        settings: Which lengths are drawn or taken from the file, what is shared, and the seed of made texts.

    Raises:
        ConfigError: There is no such set or file, it cannot be read, the keys contradict each other, or a length in
            tokens is asked for and the target has no tokenizer.

        ToolMissing: The package that reads the tokenizer is not installed.
    """
    maker = _Maker(loaded, settings)
    prompts, trace = maker.prompts()
    return Workload(prompts, trace, maker.prefixes())


class _Maker:
    def __init__(self, loaded: LoadedConfig, settings: LoadSettings) -> None:
        self._loaded = loaded
        self._settings = settings
        self._name = loaded.config.load.prompts
        self._read: TargetTokenizer | None = None

    def prompts(self) -> tuple[PromptSet, Trace | None]:
        _check_lengths(self._name, self._settings)
        if self._name in (SYNTHETIC, *BUNDLED):
            self._refuse_recorded()
            return (self._synthetic() if self._name == SYNTHETIC else load_bundled(self._name)), None
        path, text = text_of(self._loaded, self._name, "load.prompts", also=f"; {SYNTHETIC} are made")
        synthesiser = count_tokens = None
        if not is_sharegpt(text):
            self._refuse_recorded()
        elif self._settings.recorded_length:
            count_tokens = self._tokenizer("load.recorded_length").parts.count
        if is_trace(text) and has_lengths(text):
            synthesiser = Synthesiser(self._tokenizer("a trace of lengths").prompts, seed=self._settings.seed)
        workload = parse_workload(
            text, source=str(path), name=path.name, synthesiser=synthesiser, count_tokens=count_tokens
        )
        return (workload.prompt_set, workload) if isinstance(workload, Trace) else (workload, None)

    def prefixes(self) -> Prefixes:
        wanted = self._settings
        if not wanted.prefix_tokens:
            return Prefixes()
        tokenizer = self._tokenizer("load.prefix_tokens").parts
        return make_prefixes(wanted.prefix_count, tokens=wanted.prefix_tokens, tokenizer=tokenizer, seed=wanted.seed)

    def _synthetic(self) -> PromptSet:
        wanted = self._settings
        inputs = Lengths(mean=wanted.input_tokens_mean, stddev=wanted.input_tokens_stddev)
        mean, stddev = wanted.output_tokens_mean, wanted.output_tokens_stddev
        number = wanted.different_requests
        return synthetic_prompts(
            MOST_SYNTHETIC if number is None else min(max(number, 1), MOST_SYNTHETIC),
            tokenizer=self._tokenizer(f"load.prompts {SYNTHETIC}").prompts,
            inputs=inputs,
            outputs=Lengths(mean=mean, stddev=stddev) if mean else None,
            seed=wanted.seed,
        )

    def _refuse_recorded(self) -> None:
        if self._settings.recorded_length:
            raise ConfigError(
                f"load.recorded_length is true, and load.prompts is {self._name!r}, which has no recorded answers",
                hint="Name a ShareGPT file, or leave load.recorded_length out: lines of prompts have max_tokens of "
                "their own, lines of a trace output_length.",
            )

    def _tokenizer(self, what: str) -> TargetTokenizer:
        if self._read is None:
            self._read = tokenizer_of(self._loaded, what)
        return self._read


def _check_lengths(name: str, settings: LoadSettings) -> None:
    """Refuse lengths that nothing is made to, and made texts of no length."""
    given = [key for key in _DRAWN if getattr(settings, key)]
    if given and name != SYNTHETIC:
        raise ConfigError(
            f"load.{given[0]} is {getattr(settings, given[0]):g}, and load.prompts is {name!r}, which is not made to a "
            "length",
            hint=f"Set load.prompts to {SYNTHETIC}, or leave out load.{given[0]}.",
        )
    if name == SYNTHETIC and not settings.input_tokens_mean:
        raise ConfigError(
            f"load.prompts is {SYNTHETIC}, and load.input_tokens_mean is 0",
            hint="Say how long the prompts are, such as load.input_tokens_mean: 512.",
        )
    if settings.output_tokens_stddev and not settings.output_tokens_mean:
        raise ConfigError(
            f"load.output_tokens_stddev is {settings.output_tokens_stddev:g}, and load.output_tokens_mean is 0",
            hint="Give the mean, too, such as load.output_tokens_mean: 128.",
        )
