"""Named tuples of the attention kernels: arguments, and the tiles and spans into which they are divided."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.common.tensors import Extents, HeadRows, Heads, HeadScalars, Matrix, Vector, Window


class Work(NamedTuple):
    """Tiles of queries: query_blocks of each head of each batch. counter: int32 [1], 0 at first. dynamic: persistent
    programs take their next tiles from the counter."""

    query_blocks: tl.tensor
    batch: tl.tensor = 1
    counter: tl.tensor = None
    dynamic: tl.tensor = False


class Problem(NamedTuple):
    """The arguments of `attention_forward` and `attention_quantised`. q_scale, k_scale, v_scale: factors of each head's
    values."""

    q: Heads
    k: Heads
    v: Heads
    out: Heads
    lse: HeadRows
    extents: Extents
    window: Window
    scale: tl.tensor
    bias: Heads = Heads(None, 0, 0, 0, 0)
    alibi_slopes: HeadScalars = HeadScalars(None, 0, 0)
    softcap: tl.tensor = 0.0
    q_scale: HeadScalars = HeadScalars(None, 0, 0)
    k_scale: HeadScalars = HeadScalars(None, 0, 0)
    v_scale: HeadScalars = HeadScalars(None, 0, 0)
    cu_seqlens_q: tl.tensor = None
    cu_seqlens_k: tl.tensor = None
    seqused_q: Vector = Vector(None, 0)
    seqused_k: Vector = Vector(None, 0)
    score_operands: tl.tuple = ()
    mask_operands: tl.tuple = ()
    sinks: tl.tensor = None
    out_scale: tl.tensor = None
    qv: Heads = Heads(None, 0, 0, 0, 0)


class KeyHead(NamedTuple):
    """Keys and values of one sequence and head: [seqlen, head_dim] and [seqlen, head_dim_v].

    v: None if the keys are the values, too. rotated: a second part of the keys, [seqlen, rotated_dim], or None.
    """

    k: Matrix
    v: Matrix
    seqlen: tl.tensor
    head_dim: tl.tensor
    head_dim_v: tl.tensor
    rotated: Matrix = None
    rotated_dim: tl.tensor = 0


class QueryTile(NamedTuple):
    """BLOCK_M queries of one sequence and head.

    queries, diagonal, first_key, last_key: [BLOCK_M], each query's index (the last one's for those past the end), the
    key on its diagonal, and the first and the last key that it sees. rotated: the queries' second part,
    [BLOCK_M, ROTATED_DIM], or None. qv: queries of the values, [BLOCK_M, HEAD_DIM_V], or None; has_qv: they are given.
    """

    batch: tl.tensor
    head: tl.tensor
    queries: tl.tensor
    diagonal: tl.tensor
    first_key: tl.tensor
    last_key: tl.tensor
    rotated: tl.tensor = None
    qv: tl.tensor = None
    has_qv: tl.tensor = False


class Scoring(NamedTuple):
    """Steps from a product of a query and a key to a score, in the order of the fields.

    scale: fp32, >= 0. softcap: fp32, scores become softcap * tanh(score / softcap); 0: none. bias: a pointer to each
    query's row of the matrix that is added. slope: fp32, times the distance from the diagonal it is subtracted (ALiBi).
    has_bias, has_slope: these are given. score_operands, mask_operands: captured by the mods of a kernel.
    """

    scale: tl.tensor
    softcap: tl.tensor = 0.0
    bias: tl.tensor = None
    has_bias: tl.tensor = False
    slope: tl.tensor = None
    has_slope: tl.tensor = False
    score_operands: tl.tuple = ()
    mask_operands: tl.tuple = ()


class Span(NamedTuple):
    """Keys [begin, hole) and [hole_end, end); begin, hole and hole_end are multiples of BLOCK_N."""

    begin: tl.tensor
    hole: tl.tensor
    hole_end: tl.tensor
    end: tl.tensor


@dataclass(frozen=True)
class Form:
    """Compile-time settings of the attention kernels. A dataclass: an assigned tuple cannot hold functions.

    Attributes:
        HEAD_DIM, HEAD_DIM_V: powers of two, at least the head dims.
        PADDED: either of them may be greater.
        BLOCK_M, BLOCK_N: queries of a tile, keys of a block.
        BOUND_LEFT, BOUND_RIGHT: the visible keys of a query are bounded on that side.
        FEATURES: there may be a softcap, a bias or slopes, which are tested at run time.
        HAS_BF16_CVT: the hardware rounds fp32 to bfloat16 in one instruction.
        SCORE_MOD, MASK_MOD: functions as in `mods`, or None.
        INT8_P: probabilities are rounded to int8.
        ROTATED_DIM: a power of two, at least the rotated dims, if any.
        PIPELINED: the next keys and values are loaded while these are multiplied.
    """

    HEAD_DIM: int
    HEAD_DIM_V: int
    PADDED: bool
    BLOCK_M: int
    BLOCK_N: int
    BOUND_LEFT: bool
    BOUND_RIGHT: bool
    FEATURES: bool
    HAS_BF16_CVT: bool
    SCORE_MOD: Any
    MASK_MOD: Any
    INT8_P: bool
    ROTATED_DIM: int
    PIPELINED: bool


@triton.constexpr_function
def make_form(
    HEAD_DIM, HEAD_DIM_V, PADDED, BLOCK_M, BLOCK_N, BOUND_LEFT=False, BOUND_RIGHT=False, FEATURES=False,
    HAS_BF16_CVT=False, SCORE_MOD=None, MASK_MOD=None, INT8_P=False, ROTATED_DIM=0,
    PIPELINED=False,
):  # fmt: skip
    """Make a Form, in a constexpr."""
    return Form(
        HEAD_DIM, HEAD_DIM_V, PADDED, BLOCK_M, BLOCK_N, BOUND_LEFT, BOUND_RIGHT, FEATURES, HAS_BF16_CVT, SCORE_MOD,
        MASK_MOD, INT8_P, ROTATED_DIM, PIPELINED,
    )  # fmt: skip
