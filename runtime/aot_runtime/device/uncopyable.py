"""Base classes of objects that cannot be copied or pickled."""

from __future__ import annotations

from typing import Any, NoReturn


class OneOfAKind:
    """Base of objects that own a device resource. Copying and pickling them raises `TypeError`.

    A copy would release the resource twice, and other processes do not have it.
    """

    __slots__ = ()
    _instead = ""
    """Hint for the error message."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"a {name} cannot be copied or pickled: it belongs to its process{self._instead}")


class Shared(OneOfAKind):
    """Base of immutable ones. `copy` returns the object itself."""

    __slots__ = ()

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self
