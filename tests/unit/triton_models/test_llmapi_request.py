"""The ``llmapi`` model's settings and requests: what is deployed, what is refused, what the LLM API is asked for."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).parents[3]
sys.path += [
    str(ROOT / "specdeploy" / "triton" / "models" / "llmapi_decoder" / "1"),
    str(ROOT / "tests" / "llmapi_standin" / "tensorrt_llm"),
]

from decoder_request import RequestError  # noqa: E402 - the path must be known first
from decoder_settings import SettingsError  # noqa: E402
from llmapi_request import read_llm_request  # noqa: E402
from llmapi_settings import read_deployment  # noqa: E402
from sampling_params import GuidedDecodingParams, SamplingParams  # noqa: E402

PARAMETERS = {"num_draft_tokens": "4", "max_inflight": "2", "max_seq_len": "32", "tokenizer_dir": "tokenizer"}
SPECULATION = {"decoding_type": "DraftTarget", "max_draft_len": 4, "speculative_model_dir": "../draft"}
DOCUMENT = {
    "model": "../target",
    "backend": "pytorch",
    "speculative_config": SPECULATION,
    "triton_config": {"max_batch_size": 0, "decoupled": True},
}
ALONE = {key: value for key, value in DOCUMENT.items() if key != "speculative_config"}


def deployed(document=DOCUMENT, parameters=PARAMETERS, root=Path("/repository")):
    """Read a deployment."""
    entries = {key: {"string_value": value} for key, value in parameters.items()}
    return read_deployment(entries, yaml.safe_dump(document), root)


def read(document=DOCUMENT, *, penalties=False, **inputs):
    """Read a request with the given inputs; None leaves one out."""
    tensors = {
        "input_ids": [1, 2, 3],
        "input_lengths": [3],
        "request_output_len": [10],
        "text_input": np.array([b"a b c"], object),
        "end_id": [9],
        **inputs,
    }
    arrays = {name: np.asarray([value]) for name, value in tensors.items() if value is not None}
    return read_llm_request(arrays, deployed(document), penalties=penalties, fresh_seed=77)


def test_the_arguments_are_the_documents_without_triton_config() -> None:
    """Ids go in and come out, so that the engine loads no tokenizer; relative folders begin at the repository."""
    arguments = deployed().arguments

    assert arguments == {
        "skip_tokenizer_init": True,
        "model": "/repository/../target",
        "backend": "pytorch",
        "speculative_config": {**SPECULATION, "speculative_model_dir": "/repository/../draft"},
    }


def test_a_folder_in_the_repository_is_found_and_a_hub_name_stays(tmp_path) -> None:
    """What is no folder may be a name that the LLM API resolves; an absolute path stays as well."""
    (tmp_path / "weights").mkdir()
    speculation = {**SPECULATION, "speculative_model_dir": "/models/draft"}

    inside = deployed({**DOCUMENT, "model": "weights"}, root=tmp_path).arguments
    named = deployed({"model": "org/name", "speculative_config": speculation}, root=tmp_path).arguments

    assert inside["model"] == str(tmp_path / "weights")
    assert (named["model"], named["speculative_config"]["speculative_model_dir"]) == ("org/name", "/models/draft")


@pytest.mark.parametrize(
    ("speculation", "drafted"),
    [
        ({"decoding_type": "Eagle3", "max_draft_len": 3}, 3),
        ({"decoding_type": "MTP", "num_nextn_predict_layers": 2}, 2),
        ({"decoding_type": "AUTO"}, 4),
    ],
)
def test_the_document_says_how_long_a_draft_is(speculation, drafted) -> None:
    """Only where it does not, the parameter of config.pbtxt holds."""
    assert deployed({**DOCUMENT, "speculative_config": speculation}).settings.num_draft_tokens == drafted


def test_sizes_come_from_the_document_where_no_parameter_gives_them() -> None:
    """A hand-written config.pbtxt needs few parameters."""
    settings = deployed({**DOCUMENT, "max_batch_size": 8, "max_seq_len": 99}, {}).settings

    assert (settings.max_inflight, settings.max_seq_len) == (8, 99)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([1], "names no model"),
        ({"backend": "pytorch"}, "names no model"),
        (
            {**DOCUMENT, "speculative_config": "NGram"},
            "speculative_config of model.yaml is 'NGram'; it must be a mapping",
        ),
    ],
)
def test_a_document_that_is_none_is_refused(document, message) -> None:
    """The model does not load, and says why."""
    with pytest.raises(SettingsError, match=message):
        deployed(document)


def test_broken_yaml_is_refused_in_one_line() -> None:
    """The place of the error is kept."""
    with pytest.raises(SettingsError, match=r"model.yaml is not YAML: .* line 1, column 5"):
        read_deployment({}, "a: b: c", Path("/"))


@pytest.mark.parametrize(
    ("version", "document", "applies"),
    [
        ("1.0.0", {}, False),
        ("1.2.1", {}, False),
        ("1.3.0rc22", {}, False),
        ("1.3.0rc24", {}, True),
        ("1.3.0", {}, True),
        ("1.4.0rc1", {}, True),
        ("unknown", {}, False),
        ("1.2.1", {"sampler_type": "TRTLLMSampler"}, True),
        ("1.0.0", {"enable_trtllm_sampler": True}, True),
    ],
)
def test_penalties_are_served_where_the_sampler_acts_on_them(version, document, applies) -> None:
    """Older default samplers take them and do nothing."""
    assert deployed({**ALONE, **document}).applies_penalties(version) is applies


def test_a_bare_request_is_greedy_and_speculates() -> None:
    """Nothing of sampling is said, which is the LLM API's greedy decoding; text stays ours."""
    request = read()

    assert request.sampling == {"max_tokens": 10, "end_id": 9, "detokenize": False, "return_perf_metrics": True}
    assert (request.decoding.bypass_reason, request.streaming, request.guide) == ("", False, {})
    assert request.decoding.plan.num_draft_tokens == 4
    assert SamplingParams(**request.sampling).greedy


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        ({"top_p": [0.5]}, {"top_p": 0.5, "seed": 77}),
        ({"top_k": [5], "top_p": [0.0]}, {"top_k": 5, "seed": 77}),
        ({"top_p": [0.5], "top_k": [0], "seed": [3]}, {"top_p": 0.5, "seed": 3}),
        ({"top_k": [5], "temperature": [0.5]}, {"top_k": 5, "temperature": 0.5, "seed": 77}),
        ({"temperature": [0.5]}, {}),
        ({"top_k": [5], "temperature": [0.0]}, {}),
        ({"pad_id": [7]}, {"pad_id": 7}),
        ({"pad_id": [-1]}, {}),
        ({"min_tokens": [4]}, {"min_tokens": 4}),
        ({"bad_words_list": [[5, 6, 0], [1, 2, -1]]}, {"bad_token_ids": [5, 6]}),
        ({"bad_words_list": [[0], [-1]]}, {}),
        ({"repetition_penalty": [1.0], "beam_width": [1], "return_log_probs": [False]}, {}),
        ({"num_draft_tokens": [4]}, {}),
        ({"use_draft_logits": [True], "length_penalty": [2.0]}, {}),
    ],
)
def test_inputs_become_sampling_parameters(inputs, wanted) -> None:
    """Each under the LLM API's name; what says what holds anyway is left out, and a greedy request says nothing."""
    sampling = dict(read(**inputs).sampling)
    base = read().sampling

    assert {key: value for key, value in sampling.items() if key not in base} == wanted
    assert SamplingParams(**sampling).greedy is not ("seed" in wanted)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"num_draft_tokens": [0]}, "num_draft_tokens is 0, but this deployment's engine always drafts 4"),
        ({"num_draft_tokens": [2]}, "num_draft_tokens is 2, but"),
        ({"num_draft_tokens": [4, 4]}, "num_draft_tokens is 4, 4, but"),
        ({"embedding_bias": [0.0, 1.0]}, "embedding_bias_words: not served"),
        ({"beam_width": [2], "length_penalty": [1.0]}, "beam_width, length_penalty: not served"),
        (
            {"prompt_embedding_table": [[1.0]], "prompt_vocab_size": [1]},
            "prompt_embedding_table, prompt_vocab_size: not",
        ),
        ({"lora_task_id": [1], "lora_config": [[1, 2, 3]]}, "lora_config, lora_task_id: not served"),
        ({"return_context_logits": [True]}, "return_context_logits: not served"),
        ({"return_decode_trace": [True]}, "return_decode_trace: the LLM API does not tell"),
        ({"presence_penalty": [0.5], "frequency_penalty": [1.0]}, "presence_penalty, frequency_penalty: the sampler"),
        ({"return_log_probs": [True]}, "return_log_probs: not served by an engine that speculates"),
        ({"bad_words_list": [[5, 6, 7], [1, 3, -1]]}, "bans single tokens"),
        ({"guided_decoding_guide_type": np.array([b"json"], object)}, "has no guided_decoding_backend"),
        ({"request_output_len": [30]}, "make 33, but the engines hold 32"),
        ({"request_output_len": None}, "request_output_len .* is missing"),
        ({"stop_words": np.array([b"\xff"], object)}, "stop_words is not UTF-8"),
    ],
)
def test_what_is_not_served_is_refused_by_name(inputs, message) -> None:
    """Nothing is dropped silently."""
    with pytest.raises(RequestError, match=message):
        read(**inputs)


@pytest.mark.parametrize("drafts", [None, [0], [7]])
def test_without_speculation_any_draft_length_is_none(drafts) -> None:
    """Such a deployment is the control: it says so, and asks the engine for no metrics of drafts."""
    request = read(ALONE, num_draft_tokens=drafts)

    assert request.decoding.bypass_reason == "no_draft_model"
    assert not request.decoding.engine_speculates
    assert "return_perf_metrics" not in request.sampling


def test_log_probabilities_and_penalties_are_handed_on_where_they_are_served() -> None:
    """Without speculation, and with a sampler that acts on penalties."""
    request = read(ALONE, penalties=True, return_log_probs=[True], repetition_penalty=[1.5])

    assert (request.sampling["logprobs"], request.sampling["repetition_penalty"]) == (1, 1.5)


@pytest.mark.parametrize(
    ("kind", "guide", "wanted"),
    [
        (b"json", None, {"json_object": True}),
        (b"json_schema", b"{}", {"json": "{}"}),
        (b"regex", b"[a-z]", {"regex": "[a-z]"}),
        (b"ebnf_grammar", b"root ::= a", {"grammar": "root ::= a"}),
        (b"structural_tag", b"{}", {"structural_tag": "{}"}),
    ],
)
def test_guides_become_guided_decoding_parameters(kind, guide, wanted) -> None:
    """Under a speculating engine, too, which applies them to each position; the engine then loads its tokenizer."""
    document = {**DOCUMENT, "guided_decoding_backend": "xgrammar"}
    inputs = {"guided_decoding_guide_type": np.array([kind], object)}
    inputs |= {} if guide is None else {"guided_decoding_guide": np.array([guide], object)}

    request = read(document, **inputs)

    assert request.guide == wanted
    assert request.decoding.bypass_reason == ""
    assert dataclasses.asdict(GuidedDecodingParams(**request.guide)).keys() > wanted.keys()
    assert deployed(document).arguments["skip_tokenizer_init"] is False


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"guided_decoding_guide_type": np.array([b"xml"], object)}, "is 'xml'; it must be one of json, json_schema"),
        ({"guided_decoding_guide_type": np.array([b"regex"], object)}, "all but json need guided_decoding_guide"),
        ({"guided_decoding_guide": np.array([b"[a]"], object)}, "guided_decoding_guide_type is ''"),
        ({"guided_decoding_guide_type": np.array([b"\xff"], object)}, "is not UTF-8"),
    ],
)
def test_a_wrong_guide_is_refused(inputs, message) -> None:
    """By name and value."""
    with pytest.raises(RequestError, match=message):
        read({**DOCUMENT, "guided_decoding_backend": "xgrammar"}, **inputs)


@pytest.mark.parametrize(
    ("inputs", "streaming"),
    [({}, False), ({"stream": [True]}, True), ({"stop_words": np.array([b"stop"], object)}, True)],
)
def test_the_engine_streams_where_steps_matter(inputs, streaming) -> None:
    """For a stream, and where a stop word may end the answer early; otherwise one report is cheaper."""
    assert read(**inputs).streaming is streaming
