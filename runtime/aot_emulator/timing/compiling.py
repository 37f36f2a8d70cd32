"""Functions over arrays and numbers, compiled by numba where it is installed (the extra `timing`).

Elsewhere Python executes the same functions: the result is the same, some hundred times as slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """The function, compiled on its first call; its machine code is kept for later processes."""
    try:
        from numba import njit
    except ImportError:
        return function
    result: Any = njit(cache=True, nogil=True)(function)
    return cast(_Function, result)
