"""Runs kernels on the CPU with Triton's interpreter, on numpy arrays.

The interpreter has to be chosen before Triton is imported: kernels run in a process of their own.
"""

import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

GUARD = 1 << 14  # elements of NaN before and after each tensor: a stray access lands there


@dataclass(frozen=True)
class Tensor:
    """A strided tensor in a larger allocation. strides and offset are in elements."""

    storage: np.ndarray
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def view(self) -> np.ndarray:
        strides = [stride * self.storage.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(self.storage[self.offset :], self.shape, strides)

    def surroundings(self) -> np.ndarray:
        """The elements of the allocation that the tensor does not hold."""
        outside = np.ones(self.storage.size, bool)
        replace(self, storage=outside).view[...] = False
        return self.storage[outside]


NULL = Tensor(np.empty(0, np.float32), 0, (), ())
"""A tensor that is absent, of float32: a null pointer."""


def poisoned(values: np.ndarray, order: tuple[int, ...] | None = None, padding: int = 0) -> Tensor:
    """`values` in NaN: dims laid out in `order`, the slowest first, `padding` elements past the end of each dim."""
    order = order or tuple(range(values.ndim))
    padded = np.full([values.shape[dim] + padding for dim in order], np.nan, values.dtype)
    guard = np.full(GUARD, np.nan, values.dtype)
    storage = np.concatenate([guard, padded.ravel(), guard])
    strides = [0] * values.ndim
    for place, dim in enumerate(order):
        strides[dim] = int(np.prod(padded.shape[place + 1 :]))
    tensor = Tensor(storage, GUARD, values.shape, tuple(strides))
    tensor.view[...] = values
    return tensor


def start() -> Executor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _choose_interpreter)


def launch(source: Path, kernel: str, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """Run `kernel` of the file `source` over `grid`, a Tensor for each pointer. Returns the tensors afterwards.

    arguments: parameters and, of those that are named tuples, members (`q.ptr`); where a tuple has none, it is absent.
    What the file imports comes from the folder that its `kernels` is in.
    """
    found = getattr(_fresh_module(source), kernel)
    values = {n: _Pointer(a) if isinstance(a, Tensor) else a for n, a in arguments.items()}
    found[grid](**_with_tuples(values, found.fn.__annotations__))
    return {name: argument for name, argument in arguments.items() if isinstance(argument, Tensor)}


def _with_tuples(values: Mapping[str, Any], annotations: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with the members of each named tuple in one."""
    whole = {name: value for name, value in values.items() if "." not in name}
    for parameter, kind in annotations.items():
        if hasattr(kind, "_fields"):
            own = {field: values[f"{parameter}.{field}"] for field in kind._fields if f"{parameter}.{field}" in values}
            whole[parameter] = kind(**(own or _absent(kind)))
    return whole


def _absent(kind: Any) -> dict[str, Any]:
    """The members of a tuple that stands for nothing, as the builder makes them."""
    nothing = {field: 0 if field.startswith("stride_") else None for field in kind._fields}
    return nothing | ({"operands": ()} if "operands" in nothing else {}) | kind._field_defaults


def planted(source: Path, right: str, wrong: str, mutant: Path) -> Path:
    """Write a source with a fault in it to `mutant`, which is returned."""
    text = source.read_text()
    assert text.count(right) == 1, f"the kernel changed: {right!r} occurs {text.count(right)} times"
    mutant.write_text(text.replace(right, wrong))
    return mutant


def assert_noticed(check: Callable[[Any], None], cases: Iterable[Any]) -> None:
    """The check of one of the cases fails."""
    for case in cases:
        try:
            check(case)
        except AssertionError:
            return
    raise AssertionError("no case noticed")


def _fresh_module(source: Path) -> ModuleType:
    root = next((folder.parent for folder in source.parents if folder.name == "kernels"), source.parent)
    for name in [name for name in sys.modules if name.partition(".")[0] == "kernels"]:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    try:
        spec = importlib.util.spec_from_file_location(source.stem, source)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(root))
    return module


class _Pointer:
    """As much of a torch tensor as the interpreter asks for; it is its own storage and its own copy on the host."""

    def __init__(self, tensor: Tensor):
        self._tensor = tensor
        self.dtype = str(tensor.storage.dtype)

    def data_ptr(self) -> int:
        if not self._tensor.storage.size:
            return 0
        return self._tensor.storage.ctypes.data + self._tensor.offset * self._tensor.storage.itemsize

    def untyped_storage(self) -> "_Pointer":
        return self

    def cpu(self) -> "_Pointer":
        return self

    def new_empty(self, *_: Any, **__: Any) -> "_Pointer":
        return _Pointer(self._tensor)

    def set_(self, *_: Any) -> None:
        pass

    def copy_(self, _: Any) -> None:
        pass

    def storage_offset(self) -> int:
        return self._tensor.offset

    def size(self) -> tuple[int, ...]:
        return self._tensor.shape

    def stride(self) -> tuple[int, ...]:
        return self._tensor.strides


def _choose_interpreter() -> None:
    """Select the interpreter, and mend its bfloat16: it truncates instead of rounding, and dot multiplies the bits."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast, dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def widen(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        return TensorHandle(operand.data.view(ml_dtypes.bfloat16).astype(np.float32), tl.float32)

    def mended_cast(self: Any, source: Any, target: Any) -> Any:
        if (source.dtype.scalar, target.scalar) == (tl.float32, tl.bfloat16):
            return TensorHandle(source.data.astype(ml_dtypes.bfloat16).view(np.uint16), tl.bfloat16)
        return cast(self, source, target)

    InterpreterBuilder.cast_impl = mended_cast
    InterpreterBuilder.create_dot = lambda self, a, b, *rest: dot(self, widen(a), widen(b), *rest)
