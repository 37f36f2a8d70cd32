"""Proposed ops as the text of a manifest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .draft import OpDraft

WIDTH = 116
_PLAIN = re.compile(r"[A-Za-z_][\w.]*|-?\d+(\.\d+)?(e-?\d+)?")
_WORDS = frozenset({"null", "true", "false", "~"})


def manifest_text(bundle: str, root: str, schema: str, ops: Sequence[OpDraft], command: str) -> str:
    """Return the text of a manifest of ops.

    Args:
        root: the project root relative to the manifest's folder; empty if it is the default.
        schema: path of the JSON schema of manifests.
        command: the command that builds it.
    """
    head = [f"# yaml-language-server: $schema={schema}", f"# {command}", f"bundle: {bundle}"]
    if root:
        head.append(f"root: {_scalar(root, False)}")
    lines = [*head, "ops:"]
    for op in ops:
        lines += ["", *_op(op)] if len(ops) > 1 and op is not ops[0] else _op(op)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _op(op: OpDraft) -> list[str]:
    lines = [f"  {op.name}:{_note(op, 'op')}"]
    if op.doc:
        lines.append(f"    doc: {_scalar(op.doc, False)}")
    lines += _mapping(op, "tensors", op.tensors)
    lines += _mapping(op, "scalars", op.scalars)
    if op.dtypes:
        lines.append(f"    dtypes: {_flow(op.dtypes)}")
    if op.require:
        lines.append(f"    require: {_flow(op.require)}{_note(op, 'require')}")
    if op.divisible:
        lines.append(f"    divisible: {_flow(op.divisible)}")
    lines += _mapping(op, "constexprs", op.constexprs)
    lines += ["    launches:", f"      - kernel: {_scalar(op.kernel, False)}{_note(op, 'kernel')}"]
    lines += _bind(op)
    lines.append(f"        grid: {_flow(op.grid)}{_note(op, 'grid')}")
    return [*lines, *_configs(op)]


def _mapping(op: OpDraft, key: str, items: dict[str, dict[str, Any]]) -> list[str]:
    if not items:
        return []
    whole = f"    {key}: {_flow(items)}{_note(op, key)}"
    if len(items) == 1 and len(whole) <= WIDTH and key != "tensors":
        return [whole]
    return [f"    {key}:", *(f"      {name}: {_flow(item)}{_note(op, key, name)}" for name, item in items.items())]


def _bind(op: OpDraft) -> list[str]:
    if not op.bind:
        return []
    noted = any(key == "bind" for key, _ in op.notes)
    whole = f"        bind: {_flow(op.bind)}"
    if len(whole) <= WIDTH and not noted:
        return [whole]
    lines, line = ["        bind: {"], "         "
    for name, value in op.bind.items():
        item = f" {_scalar(name)}: {_flow(value)},"
        note = _note(op, "bind", name)
        if len(line) + len(item) > WIDTH or note:
            lines.append(line)
            line = "         "
        line += item
        if note:
            lines.append(f"{line}{note}")
            line = "         "
    return [line for line in [*lines, line] if line.strip()] + ["        }"]


def _configs(op: OpDraft) -> list[str]:
    if not op.configs:
        return []
    note = _note(op, "blocks")
    if op.configs == [{"from_kernel": 0}]:
        return ["        configs: from kernel"]
    whole = f"        configs: {_flow(op.configs)}"
    if len(whole) + len(note) <= WIDTH or len(op.configs) == 1:
        return [f"{whole}{note}"]
    return ["        configs:", *(f"          - {_flow(config)}{note}" for config in op.configs)]


def _note(op: OpDraft, key: str, name: str | None = None) -> str:
    notes = [text for (group, item), text in op.notes.items() if group == key and name in (None, item)]
    return f"  # decide: {'; '.join(notes)}" if notes else ""


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any, in_flow: bool = True) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "n" in text else text.replace("e", ".0e")
    if isinstance(value, int):
        return str(value)
    unsafe = re.search(r"[,\[\]{}]" if in_flow else r"^[\[{]", value) or re.search(
        r": |:$| #|^[\s&*!|>'\"%@`?#-]|\s$", value
    )
    looks_other = value.lower() in _WORDS or re.fullmatch(r"[-+.\d][\d_.eE+-]*", value)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if unsafe or looks_other or not value else value
