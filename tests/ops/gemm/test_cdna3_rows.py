"""Products of few rows by the Gluon kernel for CDNA 3: edges, epilogues, parts of k, scales and codes of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_bundle.isa import load_bits
from aot_models.quantise import pack_int4
from aot_runtime import Bundle
from kernels.gemm.reference import SCALED
from tests.ops.gemm.checking import check, matrix, on_device
from tests.support.choices import configs, with_few_units
from tests.support.dtypes import BF16, FP16, FP32, INT8, eight_bits
from tests.support.kernel_compiling import check_resources, compile_variant, loads_of, loops, variants

pytestmark = pytest.mark.sampled(2)

ROWS = {"one": (3, 56, 1112), "two": (16, 120, 2200), "four": (7, 200, 1096), "many": (50, 200, 1112)}
"""Config, and a shape that it serves on a device with four compute units. Wavefronts have runs that end within k."""
EIGHT_BITS = {"one": (3, 48, 2064), "two": (16, 112, 1040), "four": (7, 208, 2064), "many": (50, 96, 1040)}
"""The same for operands of 8 bits."""
FLOAT8 = {"one": ["one"], "two": ["two"], "four": ["four"], "many": ["many"], "parts": ["many", "base"]}
FLOAT8_SHAPES = EIGHT_BITS | {"many": (50, 208, 1040), "parts": (33, 48, 2320)}
"""The same for weights of float8, with what is launched."""


@pytest.fixture
def four_units(gemm: Bundle, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """The bundle on a device with four compute units."""
    if gemm.index.target.arch != "gfx942":
        pytest.skip("the kernel is for gfx942")
    with_few_units(gemm, monkeypatch, 4)
    return gemm


def check_twice(gemm: Bundle, op: str, dtype: np.dtype[Any], expected: list[str], **given: Any) -> None:
    """Check a call that launches the expected configs and whose results repeat."""
    one, other = (check(gemm, op, dtype, **given) for _ in range(2))
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))
    placed = {name: on_device(gemm, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    m, n = one.shape
    assert configs(gemm, op, **placed, e=gemm.device.empty((m, n), dtype)) == expected


@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
@pytest.mark.parametrize("config", ROWS)
def test_16_bits(four_units: Bundle, config: str, dtype: np.dtype[Any]):
    """Rows, columns and k are cut short by edges with poison behind them."""
    (m, n, k), rng = ROWS[config], np.random.default_rng(7)
    given = {"a": matrix(rng, (m, k), dtype), "b": matrix(rng, (k, n), dtype, True), "bias": matrix(rng, (n,), dtype),
             "d": matrix(rng, (m, n), dtype), "beta": -2.0, "activation": "silu"}  # fmt: skip
    check_twice(four_units, "matmul", dtype, [config], **given)


@pytest.mark.parametrize("k", (2056, 4000))
def test_parts_of_16_bits(four_units: Bundle, k: int):
    rng = np.random.default_rng(k)
    a, b = matrix(rng, (33, k), BF16), matrix(rng, (k, 56), BF16, True)
    check_twice(four_units, "matmul", BF16, ["many", "base"], a=a, b=b, bias=matrix(rng, (56,), BF16), alpha=0.5)


@pytest.mark.parametrize("kind", ("int8", "e4m3"))
@pytest.mark.parametrize("config", EIGHT_BITS)
def test_8_bits(four_units: Bundle, config: str, kind: str):
    (m, n, k), rng, dtype = EIGHT_BITS[config], np.random.default_rng(8), eight_bits(four_units, kind)
    given = {"a": matrix(rng, (m, k), dtype), "b": matrix(rng, (k, n), dtype, True), "bias": matrix(rng, (n,), BF16),
             "scale_a": rng.uniform(1e-3, 1e-2, m).astype(FP32),
             "scale_b": rng.uniform(0.5, 2, n).astype(FP32)}  # fmt: skip
    check_twice(four_units, "scaled_matmul", BF16, [config], **given)


@pytest.mark.parametrize("scales", ("rows", "blocks", "all"))
@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
@pytest.mark.parametrize("config", FLOAT8)
def test_weights_of_float8(four_units: Bundle, config: str, dtype: np.dtype[Any], scales: str):
    (m, n, k), rng = FLOAT8_SHAPES[config], np.random.default_rng(9)
    rows, block = {"rows": (1, k), "blocks": (SCALED, SCALED), "all": (n, k)}[scales]
    given = {"x": matrix(rng, (m, k), dtype), "w": matrix(rng, (n, k), eight_bits(four_units, "e4m3")),
             "scales": rng.uniform(0.5, 2, (-(-n // rows), -(-k // block))).astype(FP32), "rows_per_scale": rows,
             "block": block, "bias": matrix(rng, (n,), dtype)}  # fmt: skip
    check_twice(four_units, "linear_fp8", dtype, FLOAT8[config], **given)


@pytest.mark.parametrize("given_zeros", (False, True))
@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
@pytest.mark.parametrize(
    "bits, config, shape, size",
    (*((bits, *case) for bits in (8, 4) for case in (("one", (3, 48, 1152), 128), ("two", (16, 72, 2560), 256),
                                                     ("two", (5, 112, 2080), 2080))),
     (8, "many", (50, 136, 1152), 128)), ids=str,
)  # fmt: skip
def test_codes(
    four_units: Bundle, bits: int, config: str, shape: tuple[int, int, int], size: int, dtype: np.dtype[Any],
    given_zeros: bool,
):  # fmt: skip
    """Codes have groups of a run of k or more, or one for all of k; zeros are any codes."""
    (m, n, k), rng = shape, np.random.default_rng(10)
    given: dict[str, Any] = {"x": matrix(rng, (m, k), dtype), "group_size": size}
    given |= {"scales": rng.uniform(0.5, 1, (k // size, n)).astype(dtype), "bias": matrix(rng, (n,), dtype)}
    if bits == 4:
        given["w"] = pack_int4(rng.integers(0, 16, (n, k)).astype(np.uint8))
        zeros = rng.integers(0, 17, (k // size, n)).astype(np.uint8)
    else:
        given["w"], zeros = matrix(rng, (n, k), INT8), matrix(rng, (k // size, n), INT8)
    check_twice(four_units, f"linear_int{bits}", dtype, [config], **given | ({"zeros": zeros} if given_zeros else {}))


@pytest.mark.on("emulator")
@pytest.mark.parametrize("op, config", (*(("matmul", config) for config in ROWS), ("linear_fp8", "many"),
                                        ("linear_int8", "many"), ("linear_int4", "one")))  # fmt: skip
def test_code(op: str, config: str):
    """Nothing is spilled; operands are loaded 16 bytes a lane, into registers of which LDS knows nothing."""
    found = variants("gfx942", "gemm", op, kernel="matmul_rows_cdna3", config=config, T="bfloat16")
    assert found
    for variant in found:
        compiled = compile_variant(variant)
        check_resources(compiled, scalar=False)
        body = max(loops(compiled, "v_mfma"), key=len)
        assert not [name for name in body if name.startswith(("ds_", "s_barrier"))]
        settings: dict[str, Any] = dict(variant.job.constants) | dict(variant.job.options)
        widths = [load_bits(name) for name in loads_of(body)]
        runs = 4 if op == "linear_int4" else 2 if op.startswith("linear") else 1
        blocks = settings["DEPTH"] * (settings["ROWS"] * runs + settings["COLUMNS"])
        assert widths.count(128) == blocks and all(width <= 32 for width in widths if width != 128)
