"""AITER's hand-written attention for an MI300X, launched through HIP's module API."""

from __future__ import annotations

import pytest

from benchmarks.rocm.aiter import attention_code

from .packages import Unavailable
from .programs import PYTHON, ROOT, emulate
from .session import inside

pytestmark = pytest.mark.on("rocm")


def test_attention_is_right():
    try:
        code = attention_code()
    except Unavailable as error:
        pytest.skip(str(error))
    script = ROOT / "benchmarks/rocm/attention.py"
    done = emulate(inside().python(script, code, "1", "1", "256", "--check", executable=PYTHON), "--device", "mi300x")
    assert done.status == 0, done.errors
    assert float(done.output.removeprefix("relative error ")) < 3e-3
