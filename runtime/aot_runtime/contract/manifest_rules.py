"""Rules for new contracts. Opening a bundle does not need them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .records import Op
from .validate import Fault, expression_faults, structure_faults

RESERVED_OPS = frozenset(
    {"arch", "device", "explain", "id", "index", "load", "name", "ops", "path", "preload", "selftest", "version"}
)
"""Attributes of an open bundle, which no manifest may use as an op's name.

If an older bundle has an op of such a name, the op is `bundle["name"]`.
"""
_RULE = re.compile(r"(smallest|largest)\s*(>=|<=|>|<)\s*(.+)\Z", re.DOTALL)
_RULES = {("smallest", ">="), ("smallest", ">"), ("largest", "<="), ("largest", "<")}


def axis_rule(text: str) -> tuple[str, str]:
    """Split a `pick` into (rule, expression).

    `smallest >= head_dim` gives (`>=`, `head_dim`), and `causal` gives (`equal`, `causal`).
    """
    match = _RULE.match(text.strip())
    if match and (match[1], match[2]) in _RULES:
        return match[2], match[3]
    return "equal", text


def contract_faults(op: Op) -> Iterator[Fault]:
    """Yield every fault of a contract. Expressions are checked only if the structure is sound.

    Names of attributes of open bundles are faults in new contracts.
    """
    if op.name in RESERVED_OPS:
        yield Fault((), f"an op cannot be called '{op.name}': open bundles have an attribute of that name")
    sound = True
    for fault in structure_faults(op):
        sound = False
        yield fault
    if sound:
        yield from expression_faults(op)
