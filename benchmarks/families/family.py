"""Random calls of ops, the families that they are drawn from, and what all draws share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime import Bundle
from aot_runtime.call.choosing import Decision

Rng = np.random.Generator
Tensors = Mapping[str, Any]
"""torch's tensors by name, including outputs."""
Ways = Mapping[str, Callable[[], Any]]
"""Ways to compute a call, by name."""
Values = float | tuple[float, float] | np.ndarray
"""Values of a tensor: the standard deviation of normal numbers, bounds of uniform ones, or the values themselves."""

MOST_WORK = 2e12
"""Maximum number of operations of a call."""
MOST_ELEMENTS = 1 << 27
"""Maximum number of elements of a matrix, of all heads of q or k, or of a cache."""
DTYPES_16 = ("float16", "bfloat16")
FLOAT8 = {"ocp": "float8_e4m3fn", "fnuz": "float8_e4m3fnuz"}


@dataclass(frozen=True)
class Call:
    """A call of an op.

    Attributes:
        values: values of tensors, by name. Others are normal, or integers of all bits.
        flops: operations of the products.
        nbytes: bytes that are read and written. Defaults to all tensors.
    """

    op: str
    spec: CallSpec
    values: Mapping[str, Values] = field(default_factory=dict)
    flops: float = 0.0
    nbytes: float | None = None

    def __str__(self) -> str:
        spec = self.spec
        words = [self.op, *(f"{name}={extent}" for name, extent in spec.dims.items())]
        words += [*spec.dtypes.values(), *sorted(spec.given)]
        words += [f"{name}={value}" for name, value in spec.scalars.items() if name not in ("eps", "scale")]
        words += [f"{name} by dim {dim}" for name, dim in spec.innermost.items()]
        words += [f"{name} of {'x'.join(map(str, shape))}" for name, shape in spec.shapes.items()]
        words += [f"{name} strided" for name in spec.strides]
        return " ".join(words)


@dataclass(frozen=True)
class Drawn:
    """A random call, and calls that it is compared with.

    Attributes:
        group: kind of call, with a distribution of its own.
        neighbour: the nearest call with aligned extents.
        padded: the call at the next multiples of 128, for peers that do not take it as it is.
        plain: our own call that is the peer.
    """

    group: str
    call: Call
    neighbour: Call
    padded: Call | None = None
    plain: Call | None = None


@dataclass(frozen=True)
class Offer:
    """Ops of the given bundles. float8: the float8 dtype of their architecture; empty if it has none."""

    ops: frozenset[str]
    float8: str = ""

    def among(self, *names: str) -> list[str]:
        """Return those of the ops that are there."""
        return [name for name in names if name in self.ops]


@dataclass(frozen=True)
class Part:
    """A part of a call's tensors that determines a part of its result.

    Attributes:
        dims: indices of dims, a range or a list. Tensors are cut along the dims that depend on these.
        values: values of tensors that are not cut but replaced.
    """

    dims: Mapping[str, Sequence[int]]
    values: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """Least ratios of the peer's time to ours: their median, 5th percentile and minimum."""

    median: float
    fifth: float
    worst: float

    def __str__(self) -> str:
        return f"{self.median:g}, {self.fifth:g}, {self.worst:g}"


@dataclass(frozen=True)
class Peaks:
    """Rates of a device, in bytes and 16-bit operations a second, its compute units, and the seconds of a launch."""

    bandwidth: float
    flops: float
    num_cus: int = 0
    launch: float = 0.0

    def bound(self, call: Call, nbytes: float) -> float:
        """Return the least time of a call that moves so many bytes."""
        nbytes = nbytes if call.nbytes is None else call.nbytes
        return self.launch + max(call.flops / self.flops, nbytes / self.bandwidth)


@dataclass(frozen=True)
class Family:
    """A kind of call, a row of the table.

    Attributes:
        title: name of the row.
        asked: ratios that the row is held to.
        ops: ops of which calls are drawn, those that the bundles have.
        needs: ops that the bundles must have besides.
        draw: draw a call, or None if it is too large.
        output: tensor that is compared with float64.
        part: cut a call for this comparison; the fraction says where.
        peers: torch's ways to compute the call. Without any, the peer is a copy of as many bytes.
        rate: operations a second that bound the time of a peer that is a copy.
    """

    title: str
    asked: Asked
    ops: tuple[str, ...]
    draw: Callable[[Rng, Offer], Drawn | None]
    output: str
    part: Callable[[Call, float], Part]
    peers: Callable[[Any, Tensors, Call], Ways] | None = None
    rate: Callable[[Peaks], float] | None = None
    needs: tuple[str, ...] = ()

    def within(self, offer: Offer) -> bool:
        """Return True if bundles with these ops have calls of the family."""
        return bool(offer.among(*self.ops)) and all(op in offer.ops for op in self.needs)

    def drawn(self, offer: Offer, seed: int, number: int) -> Drawn:
        """Draw call `number`, from a generator of its own: it does not depend on other calls."""
        rng = np.random.default_rng([seed, number])
        while True:
            drawn = self.draw(rng, offer)
            if drawn and drawn.call.flops <= MOST_WORK:
                return drawn


def plan(bundle: Bundle, call: Call) -> Decision:
    properties = bundle.device.properties
    return plan_call(bundle.index, bundle[call.op].planner, call.spec, properties.num_cus, properties.num_xcds)


def tensor_bytes(decision: Decision) -> int:
    return sum(layout.size * layout.itemsize for layout in decision.layouts.values())


def launches(bundle: Bundle, call: Call, decision: Decision) -> str:
    """Describe the launches: their configs, and the number of programs."""
    declared = bundle[call.op].planner.op.launches
    taken = [
        f"{declared[launch.index].kernel.rpartition(':')[2]} "
        f"{declared[launch.index].configs[launch.variant.config].name} {math.prod(launch.grid)}"
        for launch in decision.launches
    ]
    return ", ".join(["aligned" if decision.aligned else "general", *taken])


# Draws


def extent(rng: Rng, low: float, high: float, unit: int = 1) -> int:
    """Draw a log-uniform multiple of `unit` from a range."""
    return max(unit, round(math.exp(rng.uniform(math.log(low), math.log(high))) / unit) * unit)


def one_of(rng: Rng, values: Sequence[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def near(value: int, unit: int = 64, itemsize: int = 2) -> int:
    """Return the positive multiple of `unit` that is nearest to a value.

    If that differs by more than an eighth, return the nearest multiple of a smaller power of two, of at least 16 bytes.
    """
    while unit > 16 // itemsize and 8 * abs(round(value / unit) * unit - value) > value:
        unit //= 2
    return max(unit, round(value / unit) * unit)


def above(value: int, unit: int = 128) -> int:
    """Return the next multiple of `unit`."""
    return -(-value // unit) * unit


def fitting(head_dim: int) -> int:
    """Return the least of 64, 128 and 256 that is not less than a head dim."""
    return min(each for each in (64, 128, 256) if each >= head_dim)


def piece(size: int, most: int, where: float, unit: int = 1) -> range:
    """Cut at most `most` indices out of `size`. `where`: a fraction; the first index is a multiple of `unit`."""
    first = int(where * max(0, size - most)) // unit * unit
    return range(first, min(size, first + most))


def without(call: Call, features: frozenset[str]) -> Call:
    """Return a call without these scalars and optional tensors."""
    spec = call.spec
    scalars = {name: value for name, value in spec.scalars.items() if name not in features}
    shapes = {name: shape for name, shape in spec.shapes.items() if name not in features}
    values = {name: value for name, value in call.values.items() if name not in features}
    plain = replace(spec, scalars=scalars, shapes=shapes, given=spec.given - features)
    return replace(call, spec=plain, values=values)
