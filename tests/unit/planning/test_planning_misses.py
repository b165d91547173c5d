"""A miss is explained: by the stored engine that is nearest, and what differs from it."""

from __future__ import annotations

from specdeploy.planning.misses import explain_miss
from tests.unit.engine.fakes import manifest, planned, step

CONVERT = {"tp_size": "2", "checkpoint": "a" * 64}
BUILD = {"max_batch_size": "8", "max_seq_len": "1024"}


def wanted(**changes):
    """A planned engine of two steps, some parts of the second changed."""
    steps = (step("1" * 64, name="convert", parts=CONVERT), step("2" * 64, name="build", parts={**BUILD, **changes}))
    return planned(steps=steps)


def stored(key="a", *, convert=None, **changes):
    """A stored engine with other parts."""
    parts = {"convert": {**CONVERT, **(convert or {})}, "build": {**BUILD, **changes}}
    return manifest(key * 64, parts=parts)


def test_an_empty_store_explains_nothing():
    """There is nothing to compare with."""
    miss = explain_miss(wanted(), ())

    assert (miss.nearest, miss.reasons) == (None, ())


def test_the_reason_names_the_old_and_the_new_value():
    """What a person who changed one key expects to read."""
    miss = explain_miss(wanted(max_batch_size="16"), [stored()])

    assert (miss.nearest, miss.reasons) == ("a" * 64, ("max_batch_size 8 → 16",))


def test_the_nearest_engine_is_compared():
    """Not the one that differs in everything."""
    far = stored("b", convert={"tp_size": "4"}, max_batch_size="1", max_seq_len="64")

    miss = explain_miss(wanted(max_batch_size="16"), [far, stored("c")])

    assert miss.nearest == "c" * 64


def test_what_was_added_and_what_is_gone_is_named():
    """A flag that one of them does not have."""
    miss = explain_miss(wanted(max_draft_len="4"), [stored(gemm_plugin="auto")])

    assert miss.reasons == ("max_draft_len absent → 4", "gemm_plugin auto → absent")


def test_fingerprints_are_shortened():
    """Sixty-four digits tell nobody more than twelve."""
    miss = explain_miss(wanted(), [stored(convert={"checkpoint": "b" * 64})])

    assert miss.reasons == (f"checkpoint {'b' * 12} → {'a' * 12}",)


def test_engines_of_other_profiles_are_not_compared():
    """And neither are those whose manifest does not say what they were made from."""
    assert explain_miss(wanted(), [manifest("b" * 64, profile="llmapi", parts={"x": {}}), manifest()]).nearest is None
