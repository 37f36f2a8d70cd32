"""What is among a jit function's globals for what could not be evaluated. Triton may hash it, which makes nothing of
it; to read it while it compiles is an error that says why it is not there."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from aot.errors import KernelFileError


class UnreadableError(KernelFileError):
    """A jit function reads a global that could not be evaluated."""

    def __repr__(self) -> str:  # this is what Triton says of it
        return self.reason


class UnreadableAttributeError(AttributeError):
    """As `UnreadableError`, of an attribute: Triton asks whether it is there when it hashes."""

    def __repr__(self) -> str:
        return str(self)


class Unreadable:
    """A global. `text`: its name, and why it is not there."""

    __triton_aggregate__ = True  # so that it is hashed, as nothing
    hash_attrs = ()

    def __init__(self, text: str):
        self.text, self.__annotations__ = text, {}

    @property
    def __triton_builtin__(self) -> bool:
        raise UnreadableError(self.text)

    def __getattr__(self, name: str) -> Any:
        raise UnreadableAttributeError(self.text)


class SignatureOnly:
    """A global that annotations and defaults of parameters read: Triton evaluates them, and makes nothing of them.

    Args:
        attributes: what they take of it, at any depth.
        text: why nothing else may be taken of it.
    """

    __triton_builtin__ = True

    def __init__(self, attributes: Iterable[str], text: str):
        self._attributes, self._text = frozenset(attributes), text

    def __repr__(self) -> str:
        return self._text

    def __getattr__(self, name: str) -> SignatureOnly:
        if name not in self._attributes:
            raise UnreadableAttributeError(self._text)
        return SignatureOnly(self._attributes, self._text)

    def __getitem__(self, index: object) -> SignatureOnly:
        return self


class Members:
    """A module that has what a function reads of another, be it that this could not be evaluated."""

    def __init__(self, name: str):
        self.module = ModuleType(name)
        self.found: dict[str, Any] = {}
        self.module.__dict__["__getattr__"] = self._missing

    def add(self, name: str, value: Any) -> None:
        self.found[name] = value
        if not isinstance(value, Unreadable):
            setattr(self.module, name, value)

    def _missing(self, name: str) -> Any:
        value = self.found.get(name)
        text = value.text if isinstance(value, Unreadable) else f"module {self.module.__name__!r} has no {name!r}"
        raise UnreadableAttributeError(text)
