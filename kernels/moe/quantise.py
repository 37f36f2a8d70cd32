"""Quantise the results of experts' first products to 8 bits, for the second ones."""

import triton
import triton.language as tl

from kernels.common.tensors import Matrix
from kernels.gemm.quantise import quantise_part


@triton.jit
def quantise_assignments(
    x: Matrix, q: Matrix, scale: Matrix, chosen, n, block, experts, LARGEST: tl.constexpr, BLOCK: tl.constexpr,
    static=None,
):  # fmt: skip
    """q * scale = x, with a scale for `block` columns of each row, or `static`. Grid: (assignments, cdiv(n, block)).

    x, q: [assignments, n]; scale: fp32 [assignments, cdiv(n, block)]; all packed. static: as in `quantise_blocks`. Rows
    whose `chosen`, int32 [assignments], is out of range are not written.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    expert = tl.load(chosen + row)
    if (expert >= 0) & (expert < experts):
        scale_at = scale.ptr + row * scale.stride_rows + part
        end = tl.minimum(part * block + block, n)
        quantise_part(x, q, scale_at, row, part * block, row + 1, end, LARGEST, 1, BLOCK, static=static)
