"""Turn a decision into launches: pack kernargs, provide memory, and generate the function that a cached plan runs.

A plan's `run` does as little as possible: it writes addresses and free scalars into a prepared kernarg segment, then
launches. Everything else was decided during planning. Tensor maps, which depend on an address, are cached per plan.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
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
from aot_runtime.device.device import Device
from aot_runtime.device.memory import Allocation
from aot_runtime.errors import ArgumentError

from .choosing import Decision
from .scratch import Scratch, scratch_name, scratch_of

if TYPE_CHECKING:
    from aot_runtime.device.code import Code

MAX_MAPS = 256
"""Maximum number of tensor maps that a plan keeps per tensor."""


class CallShape(msgspec.Struct, frozen=True):
    """Parameters of a `run` function: the op's tensors, then the scalars that may change from call to call."""

    tensors: tuple[str, ...]
    scalars: tuple[str, ...]


class Field(msgspec.Struct, frozen=True):
    """A kernarg that each call writes: its offset, `struct` code and Python expression."""

    offset: int
    code: str
    source: str

    @property
    def end(self) -> int:
        return self.offset + struct.calcsize("<" + self.code)


class Segments(NamedTuple):
    """Kernarg segments in one buffer: initial bytes, start of each segment, and fields that each call writes."""

    image: bytes
    begins: tuple[int, ...]
    fields: tuple[Field, ...]


Prepared: TypeAlias = tuple[Any, ...]
"""The kernarg buffer, a list of `PreparedLaunch` objects, then the `enqueue` method of each."""


def build_run(
    op: Op, decision: Decision, shape: CallShape, given: frozenset[str], device: Device, code: Code
) -> Callable[..., Any]:
    """Build the function that performs calls of one plan: `run(stream, tensors…, scalars…)` returns the outputs.

    Args:
        given: tensors and scalars that the caller passes. Other outputs are allocated; other scalars are constants.
    """
    namespace: dict[str, Any] = {
        "_fill": partial(device.driver.fill, device.index),
        "_new": device.new,
        "_handle": device.handle,
        "_note": _note_stream,
        "_bfloat16_bits": bfloat16_bits,
        "_none_left": IndexError,
    }
    lines = [f"def run(_stream, {', '.join((*shape.tensors, *shape.scalars))}):"]
    lines += _prologue(op, decision, given, namespace)
    numbers = [number for number, launch in enumerate(decision.launches) if 0 not in launch.grid]
    if numbers:
        scratch = scratch_of(decision, numbers, device.memory, namespace)
        segments = _segments(op, decision, numbers, frozenset(shape.scalars) & given, scratch, device, namespace)
        _prepare(decision, numbers, segments, device, code, namespace)
        lines += [f"    {line}" for line in _launching(numbers, scratch, _packing(segments, namespace))]
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
    if any(tensor.role != "input" and tensor.name in given for tensor in op.tensors):
        from .aliasing import overlap_lines  # only a written tensor of the caller's can overlap another

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
    return lines


def _segments(
    op: Op, decision: Decision, numbers: Sequence[int], free: frozenset[str], scratch: Scratch, device: Device,
    namespace: dict[str, Any],
) -> Segments:  # fmt: skip
    """Lay out the kernarg segments of all launches in one buffer, which a call fills in one step."""
    image, begins, fields = bytearray(), [], []
    addresses = {name: f"{name}.ptr" for name in decision.layouts} | {name: name for name in scratch.names}
    for number in numbers:
        launch = decision.launches[number]
        named = {kernarg: scratch_name(kernarg, number) for kernarg in (GLOBAL_SCRATCH, PROFILE_SCRATCH)}
        made = {kernarg: addresses[name] for kernarg, name in named.items() if name in addresses}
        made |= _maps(launch.variant, number, decision, device, namespace)
        image += bytes(-len(image) % TENSOR_MAP_BYTES)
        begins.append(len(image))
        fields += [
            Field(field.offset + len(image), field.code, field.source)
            for arg in launch.variant.kernargs
            for field in _field(arg, free, addresses, made)
        ]
        image += kernarg_image(op, launch.variant, launch.values, free)
    return Segments(bytes(image), tuple(begins), tuple(fields))


def _prepare(
    decision: Decision, numbers: Sequence[int], segments: Segments, device: Device, code: Code,
    namespace: dict[str, Any],
) -> None:  # fmt: skip
    """Provide pools of prepared launches. A running call owns the set it took from its pool.

    Launches for other streams have a pool of their own, so a call on the default stream need not set the stream.
    """
    launches = [decision.launches[number] for number in numbers]
    functions = [code(launch.variant) for launch in launches]

    def make() -> Prepared:
        kernargs = memoryview(bytearray(segments.image))
        made = []
        for launch, function, begin in zip(launches, functions, segments.begins, strict=True):
            variant = launch.variant
            segment = kernargs[begin : begin + variant.kernarg_bytes]
            block = variant.num_warps * variant.warp_size
            shape = launch.grid, block, variant.lds_bytes
            made.append(device.driver.prepare(device.index, function, *shape, segment, variant.early))
        return kernargs, made, *(launch.enqueue for launch in made)

    captures = device.holdings.captures
    note_stream = code.streams.add

    def placed(stream: int) -> Prepared:
        note_stream(stream)
        if captures:
            _note_captures(device, code)
        try:
            prepared = others.pop()
        except IndexError:
            prepared = make()
        for launch in prepared[1]:
            launch.place(stream)
        return prepared

    idle, others = [make()], list[Prepared]()
    namespace |= {"_make": make, "_pop": idle.pop, "_push": idle.append}
    namespace |= {"_placed": placed, "_push_placed": others.append}


def _note_captures(device: Device, code: Code) -> None:
    """Make each graph under capture keep the bundle's code alive, since the call may become part of it."""
    device.holdings.settle()  # clean up after an interrupted capture
    for graph in list(device.holdings.captures.values()):
        graph.need(code)


def _launching(numbers: Sequence[int], scratch: Scratch, packing: Sequence[str]) -> list[str]:
    """Return lines that fill in all kernargs, then launch: a scalar that does not fit raises before any launch."""
    names = "".join(f", _enqueue{number}" for number in numbers)
    lines = ["if _stream:", "    _launches = _placed(_stream)", *(f"    {line}" for line in scratch.elsewhere)]
    lines += ["else:", "    try: _launches = _pop()", "    except _none_left: _launches = _make()"]
    lines += [f"    {line}" for line in scratch.here]
    work = [*scratch.further, f"_kernargs, _{names} = _launches", *packing]
    work += [f"if _status := _enqueue{n}(): _launches[1][{i}].settle(_status)" for i, n in enumerate(numbers)]
    if scratch.ending:
        work = ["try:", *(f"    {line}" for line in work), "finally:", *(f"    {line}" for line in scratch.ending)]
    return [*lines, *work, "if _stream: _push_placed(_launches)", "else: _push(_launches)"]


def _packing(segments: Segments, namespace: dict[str, Any]) -> list[str]:
    """Return one `pack_into` line for the fields that change, rewriting the fixed bytes between them."""
    stretch: list[Field] = []
    for field in sorted(segments.fields, key=lambda field: field.offset):
        if stretch and stretch[-1].end != field.offset:
            begin, name = stretch[-1].end, f"_fixed{len(stretch)}"
            namespace[name] = segments.image[begin : field.offset]
            stretch.append(Field(begin, f"{field.offset - begin}s", name))
        stretch.append(field)
    if not stretch:
        return []
    namespace["_pack"] = struct.Struct("<" + "".join(field.code for field in stretch)).pack_into
    return [f"_pack(_kernargs, {stretch[0].offset}, {', '.join(field.source for field in stretch)})"]


def _maps(
    variant: Variant, number: int, decision: Decision, device: Device, namespace: dict[str, Any]
) -> dict[str, str]:
    """Map kernarg names to expressions of their tensor maps, which are cached by address."""
    found: dict[str, str] = {}
    for arg in variant.kernargs:
        if arg.map is not None:
            from aot_runtime.contract.tensor_maps import mapped  # for kernels that take maps only

            numbers = mapped(arg.map, decision.layouts[arg.value])
            make = partial(device.driver.tensor_map, device.index, arg.map, numbers.shape, numbers.strides)
            name = f"_map{number}_{len(found)}"
            namespace[name] = lru_cache(MAX_MAPS)(make)
            found[arg.name] = f"{name}({arg.value}.ptr)"
    return found


def _field(arg: Kernarg, free: frozenset[str], addresses: dict[str, str], made: dict[str, str]) -> Iterable[Field]:
    if arg.map is not None:
        yield Field(arg.offset, f"{TENSOR_MAP_BYTES}s", made[arg.name])
    elif arg.type[0] == POINTER:
        if arg.value in addresses:  # an absent tensor keeps address 0
            yield Field(arg.offset, "Q", addresses[arg.value])
        elif arg.name in made:
            yield Field(arg.offset, "Q", made[arg.name])
    elif arg.value in free:
        bits = f"_bfloat16_bits({arg.value})" if arg.type == "bf16" else arg.value
        yield Field(arg.offset, SCALAR_TYPES[arg.type].format, bits)


def kernarg_image(op: Op, variant: Variant, values: Any, free: frozenset[str]) -> bytes:
    """Return the kernarg segment with the plan's fixed values; addresses and free scalars are 0."""
    image = bytearray(variant.kernarg_bytes)
    for arg in variant.kernargs:
        if not arg.is_expression or arg.value in free:
            continue
        value = values[arg.value]
        try:
            struct.pack_into("<" + SCALAR_TYPES[arg.type].format, image, arg.offset, packable(arg.type, value))
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
    """Record that a stream uses these arrays, to keep their memory until its work is done."""
    for array in arrays:
        if type(array.owner) is Allocation:
            array.owner.used_on(stream)


def host_copy(target: np.ndarray[Any, Any], source: Any, stream: Any) -> None:
    """Copy a device array into the caller's numpy array."""
    np.copyto(target, source.numpy(stream))


def layout_of(array: Any) -> Layout | None:
    """Return the layout of an array, or None for an absent one."""
    return None if array is None else array.layout


# Generated source. Only the path of a repeated call is generated: equivalent closures take more than twice as long.


def define(function: str, source: str, filename: str, names: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the named function that `source` defines, with `names` as its only globals, and no builtins.

    The source is registered with `linecache`, so tracebacks and debuggers show it.
    """
    namespace = {"__builtins__": {}, **names}
    exec(_compiled(source, filename), namespace)
    defined: Callable[..., Any] = namespace[function]
    return defined


@lru_cache(maxsize=1024)
def _compiled(source: str, filename: str) -> CodeType:
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return compile(source, filename, "exec")
