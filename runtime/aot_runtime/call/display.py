"""Display ops and bundles: an op's call in one line, and HTML for notebooks."""

from __future__ import annotations

from html import escape

from aot_runtime.contract.records import Index, Op
from aot_runtime.texts import ID_LENGTH

from .arguments import Argument, default_value, parameter_texts
from .documentation import Built, bundle_title, call_signature, docstring, summary

SHORT = 60
"""Columns of a call in a `repr`; longer ones are cut off."""


def call_text(op: Op, width: int = SHORT) -> str:
    """Return an abbreviated call: `softmax(x, mask=None, *, out=None, …)`."""
    text = f"{op.name}("
    for number, part in enumerate(parameter_texts(op, _short)):
        separator = ", " if number else ""
        if len(text) + len(separator) + len(part) > width:
            return f"{text}{separator}…)"
        text += separator + part
    return f"{text})"


def _short(argument: Argument) -> str:
    return f"{argument.name}={default_value(argument)!r}" if argument.default else argument.name


def html(op: Op, built: Built | None = None) -> str:
    """Return an op's signature and docstring as HTML, for notebooks."""
    return (
        f"<pre><b>{op.name}</b>{escape(str(call_signature(op)), False)}\n\n{escape(docstring(op, built), False)}</pre>"
    )


def bundle_html(index: Index, device: str) -> str:
    """Return a table of a bundle's ops as HTML, for notebooks."""
    rows = "".join(
        f"<tr><td style='text-align: left'><code>{escape(call_text(op))}</code></td>"
        f"<td style='text-align: left'>{escape(summary(op))}</td></tr>"
        for op in index.ops
    )
    title = f"Bundle {bundle_title(index)} on {device}, id {index.id[:ID_LENGTH]}"
    return f"<p>{escape(title)}</p><table><tr><th>Op</th><th></th></tr>{rows}</table>"
