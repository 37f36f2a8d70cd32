"""From a decision to launches: packs kernargs, provides memory, and writes the function that a cached plan runs.

A plan's `run` does the least that a repeated call needs: addresses and free scalars into a prepared kernarg segment,
then the launch. Everything else was decided when the plan was made. A tensor map depends on the plan and on an address:
a plan keeps those that it has made.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from aot_runtime.contract.dtypes import SCALAR_TYPES, bfloat16_bits, packable
from aot_runtime.contract.layout import Layout
from aot_runtime.contract.records import (
    GLOBAL_SCRATCH,
    POINTER,
    PROFILE_SCRATCH,
    TENSOR_MAP_BYTES,
    Kernarg,
    Op,
    Variant,
)
from aot_runtime.contract.tensor_maps import mapped
from aot_runtime.device.device import Device
from aot_runtime.device.memory import Allocation
from aot_runtime.errors import ArgumentError

from .decision import Decision
from .generated import define
from .overlap import overlap_lines

MAX_MAPS = 256
"""Addresses of a tensor whose maps a plan keeps."""

LoadFunction = Callable[[Variant], int]
"""Gives the driver's handle of a variant's kernel, loading its code object on first use."""


class CallShape(msgspec.Struct, frozen=True):
    """What a `run` function takes: the op's tensors, then the scalars that the caller may change from call to call."""

    tensors: tuple[str, ...]
    scalars: tuple[str, ...]


class Field(msgspec.Struct, frozen=True):
    """A kernarg that is written at each call: where it is, and the Python expression of its value."""

    offset: int
    code: str
    source: str

    @property
    def end(self) -> int:
        return self.offset + struct.calcsize("<" + self.code)


def build_run(
    op: Op, decision: Decision, shape: CallShape, given: frozenset[str], device: Device, load: LoadFunction
) -> Callable[..., Any]:
    """The function that performs calls of one plan: `run(stream, tensors…, scalars…)` returns the outputs.

    Args:
        given: tensors and scalars that the caller passes; other outputs are allocated, other scalars are constants.
    """
    namespace: dict[str, Any] = {
        "_workspace": device.memory.workspace,
        "_fill": partial(device.driver.fill, device.index),
        "_new": device.new,
        "_handle": device.handle,
        "_note": _note_stream,
        "_bfloat16_bits": bfloat16_bits,
        "_no_launch_left": IndexError,
    }
    lines = [f"def run(_stream, {', '.join((*shape.tensors, *shape.scalars))}):"]
    lines += _prologue(op, decision, given, namespace)
    numbers = [number for number, launch in enumerate(decision.launches) if 0 not in launch.grid]
    for number in numbers:
        lines += _launch(op, number, decision, shape, given, device, load, namespace)
    for number in numbers:  # when every scalar of every launch is known to fit
        lines += [f"    _launch{number}.run(_stream)", f"    _push{number}(_launch{number})"]
    lines += _epilogue(op, decision)
    source = "\n".join(lines) + "\n"
    return define("run", source, f"<aot_runtime: {op.name} run {crc32(source.encode()):08x}>", namespace)


def _prologue(op: Op, decision: Decision, given: frozenset[str], namespace: dict[str, Any]) -> list[str]:
    present = [name for name in decision.layouts if name in given]
    lines = [
        "    if _stream is None: _stream = 0",
        "    else:",
        "        _stream = _handle(_stream)",
        f"        _note(_stream, ({''.join(f'{name}, ' for name in present)}))",
    ]
    lines += overlap_lines(op, decision.layouts, given, namespace)
    for tensor in op.tensors:
        layout = decision.layouts.get(tensor.name)
        if layout is None:
            continue
        namespace[f"_bytes_{tensor.name}"] = layout.size * layout.itemsize
        if tensor.name not in given:
            namespace[f"_layout_{tensor.name}"] = layout
            lines.append(f"    {tensor.name} = _new(_layout_{tensor.name}, _bytes_{tensor.name}, _stream)")
        if tensor.zero and layout.size:
            lines.append(f"    _fill({tensor.name}.ptr, 0, _bytes_{tensor.name}, _stream)")
    for name, nbytes, zero in decision.workspaces:
        lines += _space(name, nbytes, zero, namespace) if nbytes else [f"    {name} = 0"]
    return lines


def _space(name: str, nbytes: int, zero: bool, namespace: dict[str, Any]) -> list[str]:
    """Lines that provide scratch memory. Sizes are names: one source, compiled once, serves all shapes."""
    namespace[f"_bytes_{name}"] = nbytes
    lines = [f"    {name}, _owner_{name} = _workspace(_bytes_{name}, _stream)"]
    if zero:
        lines.append(f"    _fill({name}, 0, _bytes_{name}, _stream)")
    return lines


def _launch(
    op: Op,
    number: int,
    decision: Decision,
    shape: CallShape,
    given: frozenset[str],
    device: Device,
    load: LoadFunction,
    namespace: dict[str, Any],
) -> list[str]:
    launch = decision.launches[number]
    variant = launch.variant
    free = frozenset(shape.scalars) & given
    lines, scratch = _scratch(variant, number, launch.grid, namespace)
    maps = _maps(variant, number, decision, device, namespace)
    addresses = {name: f"{name}.ptr" for name in decision.layouts} | {space.name: space.name for space in op.workspace}
    fields = [field for arg in variant.kernargs for field in _field(arg, free, addresses, scratch | maps)]
    image = kernarg_image(op, variant, launch.values, free)
    function = load(variant)
    block = variant.num_warps * variant.warp_size

    def make() -> Any:
        return device.driver.prepare(device.index, function, launch.grid, block, variant.lds_bytes, image)

    idle = [make()]
    namespace |= {f"_make{number}": make, f"_pop{number}": idle.pop, f"_push{number}": idle.append}
    lines += [
        f"    try: _launch{number} = _pop{number}()",
        f"    except _no_launch_left: _launch{number} = _make{number}()",
    ]
    for index, run in enumerate(_runs(fields)):
        namespace[f"_pack{number}_{index}"] = struct.Struct("<" + "".join(field.code for field in run)).pack_into
        values = ", ".join(field.source for field in run)
        lines.append(f"    _pack{number}_{index}(_launch{number}.kernargs, {run[0].offset}, {values})")
    return lines


def _scratch(
    variant: Variant, number: int, grid: tuple[int, int, int], namespace: dict[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """Lines that provide the scratch memory that the code object asks for, and kernarg name → local name."""
    lines: list[str] = []
    names: dict[str, str] = {}
    for kernarg, scratch in ((GLOBAL_SCRATCH, variant.global_scratch), (PROFILE_SCRATCH, variant.profile_scratch)):
        if scratch.bytes:
            names[kernarg] = f"_{kernarg[1:]}{number}"
            lines += _space(names[kernarg], scratch.bytes * grid[0] * grid[1] * grid[2], False, namespace)
    return lines, names


def _maps(
    variant: Variant, number: int, decision: Decision, device: Device, namespace: dict[str, Any]
) -> dict[str, str]:
    """Kernarg name → the expression of its tensor map, which is made once for each address."""
    found: dict[str, str] = {}
    for arg in variant.kernargs:
        if arg.map is not None:
            numbers = mapped(arg.map, decision.layouts[arg.value])
            make = partial(device.driver.tensor_map, device.index, arg.map, numbers.shape, numbers.strides)
            name = f"_map{number}_{len(found)}"
            namespace[name] = lru_cache(MAX_MAPS)(make)
            found[arg.name] = f"{name}({arg.value}.ptr)"
    return found


def _field(arg: Kernarg, free: frozenset[str], addresses: dict[str, str], made: dict[str, str]) -> Iterable[Field]:
    """made: expressions of scratch memory and tensor maps, by kernarg."""
    if arg.map is not None:
        yield Field(arg.offset, f"{TENSOR_MAP_BYTES}s", made[arg.name])
    elif arg.type[0] == POINTER:
        if arg.value in addresses:  # a tensor that is absent has address 0
            yield Field(arg.offset, "Q", addresses[arg.value])
        elif arg.name in made:
            yield Field(arg.offset, "Q", made[arg.name])
    elif arg.value in free:
        bits = f"_bfloat16_bits({arg.value})" if arg.type == "bf16" else arg.value
        yield Field(arg.offset, SCALAR_TYPES[arg.type].code, bits)


def _runs(fields: Sequence[Field]) -> list[list[Field]]:
    """Fields grouped into stretches without gaps, so that one `pack_into` writes each."""
    runs: list[list[Field]] = []
    for field in sorted(fields, key=lambda field: field.offset):
        if runs and runs[-1][-1].end == field.offset:
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


def kernarg_image(op: Op, variant: Variant, values: Any, free: frozenset[str]) -> bytes:
    """The kernarg segment with every value that a plan fixes; addresses and free scalars are left 0."""
    image = bytearray(variant.kernarg_bytes)
    for arg in variant.kernargs:
        if not arg.is_expression or arg.value in free:
            continue
        value = values[arg.value]
        try:
            struct.pack_into("<" + SCALAR_TYPES[arg.type].code, image, arg.offset, packable(arg.type, value))
        except (struct.error, OverflowError):
            raise ArgumentError(
                f"{op.name}: {arg.value} is {value}; the kernel takes it as {arg.type} ('{arg.name}')"
            ) from None
    return bytes(image)


def _epilogue(op: Op, decision: Decision) -> list[str]:
    outputs = [t.name for t in op.tensors if t.role == "output" and t.name in decision.layouts]
    if not outputs:
        return ["    return None"]
    return [f"    return {outputs[0]}"] if len(outputs) == 1 else [f"    return ({', '.join(outputs)})"]


def _note_stream(stream: int, arrays: Iterable[Any]) -> None:
    """Remember that a stream uses these arrays, so that their memory outlives its work."""
    for array in arrays:
        if type(array.owner) is Allocation:
            array.owner.used_on(stream)


def host_copy(target: np.ndarray[Any, Any], source: Any, stream: Any) -> None:
    """Copy a device array into the caller's numpy array."""
    np.copyto(target, source.numpy(stream))


def layout_of(array: Any) -> Layout | None:
    """The layout of an array that may be absent."""
    return None if array is None else array.layout
