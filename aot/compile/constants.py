"""Values of constexpr parameters, as plain data: what jobs have instead of Triton's own objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dtype:
    """A dtype, by the name that Triton has for it in signatures: `fp16`, `i32`."""

    name: str

    def __repr__(self) -> str:
        return f"the dtype {self.name}"


Constant = int | float | bool | str | None | Dtype | tuple["Constant", ...]


def dtype_of(value: Any) -> Dtype | None:
    """A `tl.dtype` as a constant; None for anything else."""
    import triton.language as tl

    if type(value) is not tl.dtype or value == tl.void:  # a type of pointers is of another class
        return None
    return Dtype(str(value.name).replace("uint", "u").replace("int", "i"))


def triton_constant(constant: Any) -> Any:
    """A constant, or a function, as Triton takes it."""
    if isinstance(constant, Dtype):
        from triton.language import str_to_ty

        return str_to_ty(constant.name, None)
    return tuple(map(triton_constant, constant)) if isinstance(constant, tuple) else constant
