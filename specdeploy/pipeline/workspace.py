"""Where one deployment's files are: every path of the configuration, resolved against the file that named it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workspace:
    """The absolute paths that a deployment reads and writes."""

    target: Path
    draft: Path
    target_tokenizer: Path | None
    draft_tokenizer: Path | None
    engines: Path
    repository: Path
    run: Path
    reports: Path

    @property
    def smoke_json(self) -> Path:
        """The smoke test's result."""
        return self.reports / "smoke.json"

    @property
    def load_json(self) -> Path:
        """The load test's result."""
        return self.reports / "load.json"

    @property
    def records_jsonl(self) -> Path:
        """The load test's raw records, one request a line."""
        return self.reports / "load_records.jsonl"

    @property
    def gate_json(self) -> Path:
        """The gate's verdict."""
        return self.reports / "gate.json"

    @property
    def report_html(self) -> Path:
        """The report."""
        return self.reports / "report.html"


def workspace(loaded: LoadedConfig) -> Workspace:
    """Resolve the paths of a configuration; the server's state and log live beside the repository."""
    config = loaded.config

    def resolve(path: str) -> Path:
        return (loaded.base_dir / Path(path).expanduser()).resolve()

    repository = resolve(config.repo.path)
    if not repository.name:
        raise ConfigError(
            f"repo.path is {config.repo.path!r}: a repository is a folder in another one",
            hint="name one, such as triton_repo/models",
        )
    return Workspace(
        target=resolve(config.target.checkpoint),
        draft=resolve(config.draft.checkpoint),
        target_tokenizer=resolve(config.target.tokenizer) if config.target.tokenizer else None,
        draft_tokenizer=resolve(config.draft.tokenizer) if config.draft.tokenizer else None,
        engines=resolve(config.build.engines_dir),
        repository=repository,
        run=repository.with_name(f"{repository.name}.run"),
        reports=resolve(config.report.path),
    )
