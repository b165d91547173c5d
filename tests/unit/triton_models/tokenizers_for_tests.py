"""Two small tokenizers, one of each kind that language models use: byte level, and words with byte fallback."""

from __future__ import annotations

import functools

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "the quick brown fox",
    "über den Wolken 😀😀 für",
    "日本語 の",
    "stop here. stop there!",
    "a\n\nb  c",
]
END = "<|end|>"


@functools.cache
def byte_level() -> Tokenizer:
    """Like GPT-2's, Llama 3's and SmolLM2's: tokens are bytes, a character may be split over several."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@functools.cache
def byte_fallback() -> Tokenizer:
    """Like Llama 2's: words begin with U+2581, and a character outside the vocabulary becomes byte tokens."""
    characters = sorted({"▁", *"thequickbrownfxspdr. "})
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("s", "t"), ("o", "p"), ("st", "op")]
    names = [END, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *characters, *("".join(m) for m in merges)]
    vocab = {name: number for number, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(END, special=True), AddedToken("<unk>", special=True)])
    return tokenizer


KINDS = {"byte level": byte_level, "byte fallback": byte_fallback}
