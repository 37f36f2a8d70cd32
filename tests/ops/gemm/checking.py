"""Call matrix products with poison around all tensors, and compare them with the fp64 references."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import numpy as np

from aot_runtime import Bundle, DeviceArray
from kernels.gemm import lora_reference, packed_reference, reference
from kernels.tolerance import assert_close
from tests.support.dtypes import FP32, INT8, INT32
from tests.support.poison import into_poison, poisoned

FLOOR = 1e-6
REFERENCES = vars(lora_reference) | vars(packed_reference) | vars(reference)
LAYOUTS = ((False, False), (False, True), (True, False), (True, True))
"""a, and b, are column-major."""


def matrix(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, column_major: bool = False) -> np.ndarray:
    """Draw normal random values, or integers over all of int8."""
    if dtype.kind == "i":
        host = rng.integers(-128, 128, shape).astype(dtype)
    else:
        host = rng.standard_normal(shape).astype(dtype)
    return np.swapaxes(np.ascontiguousarray(np.swapaxes(host, -1, -2)), -1, -2) if column_major else host


def on_device(gemm: Bundle, host: np.ndarray) -> DeviceArray:
    """Put `host` on the device with poison around it, stored by rows or by columns as on the host."""
    if host.strides[-1] == host.dtype.itemsize or host.ndim < 2 or not host.size:
        return poisoned(gemm, host)
    return poisoned(gemm, np.swapaxes(host, -1, -2)).transpose(*range(host.ndim - 2), host.ndim - 1, host.ndim - 2)


def check(
    gemm: Bundle, op: str, dtype: np.dtype, how: Mapping[str, Any] | None = None, precision: str = "ieee",
    floor: float = 0, **given: Any,
) -> np.ndarray:  # fmt: skip
    """Check the result `e`, of this dtype, of an op.

    how: options on which the reference does not depend. floor: errors that these, or the hardware, may add. given:
    tensors and scalars; None is not passed.
    """
    given = {name: value for name, value in given.items() if value is not None}
    placed = {name: on_device(gemm, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    options = {**(how or {}), **({} if precision == "ieee" else {"precision": precision})}
    name = op.removeprefix("batched_")
    exact = REFERENCES[name](**given)
    result = into_poison(gemm, exact.shape, dtype, lambda e: getattr(gemm, op)(**placed, **options, e=e))
    if dtype == INT8:
        check_int8(result, exact)
        return result
    same_dtype = REFERENCES[f"{name}_same_dtype"]
    known = {"e": result, "precision": precision}
    same = same_dtype(**given, **{name: known[name] for name in signature(same_dtype).parameters if name in known})
    if dtype == INT32:
        assert np.array_equal(result, same)
    else:
        a = next(iter(given.values()))
        assert_close(result, exact, same, FLOOR * a.shape[-1] ** 0.5 + floor + lost_by_hopper(gemm, a, exact, dtype))
    return result


def lost_by_hopper(gemm: Bundle, a: np.ndarray, exact: np.ndarray, dtype: np.dtype) -> float:
    """Return what Hopper's matrix units lose of sums of products of a, where results are not rounded more coarsely.

    They cut off the last bit of a sum after each 16 of k, and keep some 14 bits of sums of float8.
    """
    if dtype != FP32 or a.dtype.kind == "i" or a.dtype == FP32 or not gemm.device.arch.startswith("sm_9"):
        return 0
    return (2**-11 if a.itemsize == 1 else 2**-23 * a.shape[-1] / 16) * float(np.abs(exact).max(initial=0))


def check_int8(result: np.ndarray, exact: np.ndarray) -> None:
    """Check int8 results: rounded half to even and saturated; where fp32 cannot tell a tie, either way is right."""
    inside = np.clip(exact, -128, 127)
    near_tie = np.abs(np.abs(inside - np.floor(inside)) - 0.5) < 1e-4
    wrong = np.abs(result - np.rint(inside)) > near_tie
    assert not wrong.any(), f"{np.count_nonzero(wrong)} of {wrong.size}: {result[wrong][:5]}, exact {exact[wrong][:5]}"
    assert (np.abs(result - np.trunc(inside)) <= 1).all()  # what truncates, as composable_kernel does, is near
