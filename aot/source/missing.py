"""Values that could not be computed, and the errors of reading them."""

from __future__ import annotations

from aot.errors import KernelFileError


class MissingError(KernelFileError):
    """A jit function reads a global that is missing."""

    def __repr__(self) -> str:  # this is what Triton says of it
        return self.reason


class AbsentError(AttributeError):
    """A module, or a missing global, lacks an attribute. Triton reads attributes when it hashes.

    Attributes:
        cause: the error of the statement that should have bound it; None if there is no such statement.
    """

    def __init__(self, text: str, cause: BaseException | None = None):
        super().__init__(text)
        self.cause = cause

    def __repr__(self) -> str:
        return str(self)


class Missing:
    """Placeholder for a value that could not be computed.

    Triton's hash ignores it as a global of a jit function, and compiling code that reads it is an error.

    Attributes:
        text: the value's name and the reason why it is missing.
        attributes: attributes that annotations and defaults of parameters read, which Triton evaluates without using
            them; None if only bodies of functions read the value.
    """

    hash_attrs = ()

    def __init__(self, text: str, attributes: frozenset[str] | None = None):
        self.text, self.attributes = text, attributes
        self.__triton_aggregate__, self.__annotations__ = attributes is None, {}

    def __repr__(self) -> str:
        return self.text

    @property
    def __triton_builtin__(self) -> bool:
        if self.attributes is None:
            raise MissingError(self.text)
        return True

    def __getattr__(self, name: str) -> Missing:
        if name not in (self.__dict__.get("attributes") or ()):
            raise AbsentError(self.text)
        return self

    def __getitem__(self, index: object) -> Missing:
        return self
