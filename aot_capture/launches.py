"""The launch that a kernel is compiled for: its grid, and the functions around it that compute its arguments."""

from __future__ import annotations

import linecache
import os
import types
from collections.abc import Iterator
from typing import Any, Optional

from .compiling import caller
from .installation import triton_root

LINES = 40  # of a function that are kept: more than a grid or a heuristic has


def current_launch(keep_source: bool) -> Optional[dict[str, Any]]:
    """Describe this thread's launch in progress; None if there is none.

    The keys are the fields of `records.Launch` except `kernel`.

    Args:
        keep_source: keep the source of functions. Functions without source cannot be rebuilt.
    """
    frame = caller("run", os.path.join("runtime", "jit.py"))
    if frame is None:
        return None
    bound = frame.f_locals.get("bound_args")
    arguments = bound if isinstance(bound, dict) else {}
    around = list(_around(frame))
    heuristics = {
        name: _function(function, keep_source)
        for one in around
        if isinstance(getattr(one, "values", None), dict)
        for name, function in one.values.items()
    }
    tuners = [one for one in around if isinstance(getattr(one, "keys", None), list)]
    configs = [config for one in tuners for config in one.configs]
    return {
        "grid": _grid(frame.f_locals.get("grid"), keep_source),
        "arguments": {str(name): value for name, value in arguments.items() if _is_number(value)},
        "heuristics": heuristics,
        "tuning_keys": [str(key) for one in tuners for key in one.keys],
        "tuned": sorted({name for config in configs for name in config.kwargs}),
    }


def _around(frame: types.FrameType) -> Iterator[Any]:
    """Yield the autotuner and the heuristics that the launch passes through. A benchmark's frames lie between them."""
    file, kernel = str(triton_root() / "runtime" / "autotuner.py"), frame.f_locals.get("self")
    outer: Optional[types.FrameType] = frame
    while outer is not None:
        if outer.f_code.co_name == "run" and outer.f_code.co_filename == file:
            one = outer.f_locals.get("self")
            if _wraps(one, kernel):
                yield one
        outer = outer.f_back


def _wraps(one: Any, kernel: Any) -> bool:
    while one is not None and one is not kernel:
        one = getattr(one, "fn", None)
    return one is kernel


def _grid(grid: Any, keep_source: bool) -> Any:
    if callable(grid):
        return _function(grid, keep_source)
    extents = list(grid) if isinstance(grid, (tuple, list)) else [grid]
    return extents if all(_is_number(extent) for extent in extents) else None


def _function(function: Any, keep_source: bool) -> Any:
    """Return the source of a function from its first line on, its name, and the texts and numbers that it reads."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType) or not keep_source:
        return None
    lines = linecache.getlines(code.co_filename, function.__globals__)
    values = dict(function.__globals__)
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            values.pop(name, None)
    names = [*code.co_freevars, *code.co_names]
    return {
        "name": code.co_name,
        "source": "".join(lines[code.co_firstlineno - 1 : code.co_firstlineno - 1 + LINES]),
        "texts": [text for text in code.co_consts if isinstance(text, str)],
        "parameters": list(code.co_varnames[: code.co_argcount]),
        "numbers": {name: values[name] for name in names if _is_number(values.get(name))},
    }


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool)
