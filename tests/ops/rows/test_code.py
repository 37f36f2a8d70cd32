"""The code of the row-wise kernels on gfx942: widths of loads and stores."""

from __future__ import annotations

import pytest

from tests.support.kernel_compiling import check_resources, compile_variant, instructions, variants

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(2)]


@pytest.mark.parametrize(("one_pass", "block"), ((True, 8192), (False, 32768)))
@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32"))
def test_softmax_moves_16_bytes_a_lane(dtype: str, one_pass: bool, block: int):
    point = {"T": dtype, "BLOCK": block, "ONE_PASS": one_pass, "HAS_OPTIONS": False, "aligned": True}
    variant = variants("gfx942", "rows", "softmax", **point)[-1]  # after the one of parts
    compiled = compile_variant(variant)
    check_resources(compiled)
    memory = {name for name in instructions(compiled) if name.startswith(("buffer_", "global_", "flat_"))}
    if not one_pass:
        memory -= {"global_load_dword"}  # the pairs of parts
    assert memory == {"buffer_load_dwordx4", "buffer_store_dwordx4"}
