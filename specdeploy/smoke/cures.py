"""What to do when a check fails, in a sentence each; ``docs/smoke.md`` has more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Check -> what to do next. A test holds its names to those of the checks.
CURES: Final[Mapping[str, str]] = {
    "server-ready": "Read the server's log for the model that did not load; `specdeploy serve status` shows which.",
    "models-ready": "Read the server's log for the models that are named; then `specdeploy lint` and serve again.",
    "metadata": "Write the repository again with `specdeploy repo`, for the release that is served.",
    "metrics": "Serve with metrics (serve.metrics), and check the address given by --metrics.",
    "http-equals-grpc": "See whether a proxy stands before one of the two ends; compare the two answers shown.",
    "stream-http": "Compare the pieces shown; write a repository that was edited by hand anew with `specdeploy repo`.",
    "stream-grpc": "Compare the pieces shown; write a repository that was edited by hand anew with `specdeploy repo`.",
    "stream-early": "Look for what holds pieces back: a proxy that buffers, or a front door that does not stream.",
    "second-door": "Write the repository again with `specdeploy repo`: both doors are the same ensemble.",
    "speculation-on": "The reason says why it is off; where the draft failed, read the server's log.",
    "self-draft": "Look for what draft and target see differently: precision, KV cache, tokenizer, positions.",
    "control": "Use a server that nobody else sends requests to, and update the repository with `specdeploy repo`.",
    "lossless-greedy": "Keep speculation off (num_draft_tokens 0) until the first divergence is understood.",
    "lossless-batch": "Keep speculation off for batches (build.max_batch_size 1) until the divergence is understood.",
    "lossless-sampled": "Keep use_draft_logits off, or speculation off for sampled requests, until it is understood.",
    "short-answers": "Compare the ids shown with max_tokens: the last round must be cut, and never be dropped.",
    "stop-word": "Compare the two texts shown; update the repository with `specdeploy repo`.",
    "bad-words": "Compare the ids shown; where drafts are not masked, decode such requests with num_draft_tokens 0.",
    "end-id": "Compare the tokenizer's end token with the engine's; `specdeploy check` shows both.",
    "min-tokens": "Update the repository with `specdeploy repo`; the end token must be masked in drafts, too.",
    "empty-prompt": "Refuse empty prompts before they reach the server, until it answers or refuses them in time.",
    "longest-prompt": "Compare build.max_seq_len with the engines' own limits: `specdeploy engines show target`.",
    "multibyte": "Characters are cut between pieces: update the repository with `specdeploy repo`.",
    "seeds": "See whether the front door has the inputs seed and temperature: a misspelt one is ignored silently.",
    "cancellation": "A cancelled request holds its slot: shorten max_tokens, and restart the server when it fills up.",
    "parallel-clients": "Answers are mixed up between requests: serve one at a time (build.max_batch_size 1) for now.",
    "refuses-wrong-type": "Check types before requests reach the server, until it refuses them itself.",
    "refuses-wrong-shape": "Check shapes before requests reach the server, until it refuses them itself.",
    "refuses-missing-input": "Check for text_input before requests reach the server, until it refuses them itself.",
    "refuses-zero-tokens": "Refuse max_tokens 0 before it reaches the server, until it refuses it itself.",
    "refuses-long-prompt": "Limit the prompt before it reaches the server: build.max_seq_len less max_tokens.",
    "refuses-unknown-input": "Compare the inputs that clients send with those that the front door has.",
    "refuses-unknown-model": "See whether a proxy sends unknown names to another model.",
    "golden": "If the change is meant, record anew with `specdeploy smoke record`; else compare engines and release.",
}
