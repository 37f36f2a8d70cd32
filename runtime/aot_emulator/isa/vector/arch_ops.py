"""VALU instructions of specific architectures, by mnemonic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot_emulator.isa.floats import arithmetic, conversions, formats, functions, minmax
from aot_emulator.state.arrays import Array

from .conversion_ops import half_bits, stochastically
from .float_ops import by_kind, flushing_mad, fused, fused_last
from .integer_ops import next_random, shift_to_bytes
from .vector_op import VectorOp, dot_of, vector_op


def _chained(first: Callable[..., Array], second: Callable[..., Array]) -> Callable[..., Array]:
    def chained(a: Array, b: Array, c: Array, **ieee: bool) -> Array:
        return second(first(a, b, **ieee), c, **ieee)

    return chained


@by_kind(16, 32)
def _RDNA_FLOATS(f: str, width: int) -> dict[str, VectorOp]:
    """Minimum and maximum of three operands, and their combinations. RDNA4's v_minimum*, v_maximum* propagate NaN."""
    three = f"{f} {f} {f} {f}"
    return {
        f"v_minmax_{f}": vector_op(three, _chained(minmax.min_num, minmax.max_num), ieee=True),
        f"v_maxmin_{f}": vector_op(three, _chained(minmax.max_num, minmax.min_num), ieee=True),
        f"v_minimum3_{f}": vector_op(three, _chained(minmax.minimum, minmax.minimum)),
        f"v_maximum3_{f}": vector_op(three, _chained(minmax.maximum, minmax.maximum)),
        f"v_minimummaximum_{f}": vector_op(three, _chained(minmax.minimum, minmax.maximum)),
        f"v_maximumminimum_{f}": vector_op(three, _chained(minmax.maximum, minmax.minimum)),
    }


RDNA_OPS = {
    **_RDNA_FLOATS,
    **{
        f"v_{name}_f{width}": vector_op(" ".join([f"f{width}"] * 3), function)
        for width in (16, 32, 64)
        for name, function in (("minimum", minmax.minimum), ("maximum", minmax.maximum))
    },
    **{
        f"v_minmax_{kind}": vector_op(" ".join([kind] * 4), _chained(np.minimum, np.maximum)) for kind in ("i32", "u32")
    },
    **{
        f"v_maxmin_{kind}": vector_op(" ".join([kind] * 4), _chained(np.maximum, np.minimum)) for kind in ("i32", "u32")
    },
    "v_and_b16": vector_op("u16 u16 u16", np.bitwise_and),
    "v_or_b16": vector_op("u16 u16 u16", np.bitwise_or),
    "v_xor_b16": vector_op("u16 u16 u16", np.bitwise_xor),
    "v_not_b16": vector_op("u16 u16", np.invert),
    "v_mov_b16": vector_op("u16 u16", lambda a: a),
    "v_xor3_b32": vector_op("u32 u32 u32 u32", lambda a, b, c: a ^ b ^ c),
    "v_cvt_u32_u16": vector_op("u32 u16", lambda a: a.astype(np.uint32)),
    "v_cvt_i32_i16": vector_op("i32 i16", lambda a: a.astype(np.int32)),
    "v_cvt_pk_i16_f32": vector_op(
        "u32 f32 f32",
        lambda a, b: conversions.pack16(
            *(conversions.to_integer(np.trunc(value), 16, True).astype(np.uint16) for value in (a, b))
        ),
    ),
    "v_cvt_pk_u16_f32": vector_op(
        "u32 f32 f32",
        lambda a, b: conversions.pack16(
            *(conversions.to_integer(np.trunc(value), 16, False).astype(np.uint16) for value in (a, b))
        ),
    ),
    "v_fmamk_f16": vector_op("f16 f16 f16 f16", fused_last, rounded=fused_last),
    "v_fmaak_f16": vector_op("f16 f16 f16 f16", fused, rounded=arithmetic.fma),
}
"""Instructions of RDNA that CDNA lacks, except that gfx950 has the minimum and maximum of three."""

CDNA_OPS = {
    "v_ashr_pk_i8_i32": vector_op("u16 i32 i32 u32", shift_to_bytes(-0x80, 0x7F), keeps_high=True),
    "v_ashr_pk_u8_i32": vector_op("u16 i32 i32 u32", shift_to_bytes(0, 0xFF), keeps_high=True),
    "v_prng_b32": vector_op("u32 u32", next_random),
    "v_cvt_pk_f16_f32": vector_op("u32 f32 f32", lambda a, b: conversions.pack16(half_bits(a), half_bits(b))),
    "v_cvt_pk_bf16_f32": vector_op("u32 f32 f32", conversions.cvt_pk_bf16_f32),
    "v_cvt_sr_f16_f32": vector_op(
        "u16 f32 u32", lambda a, bits: stochastically(a, bits, formats.FP16), keeps_high=True
    ),
    "v_cvt_sr_bf16_f32": vector_op(
        "u16 f32 u32", lambda a, bits: stochastically(a, bits, formats.BF16), keeps_high=True
    ),
    "v_mad_f32": vector_op("f32 f32 f32 f32", flushing_mad),
    "v_mac_f32": vector_op("f32 f32 f32 =f32", flushing_mad),
    "v_madmk_f32": vector_op("f32 f32 f32 f32", lambda a, b, c: flushing_mad(a, c, b)),
    "v_madak_f32": vector_op("f32 f32 f32 f32", flushing_mad),
    "v_dot2c_f32_bf16": vector_op("f32 u32 u32 =f32", dot_of(formats.BF16), numerics=True),
    "v_trig_preop_f64": vector_op("f64 f64 u32", functions.trig_preop),
}
"""Instructions of gfx950, gfx90a or RDNA that gfx942 lacks, and v_trig_preop_f64 for large angles."""
