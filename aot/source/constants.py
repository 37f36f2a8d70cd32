"""Values of constexpr parameters as plain data, which jobs have instead of Triton's objects."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dtype:
    """A dtype, by its name in Triton's signatures: `fp16`, `i32`."""

    name: str

    def __repr__(self) -> str:
        return f"the dtype {self.name}"


LAYOUTS = (
    *("AutoLayout", "BlockedLayout", "CoalescedLayout", "DistributedLinearLayout", "DotOperandLayout", "SliceLayout"),
    *(
        "NVMMADistributedLayout",
        "NVMMASharedLayout",
        "PaddedSharedLayout",
        "SharedLinearLayout",
        "SwizzledSharedLayout",
    ),
    *("AMDMFMALayout", "AMDWMMALayout"),
)
"""The classes of Gluon's layouts that a manifest may name."""


@dataclass(frozen=True)
class Layout:
    """A layout of Gluon.

    Attributes:
        text: a call of one of `LAYOUTS`, of numbers, lists and further layouts.
    """

    text: str

    def __repr__(self) -> str:
        return f"the layout {self.text}"


Constant = int | float | bool | str | None | Dtype | Layout | tuple["Constant", ...]


def dtype_of(value: Any) -> Dtype | None:
    """Convert a `tl.dtype`; None for anything else."""
    import triton.language as tl

    if type(value) is not tl.dtype or value == tl.void:  # a type of pointers is of another class
        return None
    return Dtype(str(value.name).replace("uint", "u").replace("int", "i"))


def layout_of(value: Any) -> Layout | None:
    """Convert a layout of Gluon; None for anything else."""
    return Layout(repr(value)) if type(value).__name__ in LAYOUTS and dataclasses.is_dataclass(value) else None


def triton_constant(constant: Any) -> Any:
    """Return Triton's object for a constant or a function. Raises as a layout's class does for wrong arguments."""
    if isinstance(constant, Layout):
        from triton.experimental.gluon import language

        classes = {name: getattr(language, name, None) or getattr(language.amd, name) for name in LAYOUTS}
        return eval(constant.text, {"__builtins__": {}}, classes)
    if isinstance(constant, Dtype):
        from triton.language import str_to_ty

        return str_to_ty(constant.name, None)
    return tuple(map(triton_constant, constant)) if isinstance(constant, tuple) else constant
