"""What is known about a checkpoint without loading its weights.

Plain frozen values; reading them from a folder is ``checkpoint.read``, comparing two of them is ``checkpoint.compat``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.checkpoint.trtllm import TrtllmCheckpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """One tensor as a safetensors header lists it.

    Args:
        name: Its name in the checkpoint.
        dtype: As safetensors spells it, such as ``BF16``.
        shape: Its dimensions; empty for a scalar.
        nbytes: Bytes of its data.
        file: Name of the file that holds it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerInfo:
    """A tokenizer, in the parts that decide which ids a text becomes.

    Args:
        kind: The model's type: ``BPE``, ``Unigram``, ``WordPiece`` or ``WordLevel``.
        vocab: Token to id, without the added tokens.
        added_tokens: Token to id of the tokens added to the model, which are matched before it splits the text.
        special_tokens: Role (``bos_token``, ``eos_token``, ...) to token.
        merges_digest: SHA-256 of the merge rules (of a Unigram model: of its scores), however they are spelled.
        options_digest: SHA-256 of the model's switches, such as byte fallback.
        normalizer_digest: SHA-256 of the normalizer; empty without one. The next three are alike.
        pre_tokenizer_digest: What splits the text into words.
        post_processor_digest: What adds BOS and EOS.
        decoder_digest: What turns tokens back into text.
        chat_template: The (default) chat template, None without one.
        digest: SHA-256 of the bytes of ``tokenizer.json``: equal digests need no comparison.
    """

    kind: str
    vocab: Mapping[str, int] = dataclasses.field(repr=False)
    added_tokens: Mapping[str, int] = dataclasses.field(repr=False)
    special_tokens: Mapping[str, str]
    merges_digest: str
    options_digest: str
    normalizer_digest: str
    pre_tokenizer_digest: str
    post_processor_digest: str
    decoder_digest: str
    chat_template: str | None = dataclasses.field(repr=False)
    digest: str

    @property
    def size(self) -> int:
        """The number of ids that the tokenizer uses: its highest one plus one."""
        return 1 + max(max(self.vocab.values(), default=-1), max(self.added_tokens.values(), default=-1))

    def token_id(self, token: str) -> int | None:
        """Return a token's id; an added token hides one of the vocabulary."""
        return self.added_tokens.get(token, self.vocab.get(token))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """A Hugging Face checkpoint folder.

    Args:
        path: The folder, absolute.
        name: Its last component; in a hub's cache the model's.
        architecture: The model class, such as ``LlamaForCausalLM``.
        dtype: Of the weights, as torch spells it: ``bfloat16``, ``float16``, ``float32``.
        vocab_size: Rows of the embedding; at least as many as the tokenizer has ids, often padded.
        hidden_size: Width of the residual stream.
        num_layers: Decoder layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Width of a head.
        intermediate_size: Width of the feed-forward part.
        max_position_embeddings: Tokens of context that it was made for.
        rope_theta: Base of the rotary embedding.
        rope_scaling: Its scaling as the configuration gives it, None without one.
        tie_word_embeddings: Whether the output head is the embedding.
        rms_norm_eps: Epsilon of the normalisation.
        bos_token_id: Begin of sequence, None when not set; so is ``pad_token_id``.
        eos_token_ids: Ids that end an answer, the generation configuration's first.
        pad_token_id: Padding.
        parameters: Elements in the weights; a stored copy of a tied head is not counted.
        weight_bytes: Bytes of tensor data on disk.
        tensors: Every tensor, by name.
        tokenizer: Its tokenizer.
        fingerprint: SHA-256 of the content, for engine keys: a copy of the folder has the same one.
        stat_fingerprint: SHA-256 of names, sizes and modification times: equal means nothing was touched.
        sliding_window: Tokens that attention looks back, in all layers or in some; None when to the beginning.
        num_experts: Experts of a mixture that a layer chooses from; None when the network is dense.
        quant_method: How the stored weights are quantised already, such as ``awq`` or ``fp8``; None when they are not.
        converted: What it is when it is a TensorRT-LLM checkpoint, which ``trtllm-build`` reads as it is; else None.
    """

    path: str
    name: str
    architecture: str
    dtype: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    tie_word_embeddings: bool
    rms_norm_eps: float
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    parameters: int
    weight_bytes: int
    tensors: tuple[TensorInfo, ...] = dataclasses.field(repr=False)
    tokenizer: TokenizerInfo
    fingerprint: str
    stat_fingerprint: str
    sliding_window: int | None = None
    num_experts: int | None = None
    quant_method: str | None = None
    converted: TrtllmCheckpoint | None = dataclasses.field(default=None, repr=False)
