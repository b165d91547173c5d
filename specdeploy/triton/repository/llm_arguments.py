"""``model.yaml`` as the repository carries it: the arguments of ``tensorrt_llm.LLM`` with folders that exist there.

The engine store's own file names the checkpoints where they lie on the machine that wrote it. Here each of those
folders gets another name; everything else, and the comments on top, stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping


def relocate(text: str, folders: Mapping[str, str]) -> str:
    """Return the document with each value that is one of *folders* replaced by its new name.

    Args:
        text: A ``model.yaml``.
        folders: Absolute folder of a checkpoint -> what it is called where the repository is served.
    """
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    content = _replaced(yaml.safe_load(text), folders)
    return head + yaml.safe_dump(content, sort_keys=False, default_flow_style=False, width=1_000_000)


def _replaced(value: Any, folders: Mapping[str, str]) -> Any:  # noqa: ANN401  # YAML
    if isinstance(value, dict):
        return {key: _replaced(inner, folders) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, folders) for inner in value]
    return folders.get(value, value) if isinstance(value, str) else value
