"""Values of constexpr parameters, as plain data: what jobs have instead of Triton's own objects."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dtype:
    """A dtype, by the name that Triton has for it in signatures: `fp16`, `i32`."""

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
    """A `tl.dtype` as a constant; None for anything else."""
    import triton.language as tl

    if type(value) is not tl.dtype or value == tl.void:  # a type of pointers is of another class
        return None
    return Dtype(str(value.name).replace("uint", "u").replace("int", "i"))


def layout_of(value: Any) -> Layout | None:
    """A layout of Gluon as a constant; None for anything else."""
    return Layout(repr(value)) if type(value).__name__ in LAYOUTS and dataclasses.is_dataclass(value) else None


def triton_constant(constant: Any) -> Any:
    """A constant, or a function, as Triton takes it. Raises whatever the class of a layout does for wrong arguments."""
    if isinstance(constant, Layout):
        from triton.experimental.gluon import language

        classes = {name: getattr(language, name, None) or getattr(language.amd, name) for name in LAYOUTS}
        return eval(constant.text, {"__builtins__": {}}, classes)
    if isinstance(constant, Dtype):
        from triton.language import str_to_ty

        return str_to_ty(constant.name, None)
    return tuple(map(triton_constant, constant)) if isinstance(constant, tuple) else constant
