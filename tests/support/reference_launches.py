"""Execute launches of the double of libamdhip64 with numpy references. Its device memory is host memory.

A launch is decoded with the code object's metadata (argument offsets) and the index (order of kernargs). Both must
agree, and grid, block and LDS must be the variant's. Over AMD's library, whose emulated GPU executes launches, they are
only decoded.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from aot_runtime import open_bundle
from aot_runtime.bundle.codeobject import KernelMetadata, read_code_object
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.dtypes import SCALAR_TYPES, numpy_dtype
from aot_runtime.contract.records import Index, Variant
from aot_runtime.opening import Bundle
from kernels.attention.reference import attention
from kernels.rows.reference import softmax
from tests.support.hip_double.double import Double, Launch


def open_over_double(path: Path, device: str = "hip:0") -> tuple[Bundle, ReferenceLaunches]:
    """Open a bundle over the double, and check and record its launches."""
    return open_bundle(path, device), ReferenceLaunches(path, Double())


@dataclass(frozen=True)
class Recorded:
    """A launch that was carried out: its variant, and the value of every kernarg."""

    variant: Variant
    values: dict[str, float]
    launch: Launch


class ReferenceLaunches:
    """Checks each launch of a bundle's kernels against the code object's metadata, and computes its result."""

    def __init__(self, folder: Path, double: Double):
        self.double = double
        self.index: Index = read_index(folder)
        self.variants = {(self.index.blobs[v.code].sha256, v.symbol): v for v in self.index.variants}
        self.launches: list[Recorded] = []
        double.on_launch(self)

    @property
    def count(self) -> int:
        """Count the launches that the library was asked for, failed ones included."""
        return self.double.calls("hipModuleLaunchKernel")

    @property
    def last(self) -> Recorded:
        return self.launches[-1]

    def __call__(self, launch: Launch) -> None:
        variant = self.variants[hashlib.sha256(launch.image).hexdigest(), launch.kernel]
        values = _unpack(variant, launch)
        if self.double.is_double:
            getattr(self, launch.kernel)(variant, values, launch)
        self.launches.append(Recorded(variant, values, launch))

    # Kernels, by their symbols

    def attention_forward(self, variant: Variant, a: dict[str, Any], launch: Launch) -> None:
        dtype, batch = str(variant.axis_values["T"]), launch.grid[2]
        heads, heads_kv, seqlen_q, seqlen_k, head_dim = (
            a[f"extents.{name}"] for name in ("heads", "heads_kv", "seqlen_q", "seqlen_k", "head_dim")
        )
        assert launch.grid[1] == heads

        def tensor(name: str, count: int, rows: int) -> np.ndarray:
            steps = [a[f"{name}.stride_{dim}"] for dim in ("batch", "heads", "rows")]
            return device_view(a[f"{name}.ptr"], dtype, (batch, count, rows, head_dim), (*steps, 1))

        q, k, v = tensor("q", heads, seqlen_q), tensor("k", heads_kv, seqlen_k), tensor("v", heads_kv, seqlen_k)
        result = attention(q, k, v, scale=a["scale"], causal=a["window.right"] == 0, return_lse=True)
        tensor("out", heads, seqlen_q)[...] = result[0].astype(q.dtype)
        if a["lse.ptr"]:
            steps = (a["lse.stride_batch"], a["lse.stride_heads"], 1)
            device_view(a["lse.ptr"], "float32", (batch, heads, seqlen_q), steps)[...] = result[1]

    attention_forward_cdna3 = attention_forward

    def softmax_rows(self, variant: Variant, a: dict[str, Any], launch: Launch) -> None:
        a_program = 1 if variant.axis_values["BLOCK"] > 512 else 4
        assert launch.grid == (-(-a["rows"] // a_program), 1, 1)
        self._softmax(variant, a, a["rows"])

    def softmax_part(self, variant: Variant, a: dict[str, Any], launch: Launch) -> None:
        """Leaves nothing: `softmax_long_rows` computes all."""
        assert launch.grid[1] == a["parts"] > 1

    def softmax_long_rows(self, variant: Variant, a: dict[str, Any], launch: Launch) -> None:
        assert launch.grid[1:] == (a["parts"], 1)
        self._softmax(variant, a, launch.grid[0])

    def _softmax(self, variant: Variant, a: dict[str, Any], rows: int) -> None:
        shape = (rows, a["cols"])
        dtypes = {"x": str(variant.axis_values["T"]), "mask": "bool", "out": str(variant.axis_values["T"])}
        x, mask, out = (
            device_view(a[f"{name}.ptr"], dtype, shape, (a[f"{name}.stride_rows"], 1)) if a[f"{name}.ptr"] else None
            for name, dtype in dtypes.items()
        )
        temperature = None
        if a["temperature.ptr"]:
            temperature = device_view(a["temperature.ptr"], "float32", (rows,), (a["temperature.stride_rows"],))
        out[...] = softmax(x, mask, temperature, a["scale"])

    def affine_rows(self, variant: Variant, a: dict[str, Any], launch: Launch) -> None:
        block = 64 if variant.num_warps == 1 else 256
        dtype, shape = str(variant.axis_values["T"]), (launch.grid[0], a["cols"])
        assert launch.grid[1:] == (-(-shape[1] // block), 1)
        value = device_view(a["x"], dtype, shape, (a["stride_x_rows"], 1)) * np.float32(a["scale"])
        if variant.axis_values["HAS_BIAS"]:
            value = value + device_view(a["bias"], dtype, shape, (a["stride_bias_rows"], 1))
        else:
            assert "bias" not in a
        value = (-value if variant.axis_values["NEGATED"] else value) + a["shift"]
        device_view(a["out"], dtype, shape, (a["stride_out_rows"], 1))[...] = value

    def partial_sums(self, variant: Variant, a: dict[str, Any], launch: Launch) -> None:
        rows, cols, splits = launch.grid[0], a["cols"], a["splits"]
        assert launch.grid[1] == splits == -(-cols // 64)
        x = device_view(a["x"], "float32", (rows, cols), (a["stride_x_rows"], 1))
        sums = [x[:, start : start + 64].sum(axis=1) for start in range(0, cols, 64)]
        device_view(a["partial"], "float32", (rows, splits), (splits, 1))[...] += np.stack(sums, axis=1)

    def add_partial(self, variant: Variant, a: dict[str, Any], launch: Launch) -> None:
        rows = launch.grid[0]
        partial = device_view(a["partial"], "float32", (rows, a["splits"]), (a["splits"], 1))
        device_view(a["total"], "float32", (rows,), (1,))[...] = partial.sum(axis=1) + a["offset"]
        if variant.axis_values["RETURN_LARGEST"]:
            x = device_view(a["x"], "float32", (rows, a["cols"]), (a["stride_x_rows"], 1))
            device_view(a["largest"], "float32", (rows,), (1,))[...] = x.max(axis=1)

    def accumulate_values(self, variant: Variant, a: dict[str, Any], launch: Launch) -> None:
        assert launch.grid == (-(-a["n"] // 128), 1, 1)
        x, state = (device_view(a[name], "float32", (a["n"],), (1,)) for name in ("x", "state"))
        state += x

    def count_values(self, variant: Variant, a: dict[str, Any], launch: Launch) -> None:
        """Add to what is there, as atomics do."""
        x, counts = (device_view(a[name], "int32", (a[size],), (1,)) for name, size in (("x", "n"), ("counts", "bins")))
        inside = (x >= 0) & (x < a["bins"])
        np.add.at(counts, x[inside], 1)
        device_view(a["others"], "int32", (1,), (1,))[...] += np.count_nonzero(~inside)

    def fill_ramp(self, variant: Variant, a: dict[str, Any], launch: Launch) -> None:
        at = np.arange(a["n"], dtype=np.float32)
        start, halved = (np.uint16(a[name]).view(ml_dtypes.bfloat16).astype(np.float32) for name in ("start", "halved"))
        out = start + at * np.float32(a["step"]) + at % 2 * halved
        device_view(a["numbers"], "float32", (a["n"],), (1,))[...] = out

    def scale_segment_rows(self, variant: Variant, a: dict[str, Any], launch: Launch) -> None:
        batch = launch.grid[0]
        starts = device_view(a["starts"], "int32", (batch + 1,), (1,))
        factors = device_view(a["factors"], "float32", (batch,), (1,))
        shape = (int(starts[-1]), a["width"])
        x = device_view(a["x"], "float32", shape, (a["stride_x_tokens"], 1))
        out = x * np.repeat(factors, np.diff(starts))[:, None]
        device_view(a["out"], "float32", shape, (a["stride_out_tokens"], 1))[...] = out
        if a["largest"]:
            device_view(a["largest"], "float32", shape[:1], (1,))[...] = out.max(axis=1)


@cache
def _metadata(image: bytes, kernel: str) -> KernelMetadata:
    return read_code_object(image).kernel(kernel)


def _unpack(variant: Variant, launch: Launch) -> dict[str, float]:
    """Return kernarg name → value, every field where the code object's metadata says that it is."""
    metadata = _metadata(launch.image, launch.kernel)
    assert launch.block == (metadata.max_workgroup_size, 1, 1)
    assert launch.lds_bytes == variant.lds_bytes
    assert len(launch.kernargs) == metadata.kernarg_bytes
    assert [(a.offset, a.size) for a in metadata.args] == [(a.offset, a.size) for a in variant.kernargs]
    values = {
        arg.name: struct.unpack_from(
            "<" + ("Q" if arg.type[0] == "*" else SCALAR_TYPES[arg.type].format), launch.kernargs, arg.offset
        )[0]
        for arg in variant.kernargs
    }
    assert values[".global_scratch"] == values[".profile_scratch"] == 0  # no kernel here asks for any
    return values


def device_view(address: float, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """Return a numpy view of the double's device memory; strides in elements."""
    kind = numpy_dtype(dtype)
    if 0 in shape:
        return np.empty(shape, kind)
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True))
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True)) + 1
    raw = (ctypes.c_char * ((high - low) * kind.itemsize)).from_address(int(address) + low * kind.itemsize)
    steps = [stride * kind.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(np.frombuffer(raw, kind)[-low:], shape, steps, writeable=True)
