"""Attention of int8 and float8 tensors on a real GPU."""

from __future__ import annotations

import pytest
from attention.quantised import CASES, Quantised, check, make_call

from aot_runtime import Bundle

pytestmark = pytest.mark.gpu

LONG = (
    *(Quantised(op, mask, dim, (700, 1000), (4, 2), dtype, v_rows=v_rows) for op in ("int8_kv", "int8", "fp8")
      for mask in ("0", "b", "b:200,20") for dim, dtype in ((64, "float16"), (128, "bfloat16"), (80, "float16"), (256, "float16"))
      for v_rows in ((True, False) if op == "fp8" else (True,))),
    *(Quantised("int8", mask, dim, (700, 1000), (4, 2), dtype, int8_p=True, v_rows=v_rows) for mask in ("0", "b", "b:200,20")
      for dim, dtype in ((64, "float16"), (128, "bfloat16"), (80, "float16"), (256, "float16")) for v_rows in (True, False)),
)  # fmt: skip


@pytest.mark.parametrize("case", (*CASES, *LONG), ids=str)
def test_matches_the_reference(attention_quantised: Bundle, case: Quantised):
    check(attention_quantised, make_call(case, attention_quantised.device.arch))
