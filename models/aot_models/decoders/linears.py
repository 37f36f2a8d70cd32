"""Linear layers on a device: dense, of 4 and 8 bits, and several layers of the same input side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from aot_models.checkpoints.adapters import LowRank
from aot_models.checkpoints.linear import BLOCK, Linear, Scaled, Weight, all_of
from aot_models.decoders.rows import EightBitRows, Rows
from aot_models.float8 import cast
from aot_models.quantise import Packed
from aot_runtime import Bundle, DeviceArray, Stream
from aot_runtime.contract.arch import ARCHITECTURES

Array = np.ndarray


class Layer(Protocol):
    """A linear layer: x [rows, inputs] to out [rows, outputs].

    Attributes:
        needs: the memory that `Rows` has to provide.
    """

    @property
    def needs(self) -> tuple[EightBitRows, ...]: ...

    def __call__(self, x: DeviceArray, out: DeviceArray, rows: Rows, stream: Stream | None) -> None: ...


@dataclass(frozen=True)
class Dense:
    """A layer of 16-bit weights [outputs, inputs]; bias: [outputs] or None."""

    bundle: Bundle
    weight: DeviceArray
    bias: DeviceArray | None = None
    needs: tuple[EightBitRows, ...] = ()

    def __call__(self, x: DeviceArray, out: DeviceArray, rows: Rows, stream: Stream | None) -> None:
        self.bundle.matmul(x, self.weight.T, self.bias, b_is_ready=True, out=out, stream=stream)


@dataclass(frozen=True)
class Quantised:
    """Weights of 4 or 8 bits. arguments: all arguments of `linear_int4` or `linear_int8` except x."""

    bundle: Bundle
    op: str
    arguments: dict[str, DeviceArray | int | None]
    needs: tuple[EightBitRows, ...] = ()

    def __call__(self, x: DeviceArray, out: DeviceArray, rows: Rows, stream: Stream | None) -> None:
        getattr(self.bundle, self.op)(x, **self.arguments, out=out, stream=stream)


@dataclass(frozen=True)
class EightBits:
    """Weights and activations of 8 bits.

    Attributes:
        weight: int8 or float8 [outputs, inputs].
        scales: float32 [1], [outputs], or [cdiv(outputs, 128), cdiv(inputs, 128)] for blocks.
        input_scale: the static scale of activations, float32 [1]; None: each row, or 128 columns of it, is scaled.
    """

    bundle: Bundle
    weight: DeviceArray
    scales: DeviceArray
    input_scale: DeviceArray | None = None
    bias: DeviceArray | None = None
    needs: tuple[EightBitRows, ...] = field(init=False)

    def __post_init__(self) -> None:
        inputs = self.weight.shape[1]
        need = EightBitRows(inputs, self.weight.dtype, BLOCK if self.scales.ndim == 2 else inputs)
        object.__setattr__(self, "needs", (need,))

    def __call__(self, x: DeviceArray, out: DeviceArray, rows: Rows, stream: Stream | None) -> None:
        (need,), bundle = self.needs, self.bundle
        codes, scales = rows.eight_bits(need, len(x))
        if self.input_scale is not None:
            bundle.quantise_static(x, codes, self.input_scale, stream=stream)
            scales = self.input_scale
        else:
            bundle.quantise(x, codes, block=need.block, out=scales, stream=stream)
        if self.scales.ndim == 2:
            bundle.block_scaled_matmul(codes, self.weight.T, scales, self.scales.T, e=out, stream=stream)
        else:
            by_row = scales.reshape(-1)
            bundle.scaled_matmul(codes, self.weight.T, by_row, self.scales, e=out, bias=self.bias, stream=stream)


@dataclass(frozen=True)
class Beside:
    """Layers of the same input, each with its columns of the result."""

    layers: tuple[tuple[slice, Layer], ...]

    @property
    def needs(self) -> tuple[EightBitRows, ...]:
        return tuple(need for _, layer in self.layers for need in layer.needs)

    def __call__(self, x: DeviceArray, out: DeviceArray, rows: Rows, stream: Stream | None) -> None:
        for columns, layer in self.layers:
            layer(x, out[:, columns], rows, stream)


@dataclass(frozen=True)
class Added:
    """The updates of adapters to a range of output columns.

    Attributes:
        arguments: down, up, adapter_scales and ranks of `lora_add`.
    """

    columns: slice
    arguments: dict[str, DeviceArray]


@dataclass(frozen=True)
class Adapted:
    """A layer with low-rank adapters; each row uses one or none."""

    bundle: Bundle
    layer: Layer
    added: tuple[Added, ...]

    @property
    def needs(self) -> tuple[EightBitRows, ...]:
        return self.layer.needs

    def __call__(self, x: DeviceArray, out: DeviceArray, rows: Rows, stream: Stream | None) -> None:
        self.layer(x, out, rows, stream)
        for part in self.added:
            columns = out[:, part.columns]
            self.bundle.lora_add(x, **part.arguments, e=columns, adapter_of=rows.adapters, stream=stream)


def place_adapted(
    bundle: Bundle, parts: Sequence[Linear], adapters: Sequence[Sequence[LowRank | None]], dtype: np.dtype
) -> Layer:
    """Upload layers of the same input with adapters. adapters: the update of each adapter to each layer."""
    layer, added, at = place(bundle, parts, dtype), [], 0
    for number, part in enumerate(parts):
        of_part = [adapter[number] for adapter in adapters]
        if any(of_part):
            added.append(Added(slice(at, at + part.outputs), _place_adapters(bundle, of_part, dtype)))
        at += part.outputs
    return Adapted(bundle, layer, tuple(added)) if added else layer


def _place_adapters(bundle: Bundle, adapters: Sequence[LowRank | None], dtype: np.dtype) -> dict[str, DeviceArray]:
    """Stack adapters, padded to the largest rank; adapters without an update have rank 0."""
    some = next(adapter for adapter in adapters if adapter)
    ranks = np.array([len(adapter.down) if adapter else 0 for adapter in adapters], np.int32)
    down = np.zeros((len(adapters), ranks.max(), some.down.shape[1]), dtype)
    up = np.zeros((len(adapters), len(some.up), ranks.max()), dtype)
    for number, adapter in enumerate(adapters):
        if adapter:
            down[number, : ranks[number]], up[number, :, : ranks[number]] = adapter.down, adapter.up
    scales = np.array([adapter.scale if adapter else 0 for adapter in adapters], np.float32)
    arrays = {"down": down, "up": up, "adapter_scales": scales, "ranks": ranks}
    return {name: bundle.device.array(array) for name, array in arrays.items()}


def place(bundle: Bundle, parts: Sequence[Linear], dtype: np.dtype) -> Layer:
    """Upload layers of the same input as one layer, which concatenates their results. dtype: the activations' dtype."""
    groups = list(_joined(parts))
    stops = np.cumsum([sum(part.outputs for part in group) for group in groups]).tolist()
    layers = [_place(bundle, group, dtype) for group in groups]
    if len(layers) == 1:
        return layers[0]
    return Beside(tuple((slice(a, z), layer) for a, z, layer in zip([0, *stops], stops, layers, strict=False)))


def hardware_float8(bundle: Bundle) -> str:
    """The float8 dtype that the bundle's hardware multiplies; "" if there is none."""
    kind = ARCHITECTURES[bundle.device.arch].fp8
    return {"fnuz": "float8_e4m3fnuz", "ocp": "float8_e4m3fn", "": ""}[kind]


def _joined(parts: Sequence[Linear]) -> Iterator[Sequence[Linear]]:
    """Group layers of the same input: all in one group if one product can compute them, else one by one."""
    if _fit([part.weight for part in parts]):
        yield parts
    else:
        yield from ([part] for part in parts)


def _fit(weights: Sequence[Weight]) -> bool:
    if packed := all_of(Packed, weights):  # the same order of inputs
        first, others = packed[0], packed[1:]
        alike = all((other.w.dtype, other.group_size) == (first.w.dtype, first.group_size) for other in others)
        return alike and all(_same_order(first.order, other.order) for other in others)
    if scaled := all_of(Scaled, weights):  # the same scale of activations; blocks do not span two layers
        kinds = {(weight.weight.dtype, weight.of_blocks, weight.input_scale) for weight in scaled}
        aligned = not scaled[0].of_blocks or all(len(weight.weight) % BLOCK == 0 for weight in scaled[:-1])
        return len(kinds) == 1 and aligned
    return all_of(np.ndarray, weights) is not None


def _same_order(one: Array | None, other: Array | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def _place(bundle: Bundle, parts: Sequence[Linear], dtype: np.dtype) -> Layer:
    weights = [part.weight for part in parts]
    bias = _biases(bundle, parts, dtype)
    if packed := all_of(Packed, weights):
        return _place_packed(bundle, packed, bias, dtype)
    if scaled := all_of(Scaled, weights):
        return _place_scaled(bundle, scaled, bias)
    return Dense(bundle, _rows(bundle, all_of(np.ndarray, weights) or [], dtype), bias)


def _place_packed(bundle: Bundle, weights: Sequence[Packed], bias: DeviceArray | None, dtype: np.dtype) -> Layer:
    put, first = bundle.device.array, weights[0]
    scales, zeros = (np.concatenate(x, 1) for x in zip(*((w.scales, w.zeros) for w in weights), strict=True))
    arguments: dict[str, DeviceArray | int | None] = {
        "w": _rows(bundle, [weight.w for weight in weights], first.w.dtype), "scales": put(scales.astype(dtype)),
        "zeros": put(zeros), "group_size": first.group_size, "bias": bias,
        "order": None if first.order is None else put(first.order),
    }  # fmt: skip
    return Quantised(bundle, "linear_int8" if first.w.dtype == np.int8 else "linear_int4", arguments)


def _place_scaled(bundle: Bundle, weights: Sequence[Scaled], bias: DeviceArray | None) -> Layer:
    first, put = weights[0], bundle.device.array
    dtype = first.weight.dtype if first.weight.dtype == np.int8 else np.dtype(hardware_float8(bundle))
    casts = [cast(weight.weight, dtype) if dtype != np.int8 else (weight.weight, 1.0) for weight in weights]
    scales = [weight.scales * np.float32(factor) for weight, (_, factor) in zip(weights, casts, strict=True)]
    if len(weights) > 1 and not first.of_blocks:
        scales = [np.broadcast_to(s, len(weight.weight)) for s, weight in zip(scales, weights, strict=True)]
    input_scale = None
    if first.input_scale is not None:
        input_scale = put(np.array([first.input_scale * casts[0][1]], np.float32))
    codes = _rows(bundle, [codes for codes, _ in casts], dtype)
    return EightBits(bundle, codes, put(np.concatenate(scales)), input_scale, bias)


def _biases(bundle: Bundle, parts: Sequence[Linear], dtype: np.dtype) -> DeviceArray | None:
    if all(part.bias is None for part in parts):
        return None
    found = [np.zeros(part.outputs, dtype) if part.bias is None else part.bias.astype(dtype) for part in parts]
    return bundle.device.array(np.concatenate(found))


def _rows(bundle: Bundle, parts: Sequence[Array], dtype: np.dtype) -> DeviceArray:
    """Concatenate matrices on the device, without a copy of the whole on the host."""
    found = bundle.device.empty((sum(map(len, parts)), parts[0].shape[1]), dtype)
    at = 0
    for part in parts:
        found[at : at + len(part)].copy_from(part.astype(dtype, copy=False))
        at += len(part)
    return found
