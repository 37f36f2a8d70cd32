"""Combinations that are drawn, and the calls that are made for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.peers.grids import Combination, Function
from tests.support.dtypes import BF16, FP16, FP32, INT8

Array = np.ndarray[Any, Any]
DEFAULT = {FP16: (1e-3, 1e-3), BF16: (1e-3, 1.6e-2), FP32: (1e-5, 1.3e-6)}
"""Absolute and relative tolerances of PyTorch's comparisons."""
DTYPES = {
    "float16": FP16, "fp16": FP16, "bfloat16": BF16, "bf16": BF16, "float32": FP32, "fp32": FP32, "int8": INT8,
}  # fmt: skip


class TooLargeError(Exception):
    """A combination that takes more work than the sample is allowed."""


@dataclass(frozen=True)
class Tolerance:
    """|result - exact| <= factor * max |same dtype - exact| + absolute + relative * |exact|.

    Where the exact result is NaN, no result is written.
    """

    absolute: float = 0.0
    relative: float = 0.0
    factor: float = 0.0

    def check(self, result: Array, exact: Array, same_dtype: Array) -> None:
        result, exact, same_dtype = (np.asarray(x, np.float64) for x in (result, exact, same_dtype))
        limit = self.factor * np.nanmax(np.abs(same_dtype - exact), initial=0) + self.absolute
        error = np.abs(result - exact)
        wrong = ~(error <= limit + self.relative * np.abs(exact)) & ~(np.isnan(exact) & np.isnan(result))
        assert result.shape == exact.shape and not wrong.any(), (
            f"{np.count_nonzero(wrong)} of {wrong.size} differ, by up to {np.nanmax(error):.3e}; allowed are "
            f"{limit:.3e}, and {self.relative} of the exact result"
        )


@dataclass(frozen=True)
class Call:
    """A call of an op. expected: returns the exact result and that in the op's dtypes."""

    op: str
    tensors: Mapping[str, Array]
    scalars: Mapping[str, Any]
    expected: Callable[[], tuple[Array, Array]]
    tolerance: Tolerance
    out: tuple[str, tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True)
class Draw:
    """A combination of a test function, with the work that a call of it may take, in multiplications."""

    function: Function
    values: Combination
    limit: float
    float8: np.dtype[Any]
    rng: np.random.Generator

    def get(self, names: str, default: Any = None) -> Any:
        """Return the value of the first of the parameters, by names that blanks part, that the function has."""
        return next((self.values[name] for name in names.split() if name in self.values), default)

    def dtype(self, names: str = "dtype prec test_dtype in_dtype_str", default: str = "float16") -> np.dtype[Any]:
        asked = self.get(names) or default
        if asked.startswith("float8_e5m2"):
            return np.dtype(ml_dtypes.float8_e5m2fnuz if self.float8.name.endswith("fnuz") else ml_dtypes.float8_e5m2)
        return self.float8 if asked.startswith(("float8", "fp8", "current_platform")) else DTYPES[asked]

    def within(self, work: float) -> None:
        if work > self.limit:
            raise TooLargeError(f"{work:.1e} multiplications")

    def normal(self, *shape: int, dtype: np.dtype[Any] = FP32) -> Array:
        return self.rng.standard_normal(shape).astype(dtype)

    def tensor(self, *shape: int, dtype: np.dtype[Any], swapped: tuple[int, int] | None = None) -> Array:
        """Return normal values; swapped: two dims that are the other way round in memory."""
        x = self.normal(*shape, dtype=dtype)
        return x if swapped is None else np.ascontiguousarray(x.swapaxes(*swapped)).swapaxes(*swapped)

    @property
    def heads(self) -> tuple[int, int]:
        """Heads of queries and of keys."""
        if (pair := self.get("num_heads N_HEADS")) and isinstance(pair, list):
            return pair[0], pair[1]
        if kind := self.get("mha_type"):
            return {"mha": (2, 2), "mqa": (2, 1), "gqa": (4, 2)}[kind]
        kv = self.get("num_kv_heads NUM_K_HEADS H_KV", 1)
        count = self.get("num_qo_heads num_heads NUM_Q_HEADS h", kv * self.get("gqa_group_size group_size", 2))
        if count % kv:
            raise TooLargeError("heads that are not a multiple of the key heads, which the test skips")
        return count, kv
