"""Mapping of RDNA mnemonics to CDNA's names, under which the semantics are registered."""

from __future__ import annotations

import re
from functools import cache

# (pattern of a whole name on RDNA, CDNA's name)
_RENAMED = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"s_(and|or)_not1_(\w+)", r"s_\1n2_\2"),
        (r"s_(and|or)_not0_(\w+)", r"s_\1n1_\2"),
        (r"s_ctz_i32_(b\d+)", r"s_ff1_i32_\1"),
        (r"s_clz_i32_u(\d+)", r"s_flbit_i32_b\1"),
        (r"s_cls_i32(\w*)", r"s_flbit_i32\1"),
        (r"s_add_co_ci_u32", "s_addc_u32"),
        (r"s_sub_co_ci_u32", "s_subb_u32"),
        (r"s_(add|addk|sub)_co_([iu]32)", r"s_\1_\2"),
        (r"v_ctz_i32_b32", "v_ffbl_b32"),
        (r"v_clz_i32_u32", "v_ffbh_u32"),
        (r"v_cls_i32", "v_ffbh_i32"),
        (r"v_add_co_ci_u32", "v_addc_co_u32"),
        (r"v_(sub|subrev)_co_ci_u32", lambda found: f"v_{found[1].replace('sub', 'subb')}_co_u32"),
        (r"v_(add|sub|subrev)_nc_(\w+)", r"v_\1_\2"),
        (r"v_mad_co_(u64_u32|i64_i32)", r"v_mad_\1"),
        (r"v_mul_dx9_zero_f32", "v_mul_legacy_f32"),
        (r"v_cvt_pk_(rtz|norm)_(\w+)", r"v_cvt_pk\1_\2"),
        (r"v_cvt_floor_i32_f32", "v_cvt_flr_i32_f32"),
        (r"v_cvt_nearest_i32_f32", "v_cvt_rpi_i32_f32"),
        (r"v_dot2acc_f32_(\w+)", r"v_dot2c_f32_\1"),
        (r"([sv]_\w+)_num_(f\d\d)", r"\1_\2"),
        (r"v_(cmpx?)_t_(f\d\d)", r"v_\1_tru_\2"),
    )
)


@cache
def cdna_name(mnemonic: str) -> str:
    """Return CDNA's name of an RDNA instruction, or the mnemonic itself if they are the same."""
    for pattern, name in _RENAMED:
        if pattern.fullmatch(mnemonic):
            return pattern.sub(name, mnemonic)
    return mnemonic
