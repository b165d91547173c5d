"""tokenizer.json of each model type, and the parts that are compared."""

from __future__ import annotations

import copy

import pytest

from specdeploy.checkpoint.tokenizer import BadTokenizer, tokenizer_info
from tests.unit.checkpoint.folders import TOKENIZER


def _info(document, settings=None, special_map=None, template=None):
    return tokenizer_info(
        document, settings=settings or {}, special_map=special_map or {}, chat_template=template, digest="d"
    )


def _changed(**model):
    document = copy.deepcopy(TOKENIZER)
    document["model"].update(model)
    return document


def test_a_unigram_vocabulary_is_numbered_by_place():
    """Its pieces carry scores instead of ids; the scores are part of what is compared."""
    first = _info(_changed(type="Unigram", vocab=[["<unk>", 0.0], ["a", -1.5]], merges=None))
    other = _info(_changed(type="Unigram", vocab=[["<unk>", 0.0], ["a", -1.6]], merges=None))

    assert (first.kind, first.vocab) == ("Unigram", {"<unk>": 0, "a": 1})
    assert first.merges_digest != other.merges_digest


@pytest.mark.parametrize(
    ("model", "kind"),
    [({"vocab": {}, "merges": []}, "BPE"), ({"vocab": []}, "Unigram"), ({"vocab": {}}, "WordPiece")],
)
def test_an_untyped_model_is_recognised(model, kind):
    """Old libraries left the type out."""
    assert _info({"model": model}).kind == kind


def test_switches_that_change_ids_are_compared_and_others_are_not():
    """Byte fallback changes what a text becomes; off is like absent, and dropout is for training."""
    plain = _info(TOKENIZER)

    assert _info(_changed(byte_fallback=True)).options_digest != plain.options_digest
    assert _info(_changed(byte_fallback=False, dropout=0.1)).options_digest == plain.options_digest


def test_special_tokens_are_merged():
    """The tokenizer's settings go before the older map; objects and strings are both tokens."""
    info = _info(TOKENIZER, {"eos_token": {"content": "</s>"}, "pad_token": None}, {"eos_token": "x", "pad_token": "p"})

    assert info.special_tokens == {"eos_token": "</s>", "pad_token": "p"}


def test_the_default_of_several_chat_templates_counts():
    """Some folders have a list of named templates."""
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]

    assert _info(TOKENIZER, {"chat_template": named}).chat_template == "D"
    assert _info(TOKENIZER, {"chat_template": named[:1]}).chat_template is None


def test_an_added_token_hides_the_vocabulary():
    """An id is looked up as the tokenizer would find it, added tokens first."""
    document = _changed(vocab={"<s>": 0, "a": 1})

    info = _info(document)

    assert (info.token_id("<s>"), info.token_id("a"), info.token_id("z")) == (4, 1, None)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "no `model`"),
        ({"model": {"vocab": 3}}, "a mapping or a list"),
        ({"model": {"vocab": ["a"]}}, "pairs"),
        (_changed(merges=[1]), "merges"),
        ({"model": {"vocab": {}}, "added_tokens": [{"id": 1}]}, "added_tokens"),
    ],
)
def test_other_layouts_are_refused(document, said):
    """What is not the layout of the tokenizers library is not guessed at."""
    with pytest.raises(BadTokenizer, match=said):
        _info(document)
