"""Calls of the attention ops: tensors surrounded by NaN, execution, and checks of results.

The same calls run on the emulator and on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aot_runtime import Bundle, DeviceArray
from aot_runtime.contract.records import Variant
from kernels.attention import quantised_reference as quantised
from kernels.attention.mla_reference import mla_absorbed, mla_prefill, mla_prefill_same_dtype
from kernels.attention.reference import attention, attention_same_dtype, attention_varlen, attention_varlen_same_dtype
from kernels.tolerance import assert_close
from tests.support.dtypes import BF16, FP16, FP32, INT8

Array = np.ndarray[Any, Any]
DTYPES = {"float16": FP16, "bfloat16": BF16, "float32": FP32}
MARGIN = 16
"""Elements beside a tensor's last dim: as many as leave aligned rows aligned."""
FLOORS = {"out": 1e-6, "lse": 1e-5}

REFERENCES: dict[str, tuple[Callable[..., Any], ...]] = {
    "flash_attention": (attention_same_dtype, attention),
    "flash_attention_varlen": (attention_varlen_same_dtype, attention_varlen),
    "flash_attention_int8": (quantised.attention_int8_same_dtype, quantised.attention_int8),
    "flash_attention_int8_kv": (quantised.attention_kv_same_dtype, quantised.attention_kv),
    "flash_attention_fp8": (quantised.attention_fp8_same_dtype, quantised.attention_fp8),
    "flash_attention_int8_varlen": (quantised.attention_int8_varlen_same_dtype, quantised.attention_int8_varlen),
    "flash_attention_int8_kv_varlen": (quantised.attention_kv_varlen_same_dtype, quantised.attention_kv_varlen),
    "flash_attention_fp8_varlen": (quantised.attention_fp8_varlen_same_dtype, quantised.attention_fp8_varlen),
    "mla_prefill": (mla_prefill_same_dtype, mla_prefill, mla_absorbed),
}
"""Floors of each op's outputs, by whether they are computed by one formula or two."""


@dataclass(frozen=True)
class Placed:
    """A tensor in an array with poison around it; `place` finds it there, on the host and on a device."""

    whole: Array
    place: Callable[[Any], Any]

    @property
    def values(self) -> Array:
        return self.place(self.whole)

    def is_alone(self, whole: Array) -> bool:
        """Tell whether `whole`, of the same shape, is NaN except for the tensor."""
        beside = np.ones(whole.shape, bool)
        self.place(beside)[...] = False
        return bool(np.isnan(whole[beside].astype(np.float32)).all())


@dataclass(frozen=True)
class Call:
    """Arguments of an op. inputs and outputs: tensors by name; arrays that are not Placed stay on the host."""

    op: str
    inputs: dict[str, Placed | Array]
    outputs: dict[str, Placed]
    scalars: dict[str, Any]


def room(shape: tuple[int, int, int, int], dtype: np.dtype[Any], layout: str = "bhsd") -> Placed:
    """Return poison for a tensor [batch, heads, rows, columns]. layout: bhsd, bshd, or `columns`: rows are
    innermost."""
    batch, heads, rows, columns = shape
    fill = 127 if dtype == INT8 else np.nan
    if layout == "columns":
        whole = np.full((batch, heads, columns, -(-rows // 16) * 16 + MARGIN), fill, dtype)
        return Placed(whole, lambda x: x[..., :rows].transpose(0, 1, 3, 2))
    if layout == "bhsd":
        whole = np.full((batch, heads, rows + 3, columns + MARGIN), fill, dtype)
        return Placed(whole, lambda x: x[:, :, 2 : 2 + rows, :columns])
    whole = np.full((batch, rows + 3, heads, columns + MARGIN), fill, dtype)
    return Placed(whole, lambda x: x[:, 2 : 2 + rows, :, :columns].transpose(0, 2, 1, 3))


def placed(values: Array, layout: str = "bhsd") -> Placed:
    """Return a copy of `values` in a `room`."""
    item = room(values.shape, values.dtype, layout)
    item.values[...] = values
    return item


def packed(call: Call) -> Call:
    """The same call with nothing between the elements of tensors."""
    inputs = {n: x.values.copy() if isinstance(x, Placed) else x for n, x in call.inputs.items()}
    outputs = {n: Placed(np.full_like(x.values.copy(), np.nan), lambda whole: whole) for n, x in call.outputs.items()}
    return replace(call, inputs=inputs, outputs=outputs)


def lse_room(*shape: int) -> Placed:
    """Return poison for an lse whose last dim is that of the queries."""
    rows = shape[-1]
    return Placed(np.full((*shape[:-1], rows + 3), np.nan, np.float32), lambda x: x[..., 1 : 1 + rows])


def check(bundle: Bundle, call: Call) -> None:
    """Run a call; raise AssertionError where a result is wrong, or anything beside it was written to."""
    same_dtype, *exact = expected(call)
    for name, result in run(bundle, call).items():
        for by_formula in exact:
            floor = FLOORS[name]
            if call.op.startswith("flash_attention_fp8") and bundle.device.arch.startswith("sm_"):
                # Its matrix units keep some 14 bits of a sum of float8 products.
                floor += 2**-11 * np.abs(by_formula[name][np.isfinite(by_formula[name])]).max(initial=0)
            assert_close(result, by_formula[name], same_dtype[name], floor, name)


def expected(call: Call) -> list[dict[str, Array]]:
    """Return out and lse by each of REFERENCES."""
    inputs = {name: item.values if isinstance(item, Placed) else item for name, item in call.inputs.items()}
    if call.op.removesuffix("_varlen") in ("flash_attention_int8", "flash_attention_fp8"):
        inputs["out"] = call.outputs["out"].values  # for its dtype
    default = {"scale": inputs["q"].shape[-1] ** -0.5} if "q" in inputs else {}
    options = default | call.scalars | {"return_lse": True}
    return [dict(zip(FLOORS, reference(**inputs, **options), strict=True)) for reference in REFERENCES[call.op]]


def run(bundle: Bundle, call: Call) -> dict[str, Array]:
    """Return the outputs of a call, after checking that nothing beside them was written."""
    wholes, arguments = _on_device(bundle, call)
    getattr(bundle, call.op)(**arguments, **call.scalars)
    after = {name: wholes[id(item.whole)].numpy() for name, item in call.outputs.items()}
    for name, item in call.outputs.items():
        assert item.is_alone(after[name]), f"written beside {name}"
    return {name: item.place(after[name]) for name, item in call.outputs.items()}


def launched(bundle: Bundle, call: Call) -> list[Variant]:
    """Return the variants that a call launches."""
    _, arrays = _on_device(bundle, call)
    layouts = {n: (bundle.device.array(x) if isinstance(x, np.ndarray) else x).layout for n, x in arrays.items()}
    decision = getattr(bundle, call.op).decide(layouts, call.scalars)
    return [launch.variant for launch in decision.launches]


def _on_device(bundle: Bundle, call: Call) -> tuple[dict[int, DeviceArray], dict[str, Any]]:
    """Return (whole arrays on the device by the identity of those on the host, the call's tensors in them)."""
    tensors: dict[str, Any] = call.inputs | call.outputs
    placed = [item for item in tensors.values() if isinstance(item, Placed)]
    wholes = {id(item.whole): bundle.device.array(item.whole) for item in placed}
    return wholes, {
        name: item.place(wholes[id(item.whole)]) if isinstance(item, Placed) else item for name, item in tensors.items()
    }
