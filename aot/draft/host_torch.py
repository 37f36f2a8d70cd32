"""torch in the function that launches a kernel: attributes, methods and factories of tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from aot_runtime.contract.dtypes import BFLOAT16, BOOL, DTYPES, FLOAT32

from .host_values import (
    EMPTY,
    UNKNOWN,
    ZEROS,
    Const,
    DtypeValue,
    HostTensor,
    Joined,
    Shape,
    Size,
    Stride,
    Strides,
    Unknown,
    Value,
    size_text,
)


class Host(Protocol):
    """A function that is being interpreted."""

    def tensor(self, hint: str, **known: object) -> HostTensor:
        """Create a tensor with a unique key."""


_DTYPES = {name: row.name for row in DTYPES.values() for name in (row.name, *row.torch)}
"""Names of dtypes in torch → in manifests."""
_TRITON_DTYPES = {re.sub("^fp8", "float8", row.triton): row.name for row in DTYPES.values()} | {"int1": BOOL.name}
"""Names of dtypes in `triton.language` that torch does not have → in manifests."""
_SAME = frozenset(("contiguous", "detach", "cuda", "cpu", "requires_grad_", "pin_memory", "data", "zero_"))
"""Methods and attributes that keep shape and values, and possibly pack the tensor."""
_CASTS = {name: row.name for row in DTYPES.values() for name in row.torch} | {
    row.name: row.name for row in (BOOL, BFLOAT16)
}
"""Methods of tensors that convert → the dtype that they convert to."""
_MAKERS = {"empty": EMPTY, "zeros": ZEROS, "ones": "ones", "full": "full", "empty_strided": EMPTY}


def dtype_name(text: str) -> str:
    """Return the dtype `torch.NAME` or `tl.NAME`; empty for anything else."""
    owner, _, name = text.rpartition(".")
    if owner == "torch":
        return _DTYPES.get(name, "")
    return _TRITON_DTYPES.get(name, _DTYPES.get(name, "")) if owner in ("tl", "triton.language", "language") else ""


def attribute(host: Host, tensor: HostTensor, name: str) -> Value:
    """Return an attribute of a tensor."""
    match name:
        case "shape":
            shape = tensor.shape
            return Shape(tensor) if shape is None else tuple(map(_size, shape))
        case "dtype":
            return DtypeValue(of=tensor)
        case "ndim":
            shape = tensor.shape
            return Size(f"{tensor.key}__rank") if shape is None else Const(len(shape))
        case "T" | "mT":
            return _permuted(host, tensor, None)
        case "device":
            return Unknown("a device")
    return tensor if name in _SAME else Unknown(name)


def method(host: Host, tensor: HostTensor, name: str, given: Sequence[Value], named: Mapping[str, Value]) -> Value:
    """Return the value of a method call on a tensor."""
    match name:
        case "size" if given and isinstance(given[0], Const) and type(given[0].value) is int:
            return _size(tensor.extent(given[0].value))
        case "size" | "dim" | "ndimension":
            return attribute(host, tensor, "shape" if name == "size" else "ndim")
        case "numel":
            return _size(tensor.numel)
        case "stride":
            if not given and not named:
                count = len(tensor.shape or ())
                return Strides(tensor) if tensor.shape is None else tuple(Stride(tensor, i) for i in range(count))
            dim = given[0] if given else named.get("dim")
            if isinstance(dim, Const) and type(dim.value) is int:
                tensor.extent(dim.value)
                return Stride(tensor, dim.value)
            return Unknown()
        case "zero_":
            tensor.made = tensor.made and ZEROS
            return tensor
        case "fill_" if given and given[0] == Const(0):
            return method(host, tensor, "zero_", (), {})
        case "view" | "reshape":
            return _viewed(host, tensor, given)
        case "flatten" if not given and not named:
            return host.tensor(tensor.key, own_shape=(tensor.numel,), **_made(tensor))
        case "t" | "transpose" | "permute":
            return _permuted(host, tensor, given if name != "t" else None, name == "transpose")
        case "to" | "type":
            return _cast(host, tensor, next((v for v in (*given, *named.values()) if isinstance(v, DtypeValue)), None))
        case "new_empty" | "new_zeros" | "new_full" | "new_ones":
            made = factory(host, name.removeprefix("new_"), given, named)
            if isinstance(made, HostTensor) and "dtype" not in named:
                made.dtypes, made.dtype_of = (), tensor
            return made if made is not None else Unknown()
        case "is_contiguous":
            return Unknown()
    if name in _CASTS and not given:
        return _cast(host, tensor, DtypeValue(_CASTS[name]))
    return tensor if name in _SAME else Unknown(name)


def factory(host: Host, name: str, given: Sequence[Value], named: Mapping[str, Value]) -> Value | None:
    """Return the tensor that a call of torch creates; None if it creates none."""
    like = name.removesuffix("_like")
    if like in _MAKERS and like != name and given and isinstance(given[0], HostTensor):
        source = given[0]
        made = host.tensor(f"{source.key}_{like}", made=_MAKERS[like], like=source, dtype_of=source)
    elif name in _MAKERS and (given or "size" in named):
        sizes = given[:1] if name == "full" else given
        shape = _shape(host, [*sizes] or [named["size"]])
        made = host.tensor("made", made=_MAKERS[name], own_shape=shape if isinstance(shape, tuple) else None)
        if isinstance(shape, Shape):
            made.like = shape.tensor
        made.joined = shape if isinstance(shape, Joined) else None
        if name == "full" and len(given) > 1 and given[1] in (Const(0), Const(0.0)):
            made.made = ZEROS
        if not isinstance(named.get("dtype"), DtypeValue):
            made.dtypes = (FLOAT32.name,) if "dtype" not in named else ()  # torch's default
    else:
        return None
    _set_dtype(made, named.get("dtype"))
    return made


def _set_dtype(made: HostTensor, dtype: Value | None) -> None:
    if isinstance(dtype, DtypeValue):
        made.dtypes, made.dtype_of = ((dtype.name,), None) if dtype.of is None else ((), dtype.of)
    elif isinstance(dtype, HostTensor) and isinstance(dtype.default, DtypeValue):
        made.dtypes, made.dtype_of, made.is_dtype_default = (dtype.default.name,), None, True
    elif dtype is not None:
        made.dtypes, made.dtype_of = (), None


def _shape(host: Host, sizes: Sequence[Value]) -> tuple[str, ...] | Shape | Joined | None:
    if len(sizes) == 1 and isinstance(sizes[0], Joined):
        return sizes[0]
    if len(sizes) == 1 and isinstance(sizes[0], Shape):
        shape = sizes[0]
        return shape if shape.start is None and shape.stop is None else None
    parts = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple) else sizes
    if len(parts) == 1 and isinstance(parts[0], Unknown) and sizes[0] is parts[0]:
        return None  # a number, or a sequence
    return tuple(size_text(part) or UNKNOWN for part in parts)


def _viewed(host: Host, tensor: HostTensor, given: Sequence[Value]) -> Value:
    if len(given) == 1 and isinstance(given[0], DtypeValue):
        return host.tensor(tensor.key, like=tensor, dtypes=(given[0].name,) if given[0].name else (), **_made(tensor))
    parts = list(given[0]) if len(given) == 1 and isinstance(given[0], tuple) else list(given)
    if len(given) == 1 and isinstance(given[0], Shape):
        return host.tensor(tensor.key, like=given[0].tensor, dtype_of=tensor, **_made(tensor))
    texts = ["-1" if part == Const(-1) else size_text(part) for part in parts]
    if not all(texts) or texts.count("-1") > 1:
        return Unknown()
    view = host.tensor(tensor.key, dtype_of=tensor, dtypes=tensor.dtypes, **_made(tensor))
    rest = [text for text in texts if text != "-1"]
    view.own_shape = tuple(_remaining(view, tensor, rest) if text == "-1" else text for text in texts)
    return view


def _remaining(view: HostTensor, tensor: HostTensor, rest: Sequence[str]) -> str:
    shape = list(tensor.shape or ())
    if shape and all(text in shape for text in rest):
        for text in rest:
            shape.remove(text)
        return " * ".join(shape) or "1"
    return tensor.numel if not rest else f"{view.key}__0"


def _permuted(host: Host, tensor: HostTensor, given: Sequence[Value] | None, swap: bool = False) -> Value:
    """Return a permuted tensor, which the kernel sees as another tensor."""
    shape = tensor.shape
    if shape is None and given is None:
        tensor.set_rank(2)
        shape = tensor.shape
    if shape is None:
        return Unknown()
    order = list(range(len(shape)))
    if given is None:
        order[-2:] = order[-2:][::-1]
    else:
        flat = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
        numbers = [part.value for part in flat if isinstance(part, Const) and type(part.value) is int]
        if len(numbers) != len(flat) or any(not -len(shape) <= number < len(shape) for number in numbers):
            return Unknown()
        if swap and len(numbers) == 2:
            one, two = (number % len(shape) for number in numbers)
            order[one], order[two] = order[two], order[one]
        else:
            order = [number % len(shape) for number in numbers]
    return host.tensor(f"{tensor.key}_t", own_shape=tuple(shape[i] for i in order), dtype_of=tensor, **_made(tensor))


def _cast(host: Host, tensor: HostTensor, dtype: DtypeValue | None) -> Value:
    if dtype is None or (dtype.of is tensor):
        return tensor
    cast = host.tensor(tensor.key, like=tensor, **_made(tensor))
    _set_dtype(cast, dtype)
    return cast


def _made(tensor: HostTensor) -> dict[str, object]:
    return {
        "is_given": tensor.is_given, "made": tensor.made, "when": tensor.when, "default": tensor.default,
        "is_packed": tensor.is_packed,
    }  # fmt: skip


def _size(text: str) -> Value:
    return Const(int(text)) if re.fullmatch(r"\d+", text) else Size(text)
