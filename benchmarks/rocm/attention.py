"""Run AITER's attention of an MI300X from its code object: bfloat16, head dim 128, without a mask.

    python attention.py CODE BATCH HEADS LENGTH [--check]

The kernel is launched with `hipModuleLaunchKernel`. The result is checked against float64; without --check, memory is
uninitialised.
"""

from __future__ import annotations

import argparse
import ctypes
import struct
from pathlib import Path

import numpy as np
from arrays import TYPES, Array, Hip, Pointer, check, decoded, encoded, relative_error

HEAD_DIM = 128
SYMBOL = b"_ZN5aiter24fmha_fwd_hd128_bf16_rtnaE"
_ROWS, _THREADS = 256, 512
"""Rows of queries, and threads, of a workgroup."""
_TUNING = 5
"""`s_opt` as AITER's host code gives it without a mask."""
_KERNARGS, _SIZE, _END = 1, 2, 3
"""`HIP_LAUNCH_PARAM_BUFFER_POINTER`, `_BUFFER_SIZE` and `_END`."""


def kernargs(pointers: list[int], heads: int, length: int) -> bytes:
    """Return `fmha_fwd_v3_args` of AITER's `mha_fwd.h`: each field takes 16 bytes. Sizes are in bytes.

    pointers: of the output, Q, K, V and the log-sum-exp of the rows. Tensors are laid out as [batch, length, heads,
    HEAD_DIM].
    """
    element = TYPES["bf16"].itemsize
    head, token = HEAD_DIM * element, heads * HEAD_DIM * element
    strides = (token, head, length * token)
    queries = (length, token, _ROWS * token, head, length * token)
    options = (_TUNING, 0, length, HEAD_DIM, HEAD_DIM, heads)
    words = (*queries, 1, *strides, *options, *strides, *strides)
    fields = [struct.pack("<Q8x", pointer) for pointer in pointers]
    fields += [struct.pack("<f12x", HEAD_DIM**-0.5), *(struct.pack("<I12x", word) for word in words)]
    fields += [bytes(32), struct.pack("<I12x", length * 4), bytes(16 * 11)]  # of variable lengths, paddings, scales
    return b"".join(fields)


def launch(hip: Hip, code: Path, arguments: bytes, grid: tuple[int, int, int]) -> None:
    module, function = Pointer(), Pointer()
    check(hip.library.hipModuleLoad(ctypes.byref(module), str(code).encode()), "hipModuleLoad")
    check(hip.library.hipModuleGetFunction(ctypes.byref(function), module, SYMBOL), "hipModuleGetFunction")
    buffer, size = ctypes.create_string_buffer(arguments, len(arguments)), ctypes.c_size_t(len(arguments))
    extra = (Pointer * 5)(_KERNARGS, ctypes.addressof(buffer), _SIZE, ctypes.addressof(size), _END)
    status = hip.library.hipModuleLaunchKernel(function, *grid, _THREADS, 1, 1, 0, Pointer(0), None, extra)
    check(status, "hipModuleLaunchKernel")
    hip.synchronize()


def attention(q: Array, k: Array, v: Array) -> Array:
    """Compute attention of [batch, length, heads, HEAD_DIM] in float64."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    weights = q @ k.swapaxes(-1, -2) * HEAD_DIM**-0.5
    weights = np.exp(weights - weights.max(-1, keepdims=True))
    found: Array = weights / weights.sum(-1, keepdims=True) @ v
    return found.transpose(0, 2, 1, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("code", type=Path)
    for size in ("batch", "heads", "length"):
        parser.add_argument(size, type=int)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    hip, shape = Hip(), (given.batch, given.length, given.heads, HEAD_DIM)
    host = np.zeros(shape, TYPES["bf16"])
    if given.check:
        rng = np.random.default_rng(given.length)
        inputs = [encoded(rng.standard_normal(shape, np.float32), "bf16") for _ in range(3)]
        operands = [hip.array(x) for x in inputs]
    else:
        operands = [hip.empty(host.nbytes) for _ in range(3)]
    result, sums = hip.empty(host.nbytes), hip.empty(given.batch * given.heads * given.length * 4)
    pointers = [pointer.value or 0 for pointer in (result, *operands, sums)]
    grid = (-(-given.length // _ROWS), given.heads, given.batch)
    launch(hip, given.code, kernargs(pointers, given.heads, given.length), grid)
    if given.check:
        wanted = attention(*(decoded(x, "bf16") for x in inputs))
        print(f"relative error {relative_error(decoded(hip.read(host, result), 'bf16'), wanted):.3g}")


if __name__ == "__main__":
    main()
