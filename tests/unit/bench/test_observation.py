"""What the responses to one request add up to."""

from __future__ import annotations

from specdeploy.bench.observation import Observation
from specdeploy.triton.protocol import Chunk


def observed(*chunks: Chunk) -> dict[str, object]:
    """Return the fields of a record whose responses come at 1, 2, 3, ... seconds."""
    observation = Observation()
    for at_s, chunk in enumerate(chunks, start=1):
        observation.add(chunk, float(at_s))
    assert observation.fault() == (None, "")
    return observation.fields()


class TestAServerThatCountsAtTheEnd:
    """Total and reason come with the last response, and nothing says how many tokens each one had."""

    def test_with_the_last_text(self) -> None:
        """Every response is a moment of the answer; none is said to hold tokens."""
        last = Chunk(text=" c", finish_reason="length", num_output_tokens=3, final=True)
        fields = observed(Chunk(text=" a"), Chunk(text=" b"), last)
        assert (fields["chunk_s"], fields["chunk_tokens"]) == ((1.0, 2.0, 3.0), (0, 0, 0))
        assert (fields["last_s"], fields["output_tokens"]) == (3.0, 3)

    def test_after_the_last_text(self) -> None:
        """A response with the reason and the total alone is not when the last token came."""
        last = Chunk(text="", finish_reason="end_id", num_output_tokens=2, final=True)
        fields = observed(Chunk(text=" a"), Chunk(text=" b"), last)
        assert (fields["chunk_s"], fields["chunk_tokens"]) == ((1.0, 2.0), (0, 0))
        assert (fields["last_s"], fields["output_tokens"]) == (2.0, 2)

    def test_one_response(self) -> None:
        """What comes all at once holds all tokens."""
        fields = observed(Chunk(text=" a b", finish_reason="length", num_output_tokens=2, final=True))
        assert (fields["chunk_s"], fields["chunk_tokens"]) == ((1.0,), (2,))


def test_a_server_that_counts_as_it_goes() -> None:
    """Each response holds what its total is more than the one before; half a character is a token without text."""
    chunks = (Chunk(text=" a", num_output_tokens=1), Chunk(text="", num_output_tokens=3))
    fields = observed(*chunks, Chunk(text="é", finish_reason="length", num_output_tokens=4, final=True))
    assert (fields["chunk_s"], fields["chunk_tokens"]) == ((1.0, 2.0, 3.0), (1, 2, 1))
