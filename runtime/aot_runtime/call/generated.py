"""Compile generated source into functions.

Only the path of a repeated call is generated: equivalent closures take more than twice as long. The source is
registered with `linecache`, so tracebacks and debuggers show it. Generated functions see no builtins.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any


def define(function: str, source: str, filename: str, names: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the named function that `source` defines, with `names` as its only globals."""
    namespace = {"__builtins__": {}, **names}
    exec(_compiled(source, filename), namespace)
    defined: Callable[..., Any] = namespace[function]
    return defined


@lru_cache(maxsize=1024)
def _compiled(source: str, filename: str) -> CodeType:
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return compile(source, filename, "exec")
