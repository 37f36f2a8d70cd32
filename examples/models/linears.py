"""Linear layers on a device: of plain weights, of 4 bits, and several of the same input side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from aot_runtime import Bundle, DeviceArray, Stream
from aot_runtime.weights import Packed
from checkpoints.linear import Linear

Array = np.ndarray


class Layer(Protocol):
    """A linear layer: x [rows, inputs] to out [rows, outputs]."""

    def __call__(self, x: DeviceArray, out: DeviceArray, stream: Stream | None) -> None: ...


@dataclass(frozen=True)
class Dense:
    """weight: [outputs, inputs]; bias: [outputs] or None."""

    bundle: Bundle
    weight: DeviceArray
    bias: DeviceArray | None = None

    def __call__(self, x: DeviceArray, out: DeviceArray, stream: Stream | None) -> None:
        self.bundle.matmul(x, self.weight.T, self.bias, out=out, stream=stream)


@dataclass(frozen=True)
class Quantised:
    """arguments: those of `linear_int4` but for x."""

    bundle: Bundle
    arguments: dict[str, DeviceArray | int | None]

    def __call__(self, x: DeviceArray, out: DeviceArray, stream: Stream | None) -> None:
        self.bundle.linear_int4(x, **self.arguments, out=out, stream=stream)


@dataclass(frozen=True)
class Beside:
    """Layers of the same input; the columns of the result that each writes."""

    layers: tuple[tuple[slice, Layer], ...]

    def __call__(self, x: DeviceArray, out: DeviceArray, stream: Stream | None) -> None:
        for columns, layer in self.layers:
            layer(x, out[:, columns], stream)


def place(bundle: Bundle, parts: Sequence[Linear], dtype: np.dtype) -> Layer:
    """One layer of several, whose results lie side by side, on the bundle's device."""
    parts = list(_joined(parts))
    stops = np.cumsum([_outputs(part) for part in parts])
    layers = [_place(bundle, part, dtype) for part in parts]
    if len(layers) == 1:
        return layers[0]
    starts = [0, *stops[:-1]]
    return Beside(tuple((slice(a, z), layer) for a, z, layer in zip(starts, stops, layers, strict=True)))


def _place(bundle: Bundle, part: Linear, dtype: np.dtype) -> Layer:
    put = bundle.device.array
    bias = None if part.bias is None else put(part.bias.astype(dtype, copy=False))
    if not isinstance(part.weight, Packed):
        return Dense(bundle, put(part.weight.astype(dtype, copy=False)), bias)
    arguments = part.weight.arguments()
    arguments["scales"] = part.weight.scales.astype(dtype)
    placed = {k: put(x) if isinstance(x, np.ndarray) else x for k, x in arguments.items()}
    return Quantised(bundle, {**placed, "bias": bias})


def _outputs(part: Linear) -> int:
    return (part.weight.w if isinstance(part.weight, Packed) else part.weight).shape[0]


def _joined(parts: Sequence[Linear]) -> Iterator[Linear]:
    """Linear layers of one input as one, where they can be: those of 4 bits need the same order of their inputs."""
    bias = None if parts[0].bias is None else np.concatenate([part.bias for part in parts])
    packed = [part.weight for part in parts if isinstance(part.weight, Packed)]
    if not packed:
        yield Linear(np.concatenate([part.weight for part in parts]), bias)
    elif all(_same_order(packed[0], other) for other in packed[1:]):
        codes = np.concatenate([weight.w for weight in packed])
        scales, zeros = (np.concatenate(x, 1) for x in zip(*((w.scales, w.zeros) for w in packed), strict=True))
        yield Linear(Packed(codes, scales, zeros, packed[0].group_size, packed[0].order), bias)
    else:
        yield from parts


def _same_order(one: Packed, other: Packed) -> bool:
    if one.order is None or other.order is None:
        return one.order is other.order
    return np.array_equal(one.order, other.order)
