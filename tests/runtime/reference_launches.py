"""Launches carried out by numpy references, over the double of libamdhip64, whose device memory is host memory.

A launch is taken apart with what the code object itself says (its metadata's argument offsets) and what the index
says (the order of the kernargs); both must agree, and the grid, block and LDS must be those of the variant.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from pathlib import Path

import numpy as np
from hip_double.double import Double, Launch

from aot_runtime.bundle import read_index
from aot_runtime.codeobject import read_code_object
from aot_runtime.dtypes import SCALAR_TYPES, numpy_dtype
from aot_runtime.format import Index, Variant
from kernels.attention.reference import attention
from kernels.rows.reference import softmax


class ReferenceLaunches:
    """Checks each launch of a bundle's kernels against the code object's metadata, and computes its result."""

    def __init__(self, folder: Path, double: Double):
        self.index: Index = read_index(folder)
        self.variants = {(self.index.blobs[v.code].sha256, v.symbol): v for v in self.index.variants}
        self.launches: list[tuple[Variant, dict[str, float], Launch]] = []
        double.on_launch(self)

    def __call__(self, launch: Launch) -> None:
        variant = self.variants[hashlib.sha256(launch.image).hexdigest(), launch.kernel]
        values = self._unpack(variant, launch)
        self.launches.append((variant, values, launch))
        getattr(self, launch.kernel)(variant, values, launch)

    def _unpack(self, variant: Variant, launch: Launch) -> dict[str, float]:
        """Kernarg name → value, every field where the code object's metadata says that it is."""
        metadata = read_code_object(launch.image).kernel(launch.kernel)
        assert launch.block == (metadata.max_workgroup_size, 1, 1)
        assert launch.lds_bytes == variant.lds_bytes
        assert len(launch.kernargs) == metadata.kernarg_bytes
        assert [(a.offset, a.size) for a in metadata.args] == [(a.offset, a.size) for a in variant.kernargs]
        return {
            arg.name: struct.unpack_from(
                "<" + ("Q" if arg.type[0] == "*" else SCALAR_TYPES[arg.type].code), launch.kernargs, arg.offset
            )[0]
            for arg in variant.kernargs
        }

    def attention_forward(self, variant: Variant, a: dict[str, float], launch: Launch) -> None:
        dtype = variant.point["T"]
        head_dim, batch = int(a["head_dim"]), launch.grid[2]
        heads, heads_kv, seqlen_q, seqlen_k = (int(a[n]) for n in ("heads", "heads_kv", "seqlen_q", "seqlen_k"))
        assert launch.grid[1] == heads
        assert a[".global_scratch"] == a[".profile_scratch"] == 0

        def tensor(name: str, count: int, rows: int, dims: tuple[str, str]) -> np.ndarray:
            steps = [int(a[f"stride_{name}_{dim}"]) for dim in ("batch", *dims)]
            return device_view(a[name], dtype, (batch, count, rows, head_dim), (*steps, 1))

        q = tensor("q", heads, seqlen_q, ("heads", "seqlen_q"))
        k = tensor("k", heads_kv, seqlen_k, ("heads_kv", "seqlen_k"))
        v = tensor("v", heads_kv, seqlen_k, ("heads_kv", "seqlen_k"))
        result = attention(q, k, v, scale=a["scale"], causal=variant.point["CAUSAL"], return_lse=True)
        tensor("out", heads, seqlen_q, ("heads", "seqlen_q"))[...] = result[0].astype(q.dtype)
        if variant.point["RETURN_LSE"]:
            steps = (int(a["stride_lse_batch"]), int(a["stride_lse_heads"]), 1)
            device_view(a["lse"], "float32", (batch, heads, seqlen_q), steps)[...] = result[1]

    def softmax_rows(self, variant: Variant, a: dict[str, float], launch: Launch) -> None:
        shape = (int(a["rows"]), int(a["cols"]))
        assert launch.grid == (shape[0], 1, 1)
        x = device_view(a["x"], variant.point["T"], shape, (int(a["stride_x_rows"]), 1))
        device_view(a["out"], variant.point["T"], shape, (int(a["stride_out_rows"]), 1))[...] = softmax(x)


def device_view(address: float, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """A numpy view of the double's device memory; strides in elements."""
    kind = numpy_dtype(dtype)
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    raw = (ctypes.c_char * (reach * kind.itemsize)).from_address(int(address))
    steps = [stride * kind.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(np.frombuffer(raw, kind), shape, steps, writeable=True)
