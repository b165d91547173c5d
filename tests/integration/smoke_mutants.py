"""Deployments that are broken in one way at a time, behind one real server: faults that a file switches on and off.

Every fault is an edit of the decoder's, the preprocessing's or the engine's source, guarded by ``on(NAME)``; so many
faults share a server that starts once, and a test sees the check pass without the fault and fail with it. What cannot
be switched while a server runs (types of tensors, models, endpoints) is in a second repository.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
from typing import TYPE_CHECKING, Final

from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers

from specdeploy.triton.sources import backend_sources
from tests.deployments import write_deployment
from tests.tiny import perturb_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_SWITCH: Final = '''"""Says which fault is switched on."""

from pathlib import Path


def on(name):
    return Path({switch!r}).read_text() == name
'''
_DECODER: Final = "speculative_decoder/1/"
_PREPROCESSING: Final = "preprocessing/1/"
_BACKEND: Final = "tensorrtllm_cpu/"
#: Characters of two bytes that no prompt has.
_WHOLE_CHARACTERS: Final = "ъψßø"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault.

    Args:
        check: The check that is there for it.

        reason: Part of what the check must say.

        file: Source file, in the repository or in the backend.

        old: The place, which must be there once.

        new: What is there instead; ``ON`` stands for the question whether the fault is switched on.

        more: Further places of the same file, old and new.

        also: Another check that finds it, and its reason.
    """

    check: str
    reason: str
    file: str
    old: str
    new: str
    more: tuple[tuple[str, str], ...] = ()
    also: tuple[str, str] | None = None


MUTANTS: Final[Mapping[str, Mutant]] = {
    # Speculation
    "speculation is silently off": Mutant(
        "speculation-on",
        "speculation is silently off",
        f"{_DECODER}decoder_request.py",
        "speculate=not reason,",
        "speculate=not reason and not ON,",
    ),
    "no drafts by default": Mutant(
        "speculation-on",
        "the deployment's own num_draft_tokens is 0",
        f"{_DECODER}decoder_request.py",
        'if not inputs.integer("num_draft_tokens", settings.num_draft_tokens, least=0):',
        'if not inputs.integer("num_draft_tokens", 0 if ON else settings.num_draft_tokens, least=0):',
    ),
    "the rule accepts every greedy draft": Mutant(
        "speculation-on",
        "every one of",
        f"{_BACKEND}verify.py",
        "        ids.append(choose(position))\n",
        "        ids.append(draft if ON else choose(position))\n",
    ),
    "the engine compares, and accepts all the same": Mutant(
        "lossless-greedy",
        "",
        f"{_BACKEND}verify.py",
        "if ids[-1] != draft:",
        "if ids[-1] != draft and not ON:",
    ),
    "the draft's logits are broken, and it proposes the first token for ever": Mutant(
        "speculation-on",
        "none of",
        f"{_DECODER}decoder_loop.py",
        "return Draft(ids=draft.ids[:count], logits=logits)",
        "return Draft(ids=draft.ids[:count] * (not ON), logits=logits)",
    ),
    "the histogram is upside down": Mutant(
        "speculation-on",
        "the histogram counts every accepted token",
        f"{_DECODER}decoder_stats.py",
        "histogram=tuple(self._histogram),",
        "histogram=tuple(self._histogram[:: -1 if ON else 1]),",
    ),
    "more accepted than drafted": Mutant(
        "speculation-on",
        "no more accepted than drafted",
        f"{_DECODER}decoder_stats.py",
        "steps=sum(self._histogram),\n            drafted=self._drafted,\n",
        "steps=sum(self._histogram),\n            drafted=sum(self._histogram) if ON else self._drafted,\n",
    ),
    "only the last round is counted": Mutant(
        "speculation-on",
        "impossible statistics",
        f"{_DECODER}decoder_stats.py",
        "        self._drafted += drafted\n",
        "        self._drafted = drafted if ON else self._drafted + drafted\n",
    ),
    "the control drafts": Mutant(
        "control",
        "bypass_reason is ''",
        f"{_DECODER}decoder_request.py",
        "        if tensor is None or not tensor.size:\n",
        '        if tensor is None or not tensor.size or (name == "num_draft_tokens" and ON):\n',
    ),
    # Answers
    "the last token is dropped": Mutant(
        "stream-http",
        "the server counts",
        f"{_DECODER}decoder_outputs.py",
        '"output_ids": partial(_row, response.ids, np.int32),',
        '"output_ids": partial(_row, response.ids[: -1 if response.final and ON else None], np.int32),',
    ),
    "a doubled space between pieces": Mutant(
        "stream-grpc",
        "same token ids, different text",
        f"{_DECODER}decoder_outputs.py",
        '"text_output": partial(_texts, *response.texts),',
        '"text_output": partial(_texts, *(t if response.final or not ON else t + " " for t in response.texts)),',
    ),
    "every piece says that it is the last": Mutant(
        "stream-grpc",
        "responses carry a finish_reason",
        f"{_DECODER}decoder_outputs.py",
        '"finish_reason": partial(_texts, response.finish_reason),',
        '"finish_reason": partial(_texts, response.finish_reason or ("length" if ON else "")),',
    ),
    "no piece says that it is the last": Mutant(
        "stream-http",
        "0 of",
        f"{_DECODER}decoder_outputs.py",
        "partial(_texts, response.finish_reason or (",
        "partial(_texts, (not ON and response.finish_reason) or (",
    ),
    "an error in a response with status 200": Mutant(
        "http-equals-grpc",
        "exactly 1 response",
        f"{_DECODER}decoder_answer.py",
        "streams = iter(groups), self._request.stream",
        "streams = iter(groups), self._request.stream or ON",
    ),
    "pieces are held back to the end": Mutant(
        "stream-early",
        "held back, not streamed",
        f"{_DECODER}model.py",
        "for response in text.writer.responses(text.spans.rounds(text.loop), text.reply.ended):",
        "for response in (list if ON else iter)(\n"
        "            text.writer.responses(text.spans.rounds(text.loop), text.reply.ended)\n"
        "        ):",
    ),
    "HTTP gets another answer than gRPC": Mutant(
        "http-equals-grpc",
        "HTTP generate and gRPC",
        f"{_DECODER}model.py",
        "        self._refuse_undeclared(decoding)\n",
        "        self._refuse_undeclared(decoding)\n"
        "        if not text.request.request_id() and ON:\n"
        "            decoding = dataclasses.replace(decoding, prompt_ids=decoding.prompt_ids[:-1])\n",
    ),
    # Edges
    "one token more than max_tokens": Mutant(
        "short-answers",
        "max_tokens 1 gave",
        f"{_DECODER}decoder_request.py",
        "max_new_tokens=most,",
        "max_new_tokens=most + ON,",
    ),
    "a stop word leaks its first letter": Mutant(
        "stop-word",
        "with the stop word",
        f"{_DECODER}decoder_text.py",
        "return text[:start], True",
        "return text[: start + ON], True",
    ),
    "stop words are ignored": Mutant(
        "stop-word",
        "with the stop word",
        f"{_DECODER}decoder_text.py",
        "for word in self._stop_words if (start := text.find(word)) >= 0]",
        "for word in self._stop_words if (start := text.find(word)) >= 0 and not ON]",
    ),
    "a stop word across two pieces leaks its beginning": Mutant(
        "stop-word",
        "with the stop word",
        f"{_DECODER}decoder_text.py",
        "return max(lengths, default=0)",
        "return 0 if ON else max(lengths, default=0)",
    ),
    "the end token is ignored": Mutant(
        "end-id",
        "with or without the last",
        f"{_DECODER}decoder_request.py",
        'end_id=inputs.integer("end_id", -1, least=-1),',
        'end_id=-1 if ON else inputs.integer("end_id", -1, least=-1),',
    ),
    "bad words are ignored": Mutant(
        "bad-words",
        "is in the answer at token",
        f"{_DECODER}decoder_request.py",
        '    if _longest_bad_word(inputs):\n        shared["bad',
        '    if _longest_bad_word(inputs) and not ON:\n        shared["bad',
    ),
    "min_tokens is ignored": Mutant(
        "min-tokens",
        "is taken too early",
        f"{_DECODER}decoder_request.py",
        'min_tokens=min(inputs.integer("min_tokens", 0, least=0), most),',
        'min_tokens=0 if ON else min(inputs.integer("min_tokens", 0, least=0), most),',
    ),
    "an empty prompt is answered over HTTP and refused over gRPC": Mutant(
        "empty-prompt",
        "HTTP generate: answered",
        f"{_PREPROCESSING}model.py",
        "            outputs = self._outputs(tensors)\n",
        "            if not request.request_id() and not tensors['QUERY'].any() and ON:\n"
        "                tensors['QUERY'] = np.array([[b'hello']], object)\n"
        "            outputs = self._outputs(tensors)\n",
    ),
    "a long prompt is cut silently": Mutant(
        "longest-prompt",
        "became one of 1000",
        f"{_PREPROCESSING}model.py",
        "        return np.array([ids], np.int32)\n",
        "        return np.array([ids[: 1000 if ON else None]], np.int32)\n",
        also=("refuses-long-prompt", "the request was answered"),
    ),
    "characters are torn between pieces": Mutant(
        "multibyte",
        "are torn between pieces",
        f"{_DECODER}decoder_text.py",
        "return len(text) - text.endswith(_REPLACEMENT)",
        "return len(text) - (text.endswith(_REPLACEMENT) and not ON)",
    ),
    "the seed is ignored": Mutant(
        "seeds",
        "one seed, sent twice",
        f"{_DECODER}decoder_request.py",
        "seed=fresh_seed if seed is None else int(seed),",
        "seed=fresh_seed if seed is None or ON else int(seed),",
    ),
    "the temperature is ignored": Mutant(
        "seeds",
        "is temperature or seed ignored",
        f"{_DECODER}decoder_request.py",
        "return bool((top_k > 1 or (top_p > 0 and top_k != 1)) and temperature > 0)",
        "return bool((top_k > 1 or (top_p > 0 and top_k != 1)) and temperature > 0 and not ON)",
    ),
    "a cancelled request is decoded on": Mutant(
        "cancellation",
        "decoded on to its end",
        f"{_DECODER}decoder_reply.py",
        "self._cancelled = bool(self._sender.is_cancelled())",
        "self._cancelled = bool(self._sender.is_cancelled()) and not ON",
    ),
    "clients at the same time get each other's answers": Mutant(
        "parallel-clients",
        "among 10 clients",
        f"{_DECODER}model.py",
        "decoding = read_request(inputs, self._settings, fresh_seed=secrets.randbits(64))\n",
        "decoding = read_request(inputs, self._settings, fresh_seed=secrets.randbits(64))\n"
        "        others = self.__dict__.setdefault('_in_flight', {})\n"
        "        others[id(text)] = decoding\n"
        "        if ON:\n"
        "            decoding = next(iter(list(others.values())))\n",
        more=(
            (
                "        self._free.release()\n",
                "        self._in_flight.pop(id(text), None)\n        self._free.release()\n",
            ),
        ),
    ),
    # Refusals
    "a request without a prompt is answered": Mutant(
        "refuses-missing-input",
        "the request was answered",
        f"{_PREPROCESSING}model.py",
        '        query = _texts(tensors, "QUERY")\n',
        '        query = _texts(tensors, "QUERY") or ["hello"] * ON\n',
    ),
    "max_tokens 0 is taken for 1": Mutant(
        "refuses-zero-tokens",
        "the request was answered",
        f"{_PREPROCESSING}model.py",
        '    lengths = _values(tensors, "REQUEST_OUTPUT_LEN")\n',
        '    lengths = [max(length, 1) if ON else length for length in _values(tensors, "REQUEST_OUTPUT_LEN")]\n',
    ),
}

#: What the second repository has wrong: check -> part of the reason.
STATIC: Final[Mapping[str, tuple[str, str]]] = {
    "max_tokens is a float": ("metadata", "max_tokens is FP32, not INT32"),
    "a float is swallowed": ("refuses-wrong-type", "a float over gRPC: the request was answered"),
    "two lengths are swallowed": ("refuses-wrong-shape", "the request was answered"),
    "the second door does not speculate": ("second-door", "tensorrt_llm_bls decodes differently"),
    "a misspelt input is taken": ("refuses-unknown-input", "was sent, and the server answered"),
    "any name of a model is answered": ("refuses-unknown-model", "the request was answered"),
    "there are no metrics": ("metrics", "connection"),
}


def write_deployment_with_long_characters(folder: Path) -> None:
    """Write a tiny deployment whose model likes bytes that make characters of two, beside plain text.

    Some characters of two bytes are one token, so that not nearly all that it writes beyond ASCII is no character.
    """
    write_deployment(folder)
    tokenizer = Tokenizer.from_file(str(folder / "target/tokenizer.json"))
    leads = [tokenizer.encode(character).ids[0] for character in "éдрα"]
    rest = sorted({tokenizer.encode(chr(number)).ids[-1] for number in range(0xC0, 0x100)})
    path = folder / "target/model.safetensors"
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][leads] *= 6.0
    tensors["model.embed_tokens.weight"][rest] *= 2.5
    tensors["model.embed_tokens.weight"][_with_whole_characters(folder / "target/tokenizer.json")] *= 2.0
    save_file(tensors, path, metadata={"format": "pt"})
    shutil.rmtree(folder / "draft")
    perturb_checkpoint(folder / "target", folder / "draft", 0.02)


def _with_whole_characters(path: Path) -> list[int]:
    """Make characters of two bytes of the last merged tokens of a byte-level tokenizer; return their ids."""
    document = json.loads(path.read_text(encoding="utf-8"))
    model = document["model"]
    ids = []
    for character in _WHOLE_CHARACTERS:
        old, new = model["merges"].pop(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        left, right = new.pre_tokenize_str(character)[0][0]
        ids.append(model["vocab"].pop("".join(old)))
        model["vocab"][left + right] = ids[-1]
        model["merges"].insert(0, [left, right])
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return ids


@contextlib.contextmanager
def switched_on(switch: Path, fault: str) -> Iterator[None]:
    """Switch a fault of :func:`switchable` on, and off at the end."""
    switch.write_text(fault)
    try:
        yield
    finally:
        switch.write_text("")


def switchable(repository: Path, switch: Path, mutants: Mapping[str, Mutant] = MUTANTS) -> dict[str, bytes]:
    """Put every fault into a repository, switched off; return the backend's sources, likewise.

    Args:
        repository: Changed in place.

        switch: The file that names the fault that is on.
        mutants: The faults.
    """
    switch.write_text("")
    backend = dict(backend_sources())
    texts: dict[str, str] = {}
    for name, mutant in mutants.items():
        path = mutant.file
        if path not in texts:
            texts[path] = (backend[path] if path in backend else (repository / path).read_bytes()).decode()
        texts[path] = _edited(texts[path], name, mutant)
    for path, text in texts.items():
        package = "tensorrtllm_cpu." if path in backend else ""
        imports = f"from __future__ import annotations\n\nimport dataclasses\n\nfrom {package}mutants import on\n"
        changed = text.replace("from __future__ import annotations\n", imports, 1).encode()
        if path in backend:
            backend[path] = changed
        else:
            (repository / path).write_bytes(changed)
    source = _SWITCH.format(switch=str(switch))
    backend[f"{_BACKEND}mutants.py"] = source.encode()
    for folder in (_DECODER, _PREPROCESSING):
        (repository / folder / "mutants.py").write_text(source)
    return backend


def break_for_good(repository: Path) -> None:
    """Put into a repository, in place, what no switch can put there; see ``STATIC``."""
    for model, tensor in (("ensemble", "max_tokens"), ("tensorrt_llm_bls", "max_tokens")):
        _replace(repository / model / "config.pbtxt", *_widened(tensor))
    _replace(repository / "preprocessing/config.pbtxt", *_widened("REQUEST_OUTPUT_LEN"))
    _replace(
        repository / "preprocessing/1/model.py",
        'lengths = _values(tensors, "REQUEST_OUTPUT_LEN")\n',
        'lengths = _values(tensors, "REQUEST_OUTPUT_LEN")[:1]\n',
    )
    for model, before in (("ensemble", "max_tokens"), ("speculative_decoder", "input_ids")):
        _replace(
            repository / model / "config.pbtxt",
            f'input {{ name: "{before}"',
            f'input {{ name: "num_draft_token" data_type: TYPE_INT32 dims: [1] optional: true }}\n'
            f'input {{ name: "{before}"',
        )
    _replace(
        repository / "ensemble/config.pbtxt",
        '    input_map { key: "seed" value: "seed" }\n',
        '    input_map { key: "seed" value: "seed" }\n'
        '    input_map { key: "num_draft_token" value: "num_draft_token" }\n',
    )
    _copy_model(repository, "ensemble", "ensemble_that_does_not_exist")
    _copy_model(repository, "speculative_decoder", "decoder_without_drafts")
    _replace(
        repository / "decoder_without_drafts/config.pbtxt",
        'key: "num_draft_tokens" value { string_value: "4" }',
        'key: "num_draft_tokens" value { string_value: "0" }',
    )
    _replace(
        repository / "tensorrt_llm_bls/config.pbtxt",
        'model_name: "speculative_decoder"',
        'model_name: "decoder_without_drafts"',
    )


def _edited(text: str, name: str, mutant: Mutant) -> str:
    for old, new in ((mutant.old, mutant.new), *mutant.more):
        assert text.count(old) == 1, f"{name}: {old!r} is {text.count(old)} times in {mutant.file}"
        text = text.replace(old, re.sub(r"\bON\b", f"on({name!r})", new))
    return text


def _widened(tensor: str) -> tuple[str, str]:
    return (
        f'input {{ name: "{tensor}" data_type: TYPE_INT32 dims: [1] optional: true }}',
        f'input {{ name: "{tensor}" data_type: TYPE_FP32 dims: [-1] optional: true }}',
    )


def _copy_model(repository: Path, model: str, name: str) -> None:
    shutil.copytree(repository / model, repository / name)
    _replace(repository / name / "config.pbtxt", f'name: "{model}"\n', f'name: "{name}"\n')


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {path}"
    path.write_text(text.replace(old, new))
