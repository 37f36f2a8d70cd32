"""JIT compilation of numerical functions with numba, if it is installed (the extra `timing`).

Without numba the functions run as Python, with the same results but about a hundred times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile a function on its first call, with a persistent cache."""
    try:
        from numba import njit
    except ImportError:
        return function
    result: Any = njit(cache=True, nogil=True)(function)
    return cast(_Function, result)
