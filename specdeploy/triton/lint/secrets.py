"""Check that no file holds what looks like a credential: repositories are copied to stores and images."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint.loaded import Repository, error, warning
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.findings import Finding

_TEXT: Final = (".pbtxt", ".py", ".yaml", ".yml", ".json", ".txt", ".env", ".sh")
# Whoever hides a token behind so much text does it on purpose.
_SEARCHED: Final = 4 * 1024 * 1024
# Public shapes of access tokens and keys. A vocabulary may hold any string, so tokenizer folders are not searched.
_SECRETS: Final = {
    "a Hugging Face token": re.compile(rb"\bhf_[A-Za-z0-9]{30,}\b"),
    "an NVIDIA API key": re.compile(rb"\bnvapi-[A-Za-z0-9_-]{40,}"),
    "a GitHub token": re.compile(rb"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})\b"),
    "a GitLab token": re.compile(rb"\bglpat-[A-Za-z0-9_-]{20,}"),
    "an AWS access key": re.compile(rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "an OpenAI key": re.compile(rb"\bsk-(?:proj-)?[A-Za-z0-9_-]{40,}"),
    "a private key": re.compile(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"),
}
# Every part has a bound: without one, a long run of letters takes the square of its length.
_IN_URL: Final = re.compile(rb"(?<=[a-z])://[^\s/:@\"'{}<>]{1,200}:([^\s/:@\"'{}<>]{1,200})@([^\s/:@\"']{1,200})")
# What documentation writes where a password belongs, or a host.
_EXAMPLES: Final = re.compile(
    rb"(?:my|your|the|some|a)?[-_ ]?(?:pass|passwd|password|pwd|pw|secret|token|key|user|username|changeme|example)"
    rb"|[*x.]+|\$.*|%.*",
    re.IGNORECASE,
)
_EXAMPLE_HOSTS: Final = re.compile(rb"host|hostname|(?:.*\.)?example(?:\..*)?", re.IGNORECASE)
_CURE: Final = "take it out, revoke it, and hand it to the server through its environment"


def secrets(repository: Repository) -> Iterator[Finding]:
    """No file holds what looks like a credential."""
    for path, data in repository.tree.items():
        if not path.endswith(_TEXT) or f"/{names.TOKENIZER_DIR}/" in path:
            continue
        text = data[:_SEARCHED]
        for kind, pattern in _SECRETS.items():
            if found := pattern.search(text):
                yield error("repo.secret", f"holds what looks like {kind}", where=_at(path, text, found), hint=_CURE)
        real = (found for found in _IN_URL.finditer(text) if not _is_example(found))
        if password := next(real, None):
            # A URL is no proof: it may be made up, or of a place that nobody can reach.
            yield warning(
                "repo.secret",
                "holds what looks like a password in a URL",
                where=_at(path, text, password),
                hint=_CURE,
            )


def _is_example(found: re.Match[bytes]) -> bool:
    return bool(_EXAMPLES.fullmatch(found[1]) or _EXAMPLE_HOSTS.fullmatch(found[2]))


def _at(path: str, text: bytes, found: re.Match[bytes]) -> str:
    return f"{path}:{text.count(chr(10).encode(), 0, found.start()) + 1}"
