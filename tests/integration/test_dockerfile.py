"""The Dockerfile: sound by its linter, not root, with a health check, and a context of only what the image needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_hadolint_has_nothing_to_say() -> None:
    """Every rule of the linter holds, style included."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, "--failure-threshold", "style", "--no-color", ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_it_does_not_run_as_root() -> None:
    """The last user that is set is an ordinary one, and one that was made."""
    user = re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)[-1]
    assert f"--uid {user} " in DOCKERFILE
    assert int(user) > 0


def test_health_is_an_answer() -> None:
    """The health check asks what a person would ask, and ends with one of the two codes that Docker knows."""
    check = 'CMD ["sh", "-c", "specdeploy serve status --probe || exit 1"]'
    assert re.search(rf"^HEALTHCHECK .* {re.escape(check)}$", DOCKERFILE, re.MULTILINE)


def test_what_is_copied_is_what_the_builder_is_sent() -> None:
    """The context holds the package and what it is made from; checkpoints and engines stay where they are."""
    copied = {word for line in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}

    assert copied == sent
    assert all((ROOT / name).exists() for name in sent)
