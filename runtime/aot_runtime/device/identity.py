"""What may not be there twice."""

from __future__ import annotations

from typing import Any, NoReturn


class OneOfAKind:
    """An object that stands for something which its process has on a device. A copy would give it back a second time,
    and another process does not have it: copying and pickling are a `TypeError`.
    """

    __slots__ = ()
    _instead = ""
    """What to do instead, for the message."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"a {name} is neither copied nor pickled: it belongs to its process{self._instead}")


class Shared(OneOfAKind):
    """One that nobody changes or closes, so that it is its own copy."""

    __slots__ = ()

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self
