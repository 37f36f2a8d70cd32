"""Shipped kernels on the other emulated architectures: some calls of each family, in one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")
pytest.importorskip("triton", reason="building bundles needs the extra `build`")

from aot_models.quantise import to_int4
from aot_runtime import Bundle, NoVariantError
from tests.ops.attention import calls
from tests.ops.attention.cases import Case, make_call
from tests.ops.gemm import checking as gemm
from tests.ops.gemm import test_lora
from tests.ops.gemm.test_packed_eight_bits import arguments
from tests.ops.moe.checking import check_moe, made, made_codes, made_scaled
from tests.ops.moe.test_permute import check_align
from tests.ops.rows import checking as rows
from tests.ops.rows import test_limits, test_merge, test_processing, test_qk_norm, test_verify
from tests.support.choices import configs, with_few_units
from tests.support.dtypes import BF16, FP16, FP32, INT8, INT32, UINT8, eight_bits
from tests.support.emulation.bundling import on_demand

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(12)]

ARCHS = ("gfx90a", "gfx950", "gfx1100", "gfx1201")
FLOAT8 = ("gfx950", "gfx1201")
"""Architectures with matrix units for float8."""


@dataclass(frozen=True)
class Row:
    """A call that is checked. filters: the variants that it and others need; matrix: whether it runs on matrix
    units."""

    manifest: str
    filters: str
    check: Callable[[Bundle], object]
    name: str
    matrix: bool = False

    def __str__(self) -> str:
        return self.name


def attention(case: Case) -> Row:
    return Row("attention", "op=flash_attention", lambda bundle: calls.check(bundle, make_call(case)), str(case), True)


def product(kind: str, shape: tuple[int, int, int]) -> Row:
    """Make a matrix product: by tiles, by parts of k, by stream-K, or of operands of 8 or 4 bits."""

    def check(bundle: Bundle) -> None:
        (m, n, k), rng = shape, np.random.default_rng(0)
        how = {"tiles": {"splits": 1}, "splits": {"splits": 2}, "stream_k": {"schedule": "stream_k"}}
        dtype = FP16 if kind in (*how, "int4") else eight_bits(bundle, kind)
        a, b = gemm.matrix(rng, (m, k), dtype), gemm.matrix(rng, (k, n), dtype, True)
        if kind in how:
            activation = "gelu" if kind == "splits" else "none"
            gemm.check(bundle, "matmul", FP16, how[kind], a=a, b=b, activation=activation)
        elif kind == "int4":
            weights = to_int4(rng.standard_normal((n, k)), k).arguments()
            gemm.check(bundle, "linear_int4", FP16, x=a, **weights)
        elif kind == "int8":
            gemm.check(bundle, "integer_matmul", INT32, a=a, b=b)
        else:
            scales = {f"scale_{x}": rng.uniform(0.5, 2, size).astype(FP32) for x, size in (("a", m), ("b", n))}
            gemm.check(bundle, "scaled_matmul", FP16, a=a, b=b, **scales)

    filters = "op=matmul|integer_matmul|scaled_matmul|linear_int4,T=float16|int8|float8_e4m3fn,E=float16"
    return Row("gemm", filters, check, f"{kind} {shape}")


def activations_of_8_bits(kind: str, m: int, size: int, splits: int) -> Row:
    def check(bundle: Bundle) -> None:
        has_float8 = bundle.device.arch in FLOAT8
        given = arguments(bundle, m, 48, 384, size, kind if has_float8 else "int8", BF16, True)
        if kind == "e4m3" and not has_float8:
            x = given["x"].astype(ml_dtypes.float8_e4m3fn)
            with pytest.raises(NoVariantError, match="it is built for the same call with x of int8"):
                bundle.linear_int4_a8(**given | {"x": x, "e": np.zeros((m, 48), BF16)})
        else:
            gemm.check(bundle, "linear_int4_a8", BF16, {"splits": splits}, **given)

    return Row("gemm", "op=linear_int4_a8", check, f"linear_int4_a8 {kind} {m} {size} {splits}")


def adapters(shape: tuple[int, int, int, int], dtype: np.dtype[Any]) -> Row:
    call = test_lora.given(*shape, dtype=dtype)
    return Row("gemm", "op=lora_add", lambda bundle: test_lora.check_added(bundle, call), f"lora_add {shape} {dtype}")


def experts(op: str) -> Row:
    def check(bundle: Bundle) -> None:
        rng, float8 = np.random.default_rng(0), bundle.device.arch in FLOAT8
        dims = 5, 4, 2, 64, 48  # tokens, experts, topk, hidden, intermediate
        if op == "moe":
            given = made(rng, *dims, FP16)
        elif op.endswith("scaled"):
            block = (128, 128) if "block" in op else None
            given = made_scaled(rng, eight_bits(bundle, "e4m3" if float8 else "int8"), dims, FP16, block)
        else:
            codes = UINT8 if op == "moe_int4" else INT8 if op == "moe_int8" else eight_bits(bundle, "e4m3")
            given = made_codes(rng, codes, dims, FP16, (2, 1), with_zeros=op == "moe_int4")
        check_moe(bundle, "silu", op, **given)
        check_align(bundle, (700, 3, 5), 16)

    return Row("moe", "op=moe|moe_scaled|moe_block_scaled|moe_int4|moe_int8|moe_fp8|moe_align", check, op)


def norms(op: str, vectors: str, cols: int, dtype: np.dtype[Any]) -> Row:
    def check(bundle: Bundle) -> None:
        rows.check(bundle, op, **rows.given(np.random.default_rng(cols), op, vectors, (3, cols), dtype))

    return Row("rows", "op=softmax|rms_norm|layer_norm", check, f"{op} {vectors} {cols} {dtype}")


def heads(head_dim: int, pairs: int, dtype: np.dtype[Any], interleaved: bool) -> Row:
    def check(bundle: Bundle) -> None:
        test_qk_norm.check(bundle, test_qk_norm.given(head_dim, pairs, dtype) | {"interleaved": interleaved})

    return Row("rows", "op=qk_norm_rotary", check, f"qk_norm_rotary {head_dim} {pairs} {dtype} {interleaved}")


def sampling(cols: int, dtype: np.dtype[Any]) -> Row:
    def check(bundle: Bundle) -> None:
        call = test_processing.given(cols, dtype, test_processing.ALL)
        rows.check(bundle, "process_logits", floor=2e-5, **call, softcap=30.0)
        test_processing.test_count_tokens(bundle, True, False, 1000, 5, cols)
        tokens = np.arange(6, dtype=INT32)
        logits = {"logits": call["logits"], "tokens": tokens}
        rows.check(bundle, "token_logprobs", floor=1e-5, shape=(6,), dtype=FP32, **logits)
        test_verify.check(bundle, test_verify.given(cols, dtype, "draft_probs", *test_verify.LIMITS))
        test_limits.check_renormalised(bundle, cols, dtype, ("top_k", "top_p", "min_p"))
        test_merge.check_merged(bundle, (3, 2, 5, cols), dtype)

    filters = "op=process_logits|count_tokens|token_logprobs|verify_drafts|merge_states|renorm_probs"
    return Row("rows", filters, check, f"sampling {cols} {dtype}")


FLOATS = (FP16, BF16, FP32)
TABLE = (
    *(attention(Case(mask, (dim, dim), lengths=lengths, dtype=dtype)) for dim in (64, 32, 128, 256, 31, 127, 255, 63)
      for mask, lengths in (("b", (130, 50)), ("0", (100, 130))) for dtype in ("float16", "bfloat16")),
    *(product(kind, shape) for kind in ("tiles", "splits", "stream_k", "int8", "e4m3", "int4")
      for shape in ((17, 33, 70), (1, 64, 80), (65, 144, 160))),
    *(activations_of_8_bits(kind, *rest) for kind in ("int8", "e4m3")
      for rest in ((17, 32, 1), (1, 128, 2), (40, 384, 0))),
    *(adapters(shape, dtype) for shape in ((37, 19, 33, 5), (70, 48, 1040, 16)) for dtype in (FP16, BF16)),
    *map(experts, ("moe", "moe_scaled", "moe_block_scaled", "moe_int4", "moe_int8", "moe_fp8")),
    *(norms(op, vectors, cols, dtype) for op, vectors in rows.CALLS for cols in (33, 256, 1000, 4096, 20000)
      for dtype in FLOATS),
    *(heads(*dims, dtype, interleaved) for dims in ((128, 64), (40, 12), (256, 32)) for dtype in FLOATS
      for interleaved in (False, True)),
    *(sampling(cols, dtype) for cols in (100, 1024) for dtype in FLOATS),
)  # fmt: skip
NO_INTEGERS = ("e4m3", "moe_fp8")
"""Rows whose names begin so need float8."""


@pytest.mark.parametrize("row", TABLE, ids=str)
@pytest.mark.parametrize("arch", ARCHS)
def test_matches_the_reference(arch: str, row: Row):
    if row.name.startswith(NO_INTEGERS) and arch not in FLOAT8:
        pytest.skip(f"{arch} has no float8")
    bundle = on_demand(row.manifest, row.filters, arch)
    row.check(bundle)
    if row.matrix:
        prefix = "v_mfma" if arch.startswith("gfx9") else "v_wmma"
        assert any(name.startswith(prefix) for name in bundle.device.driver.last.summary.mnemonics)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cus, k, config", ((2, 176, "huge"), (5, 208, "wide"), (256, 240, "middle")))
@pytest.mark.parametrize("biased, columns", ((True, True), (False, False)))
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_tuned_tiles_of_gfx950(
    dtype: np.dtype[Any], biased: bool, columns: bool, cus: int, k: int, config: str, monkeypatch: pytest.MonkeyPatch
):
    """Tiles have many rows and columns, on a device with few compute units; each k is new, since plans are cached."""
    bundle = on_demand("gemm", "op=matmul,T=float16|bfloat16", "gfx950")
    with_few_units(bundle, monkeypatch, cus)
    m, n, rng = 136, 272, np.random.default_rng(cus)
    a, b = gemm.matrix(rng, (m, k), dtype), gemm.matrix(rng, (k, n), dtype, columns)
    bias = gemm.matrix(rng, (n,), dtype) if biased else None
    gemm.check(bundle, "matmul", dtype, {"splits": 1}, a=a, b=b, bias=bias)
    given = {} if bias is None else {"bias": bias}
    placed = gemm.on_device(bundle, a), gemm.on_device(bundle, b)
    assert configs(bundle, "matmul", *placed, **given, splits=1) == [config]
