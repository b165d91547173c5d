"""Our files and our checker against TensorRT-LLM's own schema, read by a checker that is not ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from specdeploy.engine.llmapi.releases import RELEASES, SCHEMA_RELEASE
from specdeploy.engine.llmapi.table import ROOT, SPECULATION, release_table
from specdeploy.engine.llmapi.validate import mismatches
from tests.unit.engine.llmapi.llmapi_cases import METHODS, profile, spec, text

jsonschema = pytest.importorskip("jsonschema", reason="needs the dev extra")

SCHEMAS = Path(__file__).parents[3] / "data" / "llmapi_schemas"
CLASSES = {"draft_target": "DraftTarget", "eagle3": "Eagle3", "mtp": "MTP", "ngram": "NGram"}
TYPES = {"null", "boolean", "integer", "number", "string", "array", "object"}
VALUES = (
    *(None, True, 0, 1, 2, -1, 2.0, 0.5, "", "auto", "AUTO", "NONE", "1e-3"),
    *([], [1], ["a"], [[1]], [["a"]], [1.5], {}, {"a": 1}, {"a": "b"}, {"a": None}, {"backend": "MPI"}),
)


def _standard(value):
    """Return the schema without the Python annotations that a few of its types are."""
    if isinstance(value, dict):
        odd = isinstance(value.get("type"), str) and value["type"] not in TYPES
        return {key: _standard(inner) for key, inner in value.items() if not (odd and key == "type")}
    return [_standard(inner) for inner in value] if isinstance(value, list) else value


def _schema(name):
    return _standard(json.loads((SCHEMAS / f"trtllm_{name}_jsonschema_1.3.0rc3.json").read_text(encoding="utf-8")))


def _original(method):
    """Return the whole schema with the speculation of one method, as its decoding type selects it."""
    whole = _schema(ROOT)
    whole["properties"][SPECULATION] = _schema(f"{CLASSES[method]}DecodingConfig")
    return jsonschema.Draft202012Validator(whole)


def _as_the_llm_api_reads_it(document):
    """Return the document without what Triton's model and the LLM API take out before they look at the rest."""
    speculation = {key: value for key, value in document[SPECULATION].items() if key != "decoding_type"}
    return {key: value for key, value in document.items() if key != "triton_config"} | {SPECULATION: speculation}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("args", [(), ("kv_cache_config.max_tokens=4096", "moe_config.backend=TRTLLM")])
def test_what_is_written_is_valid_by_the_original_schema(method, args):
    """For the release whose schema it is, with every key that specdeploy can set."""
    made = profile(method, SCHEMA_RELEASE, args)
    engine = spec(method, kv_cache="fp8", precision="fp16", tp_size=2, pp_size=2, ep_size=2)
    document = _as_the_llm_api_reads_it(yaml.safe_load(text(made, engine)))

    assert [error.message for error in _original(method).iter_errors(document)] == []


@pytest.mark.parametrize("change", [{"max_batchsize": 1}, {"max_seq_len": "long"}, {"kv_cache_config": {"nope": 1}}])
def test_the_original_schema_would_find_a_mistake(change):
    """So that the test above means something."""
    document = _as_the_llm_api_reads_it(yaml.safe_load(text(profile(release=SCHEMA_RELEASE), spec())))

    assert not _original("draft_target").is_valid(document | change)


@pytest.mark.parametrize("method", METHODS)
def test_our_checker_decides_as_the_original_schema_does(method):
    """For every key at the top and in every section, and for values of every type."""
    original, table = _original(method), release_table(RELEASES[SCHEMA_RELEASE], method)
    root = table.objects[ROOT].keys
    special = {"decoding_type", "algorithm", "speculative_model_dir"}
    documents = [{"model": "m", key: value} for key in root if key != "triton_config" for value in VALUES]
    documents += [
        {"model": "m", section: {key: value}}
        for section, shape in root.items()
        if section != "triton_config"
        for name in shape.objects
        for key in table.objects[name].keys
        if key not in special
        for value in VALUES
    ]

    differ = [document for document in documents if original.is_valid(document) == bool(mismatches(document, table))]
    assert differ == []
    assert len(documents) > 4000
