"""A proposed op as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .sizes import names_of


@dataclass
class OpDraft:
    """An op with the keys of a manifest.

    Attributes:
        notes: (key, name) → text about a decision that is left to a person.
    """

    name: str
    kernel: str
    doc: str = ""
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    scalars: dict[str, dict[str, Any]] = field(default_factory=dict)
    dtypes: dict[str, list[str]] = field(default_factory=dict)
    constexprs: dict[str, dict[str, Any]] = field(default_factory=dict)
    require: list[str] = field(default_factory=list)
    divisible: list[str] = field(default_factory=list)
    bind: dict[str, Any] = field(default_factory=dict)
    grid: list[str | int] = field(default_factory=list)
    configs: list[dict[str, Any]] = field(default_factory=list)
    blocks: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    notes: dict[tuple[str, str], str] = field(default_factory=dict)

    def note(self, key: str, name: str, text: str) -> None:
        """Add a note about a decision that is left to a person."""
        old = self.notes.get((key, name))
        self.notes[key, name] = f"{old}; {text}" if old and text not in old else text

    def names(self) -> set[str]:
        """Names that expressions may use, besides dims."""
        return {*self.tensors, *self.scalars, *self.dtypes, *self.constexprs}

    def dims(self) -> list[str]:
        """Names of dims, without duplicates."""
        shapes = [str(dim) for tensor in self.tensors.values() for dim in tensor["shape"]]
        names = (name for dim in shapes for name in sorted(names_of(dim)))
        return list(dict.fromkeys(name for name in names if name not in self.scalars))
