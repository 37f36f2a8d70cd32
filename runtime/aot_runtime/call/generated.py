"""Functions whose source is written for one op or one plan: what a repeated call runs, and nothing else is.

Their source is known to `linecache`, so tracebacks and debuggers show it. They see no builtins.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any


def define(function: str, source: str, filename: str, names: Mapping[str, Any]) -> Callable[..., Any]:
    """The function of that name that `source` defines; its globals are `names`, and no builtins."""
    namespace = {"__builtins__": {}, **names}
    exec(_compiled(source, filename), namespace)
    defined: Callable[..., Any] = namespace[function]
    return defined


@lru_cache(maxsize=1024)
def _compiled(source: str, filename: str) -> CodeType:
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return compile(source, filename, "exec")
