"""Attention of int8 and float8 tensors on a real GPU."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle
from tests.ops.attention.quantised import CASES, Quantised, check, make_call

pytestmark = pytest.mark.gpu

WIDTHS = ((64, "float16"), (128, "bfloat16"), (80, "float16"), (256, "float16"))
LONG = [
    Quantised(op, mask, head_dim, (700, 1000), (4, 2), dtype, v_rows=v_rows, int8_p=int8_p)
    for op, v_rows, int8_p in (
        ("int8", True, False), ("int8", True, True), ("int8", False, True), ("int8_kv", True, False),
        ("fp8", True, False), ("fp8", False, False),
    )
    for mask in ("0", "b", "b:200,20") for head_dim, dtype in WIDTHS
]  # fmt: skip


@pytest.mark.parametrize("case", [*CASES, *LONG], ids=str)
def test_matches_the_reference(attention_quantised: Bundle, case: Quantised):
    check(attention_quantised, make_call(case, attention_quantised.device.arch))
