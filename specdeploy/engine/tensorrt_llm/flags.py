"""Are these arguments of ``trtllm-build`` arguments that the release has? Unlike argparse, all problems at once.

argparse would take any prefix that is unique today; a prefix is an error here, for the next release may have two.
"""

from __future__ import annotations

import difflib
import shlex
from typing import TYPE_CHECKING, Final

from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specdeploy.engine.tensorrt_llm.releases import Flag, Release

# What specdeploy.yaml says already, and which key says it.
OWNED: Final = {
    "--checkpoint_dir": "the conversion before it",
    "--output_dir": "build.engines_dir",
    "--max_batch_size": "build.max_batch_size",
    "--max_seq_len": "build.max_seq_len",
    "--max_num_tokens": "tensorrt_llm.max_num_tokens",
    "--max_draft_len": "speculation.max_draft_tokens, tree_tokens or the lookahead keys",
    "--speculative_decoding_mode": "speculation.method",
    "--logits_dtype": "tensorrt_llm.logits_dtype",
    "--kv_cache_type": "specdeploy: speculation needs a paged KV cache",
    "--use_paged_context_fmha": "specdeploy: without it blocks of the KV cache are not used again",
    "--max_beam_width": "specdeploy: speculation takes no beams",
    "--workers": "tensorrt_llm.workers",
    "--output_timing_cache": "specdeploy",
    "--dry_run": "`specdeploy plan`",
    "--gather_context_logits": "specdeploy: the builder refuses it together with draft tokens",
    "--gather_all_token_logits": "specdeploy: the builder refuses it together with draft tokens",
    "--context_fmha": "specdeploy: paged context attention stands on it",
    "--remove_input_padding": "specdeploy: batching in flight stands on it",
    "--gpt_attention_plugin": "specdeploy: the paged KV cache stands on it",
    "--paged_kv_cache": "specdeploy: speculation needs a paged KV cache",
    "--streamingllm": "specdeploy: the builder supports it no longer",
    "--build_config": "the other keys: trtllm-build ignores its flags when it is given one",
}


def split_arguments(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the words of arguments that are written one a line, as a shell would split them.

    Raises:
        ValueError: A quotation is not closed.
    """
    return tuple(word for line in lines for word in shlex.split(line))


def named_values(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (flag, its values); words before the first flag come with an empty name."""
    name, values = "", list[str]()
    for word in words:
        if word.startswith("-") and not word.lstrip("-").replace(".", "").isdigit():
            if name or values:
                yield name, values
            name, separator, value = word.partition("=")
            values = [value] if separator else []
        else:
            values.append(word)
    if name or values:
        yield name, values


def check_build_arguments(lines: Iterable[str], release: Release, where: str) -> tuple[Finding, ...]:
    """Return what is wrong with the user's own arguments of ``trtllm-build``, each an error at *where*."""
    try:
        words = split_arguments(lines)
    except ValueError as error:
        return (_error("flags.syntax", f"{error}: {' '.join(lines)}", "Close the quotation.", where),)
    return tuple(finding for name, values in named_values(words) for finding in _check(name, values, release, where))


def check_flags(words: Sequence[str], release: Release, where: str) -> tuple[Finding, ...]:
    """Return what is wrong with a whole command line's arguments, whoever chose them."""
    return tuple(finding for name, values in named_values(words) for finding in _known(name, values, release, where))


def _check(name: str, values: list[str], release: Release, where: str) -> Iterator[Finding]:
    flag = release.flags.get(name)
    if flag is not None and flag.name in OWNED:
        yield _error("flags.owned", f"{name} is decided by {OWNED[flag.name]}", "Leave it out here.", where)
        return
    yield from _known(name, values, release, where)


def _known(name: str, values: list[str], release: Release, where: str) -> Iterator[Finding]:
    flag = release.flags.get(name)
    if not name:
        yield _error("flags.syntax", f"{' '.join(values)!r} belongs to no flag", "A flag begins with --.", where)
    elif flag is None:
        near = difflib.get_close_matches(name, release.flags, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"`trtllm-build --help` of {release.version} lists them."
        yield _error("flags.unknown", f"trtllm-build of {release.version} has no {name}", hint, where)
    else:
        if not flag.certain:
            yield Finding(
                severity="warning",
                code="flags.uncertain",
                message=f"whether trtllm-build of {release.version} has {name} is not known",
                hint="If it does not, the build ends at once and says so.",
                where=where,
            )
        yield from _check_values(flag, name, values, where)


def _check_values(flag: Flag, name: str, values: list[str], where: str) -> Iterator[Finding]:
    wanted = {"one": "one value", "nothing": "no value", "several": "at least one value"}[flag.takes]
    fits = {"one": len(values) == 1, "nothing": not values, "several": bool(values)}[flag.takes]
    if not fits:
        yield _error("flags.values", f"{name} takes {wanted}, and got {len(values)}", "", where)
        return
    for value in values:
        if flag.choices and value not in flag.choices:
            near = difflib.get_close_matches(value, flag.choices, n=1)
            hint = f"did you mean {near[0]}?" if near else f"It takes {', '.join(flag.choices)}."
            yield _error("flags.choice", f"{name} does not take {value!r}", hint, where)
        if flag.integer and not value.lstrip("-").isdigit():
            yield _error("flags.value", f"{name} takes an integer, and got {value!r}", "", where)


def _error(code: str, message: str, hint: str, where: str) -> Finding:
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)
