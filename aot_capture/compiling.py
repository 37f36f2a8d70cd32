"""The compilation in progress: the locals of Triton's `compile()` and of the launch that called it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any, Optional

from .installation import triton_root


@dataclass(frozen=True)
class Compilation:
    """The arguments of a call to `triton.compile()`, as far as Triton's key depends on them."""

    source: Any
    target: Any
    backend: Any
    options: Any
    environment: dict[str, str]
    given: dict[str, Any]
    site: Optional[str]

    @property
    def key(self) -> list[str]:
        """The parts of Triton's key after that of the installation."""
        return [
            self.source.hash(),
            self.backend.hash(),
            self.options.hash(),
            str(sorted(self.environment.items())),
        ]


def current_compilation() -> Optional[Compilation]:
    """Return what this thread compiles; None outside `compile()` and for sources that are not Python functions."""
    frame = caller("compile", os.path.join("compiler", "compiler.py"))
    if frame is None:
        return None
    names = frame.f_locals
    source, target, options = names.get("src"), names.get("target"), names.get("options")
    if not hasattr(source, "fn") or target is None or not hasattr(options, "hash"):
        return None
    return Compilation(
        source=source,
        target=target,
        backend=names["backend"],
        options=options,
        environment=dict(names.get("env_vars") or {}),
        given=_given(frame, options),
        site=call_site(frame),
    )


def caller(function: str, file: str, frame: Optional[FrameType] = None) -> Optional[FrameType]:
    """Return the nearest frame of a function of Triton among the callers; by default of this function."""
    frame = frame or sys._getframe(1)
    root = str(triton_root())
    while frame is not None:
        code = frame.f_code
        if code.co_name == function and code.co_filename.endswith(file) and code.co_filename.startswith(root):
            return frame
        frame = frame.f_back
    return None


def _given(frame: FrameType, options: Any) -> dict[str, Any]:
    launch = caller("run", os.path.join("runtime", "jit.py"), frame)
    kwargs = launch.f_locals.get("kwargs") if launch is not None else None
    return {name: value for name, value in (kwargs or {}).items() if name in vars(options)}


def call_site(frame: Optional[FrameType]) -> Optional[str]:
    """Return `file:line` of the nearest frame outside Triton: of the launch."""
    roots = (str(triton_root()), os.path.dirname(os.path.abspath(__file__)), "<")
    while frame is not None:
        if not frame.f_code.co_filename.startswith(roots):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None
