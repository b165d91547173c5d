"""The ``llmapi`` profile: nothing is compiled; what is built is the LLM API's configuration, pinned and checked."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import yaml

from specdeploy.engine.llmapi.arguments import WHERE, contradictions
from specdeploy.engine.llmapi.document import DTYPES, model_document, to_text
from specdeploy.engine.llmapi.releases import SCHEMA_RELEASE, llmapi_release
from specdeploy.engine.llmapi.rules import check_method, check_together
from specdeploy.engine.llmapi.table import release_table
from specdeploy.engine.llmapi.validate import Mismatch, mismatches
from specdeploy.engine.profile import BuildStep, content_key, json_data
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.checkpoint.info import CheckpointInfo
    from specdeploy.config.schema import DeployConfig
    from specdeploy.engine.llmapi.document import ModelDocument
    from specdeploy.engine.llmapi.releases import LlmApiRelease
    from specdeploy.engine.profile import EngineSpec

#: The engine's only file, named as Triton's ``llmapi`` model looks for it.
MODEL_YAML: Final = "model.yaml"


@dataclasses.dataclass(frozen=True)
class LlmApiProfile:
    """The profile for one configuration, whose ``release``, ``speculation`` and ``llmapi`` it reads.

    Every method that needs the release raises ``ConfigError`` for one that is not known.
    """

    config: DeployConfig
    name: str = "llmapi"

    @property
    def inspected(self) -> tuple[str, ...]:
        """The one file that there is."""
        return (MODEL_YAML,)

    def requirements(self) -> tuple[str, ...]:
        """Return what serving needs; writing the configuration needs nothing."""
        return ("tensorrt_llm",)

    def precision(self, wanted: str, checkpoint: CheckpointInfo) -> str:
        """Return, for ``auto``, the type that the checkpoint is stored in.

        Raises:
            ConfigError: It is stored in a type that nothing is computed in.
        """
        if wanted != "auto":
            return wanted
        stored = {dtype: precision for precision, dtype in DTYPES.items()}
        if checkpoint.dtype not in stored:
            raise ConfigError(
                f"{checkpoint.name} is stored as {checkpoint.dtype}, which does not say what it computes in",
                hint=f"Set precision to {', '.join(DTYPES)}.",
            )
        return stored[checkpoint.dtype]

    def check(self, spec: EngineSpec) -> tuple[Finding, ...]:
        """Return what the schema and the rules between keys have against the configuration."""
        release, method = self._release(), self.config.speculation.method
        if refused := check_method(release, method):
            return refused
        document = self._document(spec)
        table = release_table(release, method)
        return (
            *document.arguments.findings,
            *contradictions(document.arguments, document.own),
            *(_schema_finding(mismatch, release) for mismatch in mismatches(document.content, table)),
            *check_together(self.config, spec, release, document),
            *_provenance(release),
        )

    def steps(self, spec: EngineSpec) -> tuple[BuildStep, ...]:
        """Return the one step that writes the configuration."""
        release, document = self._release(), self._document(spec)
        parts = {
            "profile": self.name,
            "release": self.config.release,
            "checkpoint": spec.checkpoint.fingerprint,
            "draft": document.draft.fingerprint if document.draft else None,
            "arguments": json_data(document.identity(spec.checkpoint)),
        }
        sources = (spec.checkpoint, document.draft)
        return (
            BuildStep(
                name="write the configuration",
                argv=(),
                env={},
                inputs=tuple(source.path for source in sources if source is not None),
                outputs=(MODEL_YAML,),
                key=content_key(**parts),
                parts=parts,
                writes={MODEL_YAML: to_text(document.content, release)},
            ),
        )

    def verify(self, spec: EngineSpec, files: Mapping[str, bytes], sizes: Mapping[str, int]) -> tuple[Finding, ...]:
        """Return how the written configuration differs from the planned one, comments left out."""
        del sizes
        if MODEL_YAML not in files:
            return (_finding("error", "no-file", f"{MODEL_YAML} is missing", "Build it again."),)
        try:
            written = yaml.safe_load(files[MODEL_YAML])
        except (ValueError, yaml.YAMLError) as error:
            problem = " ".join(str(error).split())
            return (_finding("error", "no-yaml", f"{MODEL_YAML} is not YAML: {problem}", "Build it again."),)
        return tuple(_differences(self._document(spec), written))

    def facts(self, spec: EngineSpec) -> Mapping[str, Any]:
        """Return release row, method and its spelling there, draft length, ranks and where the schema is from."""
        release, wanted = self._release(), self.config.speculation
        return {
            "release": self.config.release,
            "method": wanted.method,
            "decoding_type": release.decoding_types.get(wanted.method),
            "max_draft_len": wanted.num_draft_tokens,
            "world_size": spec.world_size,
            "schema_provenance": release.provenance,
        }

    def limit(self, spec: EngineSpec) -> int:
        """Return what is wanted: the LLM API holds every sequence to ``max_seq_len``."""
        return spec.max_seq_len

    def estimated_bytes(self, spec: EngineSpec) -> int:
        """Return the size of the configuration, the only file."""
        return len(to_text(self._document(spec).content, self._release()).encode())

    def _release(self) -> LlmApiRelease:
        return llmapi_release(self.config.release)

    def _document(self, spec: EngineSpec) -> ModelDocument:
        return model_document(self.config, spec, self._release())


def _schema_finding(mismatch: Mismatch, release: LlmApiRelease) -> Finding:
    """A younger release may have keys that the schema does not know; whatever else is wrong is wrong."""
    lenient = release.after_schema and mismatch.fault == "unknown-key"
    note = f" (by the schema of {SCHEMA_RELEASE}, which is older than {release.name})" if lenient else ""
    severity: Severity = "warning" if lenient else "error"
    return _finding(severity, mismatch.fault, f"{mismatch.message}{note}", mismatch.hint)


def _provenance(release: LlmApiRelease) -> Iterator[Finding]:
    if release.provenance == "derived":
        message = (
            f"the keys of TensorRT-LLM {release.name} were checked against the schema of {SCHEMA_RELEASE} with the "
            "known renames, not against its own"
        )
        yield Finding(severity="info", code="llmapi.derived-schema", message=message, where="release")


def _differences(document: ModelDocument, written: object) -> Iterator[Finding]:
    planned = dict(_flat((), document.content))
    seen = dict(_flat((), written))
    for path in sorted(planned.keys() | seen.keys(), key=str):
        if path in planned and path in seen and planned[path] == seen[path]:
            continue
        values = f"{seen.get(path, 'absent')!r}, planned {planned.get(path, 'absent')!r}"
        # The key says that it is the same checkpoint, so another path is another copy of it.
        moved = path in {("model",), document.draft_key} and path in planned and path in seen
        severity: Severity = "warning" if moved else "error"
        yield _finding(severity, "differs", f"{'.'.join(map(str, path)) or MODEL_YAML} is {values}", "Build it again.")


def _flat(path: tuple[Any, ...], value: object) -> Iterator[tuple[tuple[Any, ...], object]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat((*path, key), inner)
    else:
        yield path, value


def _finding(severity: Severity, code: str, message: str, hint: str) -> Finding:
    return Finding(severity=severity, code=f"llmapi.{code}", message=message, hint=hint, where=WHERE)
