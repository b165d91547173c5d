"""Greedy answers of Hugging Face transformers, and how sure each token was; a program for the interpreter that has it.

    python tests/reference_greedy.py CHECKPOINT < request.json > answer.json

The request is ``{"prompts": [...], "max_tokens": n}``. The answer has, for each prompt, ``input_ids``, ``output_ids``
(with the end token, where it came), ``text``, and ``margins``: at each token of the answer, how far apart the logits of
the two likeliest tokens are. All is computed in float32, one sequence at a time, with transformers' ``generate``.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def answer(model: Any, tokenizer: Any, prompt: str, max_tokens: int) -> dict[str, Any]:
    """Answer one prompt."""
    inputs = tokenizer(prompt, return_tensors="pt")
    length = inputs["input_ids"].shape[1]
    done = model.generate(
        **inputs,
        max_new_tokens=max_tokens,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=tokenizer.eos_token_id,
    )
    ids = done.sequences[0, length:].tolist()
    best = [logits[0].topk(2).values.tolist() for logits in done.logits]
    margins = [first - second for first, second in best]
    return {
        "input_ids": inputs["input_ids"][0].tolist(),
        "output_ids": ids,
        "text": tokenizer.decode(ids, skip_special_tokens=True),
        "margins": margins,
    }


def main() -> None:
    """Answer the request on standard input."""
    import torch
    import transformers

    # Standard output carries the answer and nothing else.
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    request = json.load(sys.stdin)
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], torch_dtype=torch.float32).eval()
    with torch.inference_mode():
        answers = [answer(model, tokenizer, prompt, request["max_tokens"]) for prompt in request["prompts"]]
    json.dump({"transformers": transformers.__version__, "torch": torch.__version__, "answers": answers}, sys.stdout)


if __name__ == "__main__":
    main()
