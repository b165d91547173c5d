"""Pairs that belong together, pairs that do not, and what is said about them."""

from __future__ import annotations

import pytest

from specdeploy.checkpoint.compat import check_pair
from tests.unit.checkpoint.folders import info, tokenizer

TARGET = info()
DRAFT = info(name="small", parameters=100, weight_bytes=400, fingerprint="e" * 64)


def _check(target=TARGET, draft=DRAFT, **changes):
    arguments = {"method": "draft_target", "max_seq_len": 1024, "num_draft_tokens": 4} | changes
    return check_pair(target, draft, **arguments)


def _codes(*args, **changes):
    return [(finding.severity, finding.code) for finding in _check(*args, **changes)]


def _message(code, *args, **changes):
    return next(finding.message for finding in _check(*args, **changes) if finding.code == code)


def _draft(**tokenizer_changes):
    return info(name="small", parameters=100, weight_bytes=400, tokenizer=tokenizer(**tokenizer_changes))


def test_a_good_pair_has_only_its_cost_to_tell():
    """No error and no warning; the ratio of parameters and bytes is said."""
    assert _codes() == [("info", "draft.cost")]
    assert "0.1 times its parameters, 0.1 times its bytes" in _message("draft.cost")


def test_the_first_differing_tokens_are_named():
    """Ids on both sides, lowest first, and how many there are in all."""
    draft = _draft(vocab={"a": 0, "b": 2, "ab": 1, "d": 3})

    message = _message("tokenizer.vocabulary-differs", TARGET, draft)

    assert message.startswith("4 tokens of the vocabularies differ: 'ab' is 2 in the target and 1 in the draft; ")
    assert "'b' is 1 in the target and 2 in the draft" in message
    assert message.endswith("and 1 more")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"kind": "Unigram"}, "tokenizer.kind-differs"),
        ({"vocab": {"a": 0, "b": 1, "ab": 2}}, "tokenizer.vocabulary-differs"),
        ({"added_tokens": {"<s>": 4, "<eos>": 5}}, "tokenizer.added-tokens-differ"),
        ({"merges_digest": "x"}, "tokenizer.merges-differ"),
        ({"options_digest": "x"}, "tokenizer.options-differ"),
        ({"normalizer_digest": "x"}, "tokenizer.normalizer-differs"),
        ({"pre_tokenizer_digest": "x"}, "tokenizer.pre-tokenizer-differs"),
    ],
)
def test_a_different_tokenizer_is_an_error(changes, code):
    """Each part that decides which ids a text becomes has a code of its own, and one difference one finding."""
    assert [found for found in _codes(TARGET, _draft(**changes)) if found[0] == "error"] == [("error", code)]


def test_a_token_that_is_added_on_one_side_only_is_an_error():
    """The same id, but matched before the text is split on one side and after it on the other."""
    draft = _draft(vocab={"a": 0, "b": 1, "ab": 2, "c": 3, "</s>": 5}, added_tokens={"<s>": 4})

    assert ("error", "tokenizer.added-tokens-differ") in _codes(TARGET, draft)


def test_another_serialisation_of_one_tokenizer_is_fine():
    """The file's digest differs, none of its parts does."""
    assert _codes(TARGET, _draft(digest="other")) == [("info", "draft.cost")]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"chat_template": None}, "tokenizer.chat-template-differs"),
        ({"post_processor_digest": "x"}, "tokenizer.post-processor-differs"),
        ({"decoder_digest": "x"}, "tokenizer.decoder-differs"),
    ],
)
def test_parts_that_only_the_target_uses_are_a_warning(changes, code):
    """They may lower the acceptance and never change an answer."""
    assert _codes(TARGET, _draft(**changes)) == [("warning", code), ("info", "draft.cost")]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"bos_token_id": 1}, ("warning", "ids.bos-differs")),
        ({"eos_token_ids": (5, 3)}, ("warning", "ids.eos-differs")),
        ({"pad_token_id": 3}, ("info", "ids.pad-differs")),
    ],
)
def test_special_ids_that_differ_are_named(changes, found):
    """The target's ids are used, so it is no error."""
    draft = info(name="small", parameters=100, weight_bytes=400, **changes)

    assert found in _codes(TARGET, draft)


def test_the_order_of_eos_ids_does_not_matter():
    """Any of them ends an answer."""
    ids = {"eos_token_ids": (5, 3)}
    draft = info(parameters=100, weight_bytes=400, eos_token_ids=(3, 5))

    assert _codes(info(**ids), draft) == [("info", "draft.cost")]


def test_a_target_without_an_end_is_a_warning():
    """Its answers would always run to the token limit."""
    found = _codes(info(eos_token_ids=()), info(parameters=1, weight_bytes=1, eos_token_ids=()))

    assert ("warning", "ids.eos-missing") in found


@pytest.mark.parametrize(("logits", "severity"), [(True, "error"), (False, "info")])
def test_padding_that_differs_matters_only_for_draft_logits(logits, severity):
    """151936 and 152064 rows for one tokenizer: token match compares ids, rejection sampling whole distributions."""
    target = info(vocab_size=152064, tokenizer=tokenizer())
    draft = info(vocab_size=151936, parameters=1, weight_bytes=1)

    findings = _codes(target, draft, use_draft_logits=logits)

    assert (severity, "vocabulary.padding-differs") in findings
    assert "152064 in the target and 151936 in the draft" in _message(
        "vocabulary.padding-differs", target, draft, use_draft_logits=logits
    )


def test_logits_of_the_same_padded_width_can_be_compared():
    """32001 rows on four ranks are 32004, the other model's number."""
    target, draft = info(vocab_size=32001), info(vocab_size=32004, parameters=1, weight_bytes=1)

    assert ("info", "vocabulary.padding-differs") in _codes(target, draft, tp_sizes=(4, 1))
    assert ("error", "vocabulary.padding-differs") in _codes(target, draft, tp_sizes=(1, 1))


def test_equal_rows_that_are_padded_differently_cannot():
    """One vocabulary, another number of ranks: TensorRT-LLM's logits then differ in width."""
    target, draft = info(vocab_size=32001), info(vocab_size=32001, parameters=1, weight_bytes=1)

    message = _message("vocabulary.padding-differs", target, draft, tp_sizes=(4, 1))

    assert "padded to 32004 and 32001 for tp_size 4 and 1" in message
    assert ("error", "vocabulary.padding-differs") in _codes(target, draft, tp_sizes=(4, 1))


def test_the_cure_for_padding_names_the_model_and_the_rows():
    """Qwen2 7B beside 0.5B: the smaller embedding is padded, to a number that every rank count divides."""
    target, draft = info(vocab_size=152064), info(vocab_size=151936, parameters=1, weight_bytes=1)

    hint = next(found.hint for found in _check(target, draft) if found.code == "vocabulary.padding-differs")

    assert "use_draft_logits to false" in hint
    assert "pad the draft to 152064 rows: model.resize_token_embeddings(152064)" in hint


def test_rotary_scaling_that_differs_is_only_said():
    """Each model keeps its own; long contexts may be followed worse."""
    draft = info(parameters=100, weight_bytes=400, rope_scaling={"rope_type": "llama3", "factor": 8.0})

    assert ("info", "context.rope-differs") in _codes(TARGET, draft)
    assert "none in the target and llama3 by 8.0 in the draft" in _message("context.rope-differs", TARGET, draft)


def test_the_cost_names_the_kv_cache_of_both():
    """Half the layers, half the cache."""
    draft = info(num_layers=1, parameters=100, weight_bytes=400)

    assert "0.5 times its KV cache (16 bytes a token beside 32, at 16 bits)" in _message("draft.cost", TARGET, draft)


def test_every_precision_of_a_gpu_engine_has_a_cost():
    """A target in 16 bits beside a draft in four."""
    found = _message("draft.cost", TARGET, TARGET, precisions=("bf16", "int4_awq"))

    assert "1 times its parameters, 0.258 times its bytes" in found


def test_an_embedding_without_a_row_for_every_id_is_an_error():
    """A prompt could hold an id that the draft has no row for."""
    draft = info(vocab_size=5, parameters=1, weight_bytes=1)

    assert ("error", "vocabulary.too-small") in _codes(TARGET, draft, use_draft_logits=False)
    assert "5 embedding rows" in _message("vocabulary.too-small", TARGET, draft)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_context_that_is_too_short_names_the_model(role):
    """max_seq_len has to fit in both; the cure names the number that would."""
    short = {"max_position_embeddings": 512}
    target = info(**(short if role == "target" else {}))
    draft = info(parameters=100, weight_bytes=400, **(short if role == "draft" else {}))

    errors = [finding for finding in _check(target, draft) if finding.severity == "error"]

    assert [finding.code for finding in errors] == ["context.too-long"]
    assert f"max_seq_len is 1024, the {role} has 512 positions" in errors[0].message
    assert "at most 512" in errors[0].hint


def test_a_context_that_just_fits_is_fine():
    """The limit itself is allowed."""
    assert _codes(max_seq_len=2048) == [("info", "draft.cost")]


@pytest.mark.parametrize(
    ("number", "found"),
    [
        (0, ("error", "draft-tokens.out-of-range")),
        (1023, ("error", "draft-tokens.out-of-range")),
        (17, ("warning", "draft-tokens.many")),
    ],
)
def test_a_number_of_draft_tokens_that_makes_no_sense(number, found):
    """Nothing, more than fits, or far more than is ever accepted."""
    assert found in _codes(num_draft_tokens=number)


def test_sixteen_draft_tokens_pass_without_a_word():
    """The bound of the warning."""
    assert _codes(num_draft_tokens=16) == [("info", "draft.cost")]


def test_the_same_network_at_a_lower_precision_is_allowed_and_said():
    """An honest pair: cheaper by its bytes only."""
    found = _check(TARGET, TARGET, precisions=("fp32", "int8"))

    assert [(finding.severity, finding.code) for finding in found] == [("info", "draft.cost")]
    assert "the same network as the target at a lower precision: 1 times its parameters, 0.25" in found[0].message


def test_a_draft_that_is_not_cheaper_is_a_warning():
    """Speculation then costs more than it can save, though its answers stay right."""
    assert _codes(TARGET, TARGET, precisions=("int8", "int8")) == [("warning", "draft.not-smaller")]
    assert _codes(DRAFT, TARGET) == [("warning", "draft.not-smaller")]


def test_a_method_without_a_draft_checkpoint_is_refused():
    """Only draft_target pairs two checkpoints."""
    assert _codes(method="medusa")[0] == ("error", "method.unknown")


def test_everything_is_reported_at_once_errors_first():
    """One run shows all that is wrong."""
    draft = info(vocab_size=5, max_position_embeddings=16, tokenizer=tokenizer(merges_digest="x", chat_template=None))

    found = _codes(TARGET, draft, num_draft_tokens=0)
    severities = [severity for severity, _ in found]

    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    assert len(found) >= 6
