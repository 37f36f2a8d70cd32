"""The rules for calls. Each raises an error that names the argument."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np

from aot_runtime.contract.arch import BACKENDS
from aot_runtime.contract.dtypes import DTYPES, FLAG_TYPES, SCALAR_TYPES
from aot_runtime.contract.layout import (
    ALIGNMENT,
    RANGE_32,
    Layout,
    allowed_dtypes,
    divisors,
    innermost_dim,
    make_layout,
    packed_strides,
    packing_order,
)
from aot_runtime.contract.records import Axis, Op, Scalar, Tensor, Value, Variant, Workspace
from aot_runtime.errors import ArgumentError
from aot_runtime.texts import shown


def pick_value(axis: Axis, wanted: Any) -> Value | None:
    """Pick the axis value for a call whose `pick` expression evaluates to `wanted`, or None.

    `>=` (`>`) takes the smallest value that is >= (>) `wanted`, `<=` (`<`) the largest that is <= (<).
    """
    match axis.rule:
        case "equal":
            return next((value for value in axis.values if value == wanted), None)
        case ">=" | ">":
            fitting = [value for value in axis.values if value > wanted or (axis.rule == ">=" and value == wanted)]
            return min(fitting, default=None)
        case _:
            fitting = [value for value in axis.values if value < wanted or (axis.rule == "<=" and value == wanted)]
            return max(fitting, default=None)


class Rules:
    """The checks of one op's calls."""

    def __init__(self, op: Op, backend: str):
        self.op = op
        self.tensors = {tensor.name: tensor for tensor in op.tensors}
        self.grid_limits = BACKENDS[backend].grid_limits

    def error(self, message: str) -> ArgumentError:
        return ArgumentError(f"{self.op.name}: {message}")

    # Tensors

    def missing(self, name: str) -> NoReturn:
        """Raise the error for a missing argument."""
        raise self.error(f"argument '{name}' is missing")

    def form(self, name: str, layout: Layout) -> None:
        """Check rank, dtype and contiguity. Written tensors must also be writeable and must not overlap themselves."""
        tensor = self.tensors[name]
        if len(layout.shape) != len(tensor.shape) and not tensor.pointer:
            raise self.error(
                f"argument '{name}' has {len(layout.shape)} dims {list(layout.shape)}; "
                f"it takes {len(tensor.shape)}: {_dims(tensor)}"
            )
        allowed = allowed_dtypes(self.op, tensor)
        if layout.dtype not in allowed:
            raise self.error(f"argument '{name}' is {layout.dtype}; allowed: {', '.join(allowed)}")
        self._contiguity(tensor, layout)
        if tensor.role != "input" and not layout.writeable:
            raise self.error(f"argument '{name}' is written to, but is read-only")
        if tensor.role != "input" and not tensor.pointer and layout.packed_order is None:
            from .aliasing import require_distinct_elements

            require_distinct_elements(self.op.name, name, layout.shape, layout.strides)
        if tensor.zero and layout.packed_order is None:
            raise self.error(
                f"argument '{name}' has strides {list(layout.strides)} for shape {list(layout.shape)}; it is zeroed "
                "before the launch, so it must be packed (pass a contiguous array)"
            )

    def _contiguity(self, tensor: Tensor, layout: Layout) -> None:
        if tensor.innermost and self.innermost(tensor.name, layout) is None:
            names = " or ".join(f"{dim} ({tensor.shape[dim].extent})" for dim in tensor.innermost)
            raise self.error(
                f"argument '{tensor.name}' has strides {list(layout.strides)}; that of dim {names} must be 1 (make a "
                "contiguous copy)"
            )
        step = 1
        for dim in reversed(tensor.contiguous):
            if layout.shape[dim] != 1 and layout.strides[dim] != step:
                raise self.error(
                    f"argument '{tensor.name}' has stride {layout.strides[dim]} in dim {dim} "
                    f"({tensor.shape[dim].extent}); it must be {step}: that dim is contiguous (make a contiguous copy)"
                )
            step *= layout.shape[dim]

    def innermost(self, name: str, layout: Layout) -> int | None:
        """Return the innermost dim: of the allowed ones, the one with stride 1; else the last contiguous dim."""
        tensor = self.tensors[name]
        if tensor.innermost:
            return innermost_dim(layout.shape, layout.strides, tensor.innermost)
        return tensor.contiguous[-1] if tensor.contiguous else None

    def dtype(self, variable: str, layouts: Mapping[str, Layout | None]) -> str:
        """Return the dtype of a dtype variable. All its tensors must agree."""
        present = {name: layout for name, layout in layouts.items() if layout is not None}
        first = next(iter(present))
        for name, layout in present.items():
            if layout.dtype != present[first].dtype:
                raise self.error(
                    f"argument '{name}' is {layout.dtype}, but '{first}' is {present[first].dtype}; both are {variable}"
                )
        return present[first].dtype

    def extent(self, name: str, position: int, layout: Layout, expected: Any) -> None:
        """Check one extent of a tensor against its expected value. An extent `dim|1` may also be 1."""
        tensor = self.tensors[name]
        actual = layout.shape[position]
        if actual == expected or (tensor.shape[position].broadcast and actual == 1):
            return
        either = " or 1" if tensor.shape[position].broadcast else ""
        raise self.error(
            f"argument '{name}' has shape {list(layout.shape)}: dim {position} ({tensor.shape[position].extent}) is "
            f"{actual}, but must be {expected}{either} to agree with the other arguments"
        )

    def output(
        self,
        tensor: Tensor,
        exists: Any,
        given: Layout | None,
        dtype: str,
        shape: tuple[Any, ...],
        device: tuple[str, int],
    ) -> Layout | None:
        """Return an output's layout: the caller's, checked, or one to allocate; None if the output does not exist."""
        name = tensor.name
        if not exists:
            if given is not None:
                raise self.error(f"argument '{name}' is given, but exists only when {tensor.when}")
            return None
        if given is not None:
            self.form(name, given)
            for position, expected in enumerate(shape):
                self.extent(name, position, given, expected)
            return given
        for extent in shape:
            if not isinstance(extent, int) or extent < 0:
                raise self.error(f"the shape of output '{name}' would be {list(shape)}")
        order = packing_order(tensor, len(shape))
        return make_layout(device, dtype, shape, packed_strides(shape, order), True)

    def same_device(self, layouts: Mapping[str, Layout | None]) -> None:
        """Check that all arguments are on one device."""
        present = {name: layout for name, layout in layouts.items() if layout is not None}
        first = next(iter(present), "")
        for name, layout in present.items():
            if layout.device != present[first].device:
                raise self.error(
                    "argument '{}' is on {}:{}, but '{}' is on {}:{}".format(
                        name, *layout.device, first, *present[first].device
                    )
                )

    # Scalars and dims

    def scalar(self, scalar: Scalar, value: Any) -> Any:
        """Convert a scalar to its type. Raises `ArgumentError` for a wrong type, choice or range."""
        name = scalar.name
        if value is None:
            self.missing(name)
        if scalar.type == "choice":
            if not isinstance(value, str) or value not in scalar.choices:
                raise self.error(f"argument '{name}' is {shown(value)}; allowed: {', '.join(scalar.choices)}")
            return value
        if scalar.type in FLAG_TYPES:
            if not isinstance(value, bool | np.bool_) and not (isinstance(value, int) and value in (0, 1)):
                raise self.error(f"argument '{name}' is {shown(value)}; True or False is allowed")
            return bool(value)
        return self._number(scalar, value)

    def _number(self, scalar: Scalar, value: Any) -> int | float:
        kind = SCALAR_TYPES[scalar.type]
        try:
            number = float(value) if kind.low is None and not isinstance(value, str | bytes) else value.__index__()
        except (TypeError, ValueError, AttributeError, OverflowError):
            allowed = "a number" if kind.low is None else "an integer"
            raise self.error(f"argument '{scalar.name}' is {shown(value)}; {allowed} is allowed") from None
        low = max((limit for limit in (kind.low, scalar.min) if limit is not None), default=None)
        high = min((limit for limit in (kind.high, scalar.max) if limit is not None), default=None)
        if (low is not None and not number >= low) or (high is not None and not number <= high):
            allowed = f"{'-inf' if low is None else low} to {'inf' if high is None else high}"
            raise self.error(f"argument '{scalar.name}' is {shown(value)}; allowed: {allowed} ({scalar.type})")
        return number

    def out_of_range(self, name: str, value: Any, low: int, high: int) -> NoReturn:
        """Raise the error for a dim outside its limits."""
        raise self.error(f"{name} is {shown(value)}; allowed: {low} to {high}")

    def unmet(self, text: str, values: Mapping[str, Any]) -> NoReturn:
        """Raise the error for a condition of `require` that does not hold."""
        given = ", ".join(f"{name}={value}" for name, value in values.items())
        raise self.error(f"requires {text}{'; given: ' if given else ''}{given}")

    def derived(self, name: str, value: Any) -> Any:
        """Check that a derived value is a number below 2**63, so that chains of them stay bounded."""
        if not isinstance(value, int | float) or abs(value) >= 2**63:
            raise self.error(f"{name} would be {shown(value)}; a number below 2**63 is allowed")
        return value

    # Specialisation and launch

    def misalignment(self, layouts: Mapping[str, Layout | None], names: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the reasons why a call cannot use aligned variants. Tensor maps are checked per variant.

        Args:
            names: values of the op's dims and dtype variables.
        """
        reasons: list[str] = []
        for name, layout in layouts.items():
            if layout is not None:
                reasons += self.tensor_misalignment(name, layout)
        for dim, number in divisors(self.op, names).items():
            if names[dim] % number:
                reasons.append(f"{dim} is {names[dim]}, not a multiple of {number}")
        return tuple(reasons)

    def tensor_misalignment(self, name: str, layout: Layout) -> Iterable[str]:
        """Yield the reasons why aligned variants do not accept a tensor."""
        tensor = self.tensors[name]
        if not tensor.large and not layout.fits_32_bits:
            yield f"'{tensor.name}' spans {(layout.high - layout.low) * layout.itemsize} bytes or has a negative stride"
        if not tensor.align:
            return
        if not layout.aligned:
            yield f"the address of '{tensor.name}' is not a multiple of {ALIGNMENT}"
        if not tensor.align_strides:
            return
        innermost = self.innermost(tensor.name, layout)
        for dim, stride in enumerate(layout.kernel_strides):
            if stride % layout.unit and dim != innermost:
                yield f"stride {stride} of '{tensor.name}' in dim {dim} is not a multiple of {layout.unit}"

    def unmappable(self, name: str, layout: Layout) -> Iterable[str]:
        """Return the reasons why an argument cannot have a tensor map."""
        from aot_runtime.contract.tensor_maps import unmappable  # for kernels that take maps only

        return unmappable(name, layout, self.innermost(name, layout))

    def reach(self, layouts: Mapping[str, Layout | None]) -> None:
        """Check that each tensor spans less than 2**31 elements, unless the kernel has 64-bit offsets."""
        if self.op.wide_offsets:
            return
        for name, layout in layouts.items():
            if layout is not None and (layout.high >= RANGE_32 or -layout.low >= RANGE_32):
                raise self.error(
                    f"argument '{name}' reaches over {max(layout.high, -layout.low)} elements; this op's "
                    f"kernel takes less than {RANGE_32}"
                )

    def grid(self, extents: tuple[Any, Any, Any], variant: Variant) -> tuple[int, int, int]:
        """Check a launch grid against the device's limits."""
        limits = self.grid_limits(variant.num_warps * variant.warp_size)
        for axis, extent, limit in zip("xyz", extents, limits, strict=True):
            if not isinstance(extent, int) or not 0 <= extent <= limit:
                raise self.error(f"the launch grid would be {extents}; along {axis} 0 to {limit} is allowed")
        return extents

    def nbytes(self, space: Workspace, shape: tuple[Any, ...], names: Mapping[str, Any]) -> int:
        """Return the size of a workspace in bytes. `names` resolves dtype variables."""
        if any(not isinstance(extent, int) or extent < 0 for extent in shape):
            raise self.error(f"workspace '{space.name}' would have shape {shape}")
        return math.prod(shape) * DTYPES[names.get(space.dtype, space.dtype)].size


def _dims(tensor: Tensor) -> str:
    return "[" + ", ".join(dim.extent + ("|1" if dim.broadcast else "") for dim in tensor.shape) + "]"
