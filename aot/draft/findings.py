"""Findings in a kernel's body: accesses, bounds, flags and choices. `aot.draft.body` collects them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from .values import Sum

READ, WRITE, UPDATE = "read", "write", "update"


@dataclass(frozen=True)
class Bound:
    """An index that is below a limit: `offs_m < M`."""

    index: Sum
    limit: Sum


@dataclass(frozen=True)
class Guard:
    """A condition on a parameter that guards an operation: its value, or its presence."""

    parameter: str
    value: object = True
    presence: bool = False


@dataclass(frozen=True)
class Access:
    """A load, a store or an atomic.

    Attributes:
        pointer: address, which includes the tensor's argument.
        bounds: bounds of the mask.
    """

    kind: str
    pointer: Sum
    bounds: tuple[Bound, ...]
    guards: tuple[Guard, ...]


@dataclass(frozen=True)
class Described:
    """A tensor descriptor that a kernel makes: of a pointer with a shape and strides."""

    pointer: Sum
    shape: tuple[Sum, ...]
    strides: tuple[Sum, ...]
    block: tuple[Sum, ...]


@dataclass
class Stored:
    """Values that are written to a tensor.

    Attributes:
        sources: the tensors that the values are computed from.
        dtypes: dtypes to which the values are converted before the store.
    """

    sources: set[str] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)


@dataclass
class Findings:
    """Everything that was found in a kernel and in the functions that it calls.

    Attributes:
        bounds: of masks, remainders and loops.
        programs: axes of `tl.program_id` that are used.
        persistent: axes of `tl.num_programs` that are.
        flags: parameters that are used as conditions.
        compared: parameter → constants that it is compared with.
        present: parameters that are compared with None.
        dtypes: parameters that are used as a dtype.
        functions: parameters that are called.
        handles: parameters that are descriptors → how they are accessed.
        blocks_at: parameter that is a descriptor → where a block of it begins, dim by dim.
        tiled: length of blocks → the parameter that is counted in them by `cdiv`.
        has_products: whether blocks are multiplied as matrices.
        loops: parameters that are the step of a loop.
        floats: parameters that are used as a fraction is.
        integers: parameters that are used as an integer is.
        bits: tensor whose numbers are shifted or masked → the largest amount by which.
        wide: tensors whose loaded values are passed to functions that accept only float32.
        asked: tensors whose values are conditions.
        mixed: parameter → the tensors whose numbers it is added to, multiplied by or compared with.
        element: tensor → the dtypes that a `static_assert` allows.
        stored: tensor → the values written to it.
        quotients: key of a quotient → dividend and divisor.
        moved: parameters to which something is added, with the guards there: such a pointer is not None.
    """

    accesses: list[Access] = field(default_factory=list)
    described: list[Described] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    programs: set[int] = field(default_factory=set)
    persistent: set[int] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    compared: defaultdict[str, list[object]] = field(default_factory=lambda: defaultdict(list))
    present: set[str] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    handles: dict[str, set[str]] = field(default_factory=dict)
    blocks_at: dict[str, tuple[Sum, ...]] = field(default_factory=dict)
    tiled: dict[str, str] = field(default_factory=dict)
    has_products: bool = False
    loops: set[str] = field(default_factory=set)
    floats: set[str] = field(default_factory=set)
    integers: set[str] = field(default_factory=set)
    bits: dict[str, int] = field(default_factory=dict)
    wide: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    mixed: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    element: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stored: defaultdict[str, Stored] = field(default_factory=lambda: defaultdict(Stored))
    quotients: dict[str, tuple[Sum, Sum]] = field(default_factory=dict)
    moved: defaultdict[str, list[tuple[Guard, ...]]] = field(default_factory=lambda: defaultdict(list))
