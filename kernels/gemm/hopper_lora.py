"""Linear layers with a low-rank adapter for Hopper, in Gluon: the adapter's product is further blocks of k.

`lora.lora_shrink` has computed x downᵀ in parts of k. Each part is multiplied by upᵀ; the accumulator adds them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language.extra.cuda import gdc_wait

from kernels.gemm.epilogue import Epilogue
from kernels.gemm.hopper import NONE, More, Operands, grid_of, multiply_maps


@gluon.jit
def lora_expand_hopper(
    x, w, up, e, inner, epilogue: Epilogue, m, n, k, rank, parts,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUPS: gl.constexpr, TRANSPOSED: gl.constexpr, BAND: gl.constexpr,
    BYTES: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """e = x wᵀ + inner upᵀ. Grid, blocks, tiles and the constexprs are those of `hopper.matmul_hopper`.

    x, w, up, e: tensor maps of [m, k], [n, k], [adapters, n, rank], whose first adapter is taken, and [m, n]; inner:
    [parts, m, rank], which are added up; all of one dtype of 16 bits. rank is a multiple of 8. The epilogue is empty.
    """
    gl.static_assert(x.block_shape[1] * x.dtype.primitive_bitwidth == 8 * BYTES)
    gdc_wait()  # the map is written to memory, where that of an earlier launch may still be in use
    inner_map = tma.make_tensor_descriptor(inner, [parts * m, rank], [rank, 1], x.block_shape, x.layout)
    steps = gl.cdiv(rank, x.block_shape[1])
    grid = grid_of(x, m, n, k, parts * steps, BLOCK_M, BLOCK_N, BAND, TRANSPOSED)
    if TRANSPOSED:
        operands = Operands(w, x, More(up, inner_map, NONE, m, parts, steps))
    else:
        operands = Operands(x, w, More(inner_map, up, m, NONE, parts, steps))
    multiply_maps(operands, e, grid, epilogue, GROUPS, STAGES, REGISTERS, TRANSPOSED)
