"""Linear layers with weights of 4 and 8 bits: tests for any device; fixture `packed`."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from aot_runtime.errors import AotError
from aot_runtime.weights import AWQ_ORDER, Packed, from_awq, from_gptq, pack_int4, to_int4, to_int8, to_nf4, unpack_int4
from kernels.gemm import reference
from kernels.tolerance import assert_close
from tests.ops.gemm.gemm_suite import FLOOR, FP16, into_poison, matrix, on_device


def run_linear(
    packed: Bundle, op: str, x: np.ndarray, weights: Packed, bias: np.ndarray | None = None, splits: int = 0,
    floor: float = FLOOR,
) -> np.ndarray:  # fmt: skip
    arguments = weights.arguments()
    if op == "linear_int8":
        del arguments["order"]
    if bias is not None:
        arguments["bias"] = bias
    device = packed.device
    given = {name: device.array(value) if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    given["w"], left = on_device(packed, weights.w), on_device(packed, x)

    def call(e: DeviceArray) -> None:
        getattr(packed, op)(left, **given, e=e, splits=splits)

    result = into_poison(packed, (len(x), len(weights.w)), x.dtype, call)
    exact = getattr(reference, op)(x, **arguments)
    assert_close(result, exact, getattr(reference, f"{op}_same_dtype")(x, **arguments), floor)
    return result


@pytest.mark.parametrize("m", (1, 2, 4, 5, 16, 17, 130))
@pytest.mark.parametrize("n, k, size", ((64, 256, 128), (17, 96, 32), (33, 128, 64), (128, 384, 384), (5, 129, 129),
                                        (16, 37, 37)), ids=str)  # fmt: skip
def test_int4(packed: Bundle, n: int, k: int, size: int, m: int):
    rng = np.random.default_rng(m)
    weights = to_int4(rng.standard_normal((n, k)), size)
    run_linear(packed, "linear_int4", matrix(rng, (m, k), FP16), weights, matrix(rng, (n,), FP16))


@pytest.mark.parametrize("splits", (2, 5))
@pytest.mark.parametrize("m", (5, 33))
def test_int4_in_parts(packed: Bundle, m: int, splits: int):
    rng = np.random.default_rng(splits)
    for n, k, size in ((64, 512, 128), (17, 4128, 32)):
        weights = to_int4(rng.standard_normal((n, k)), size)
        run_linear(packed, "linear_int4", matrix(rng, (m, k), FP16), weights, matrix(rng, (n,), FP16), splits)


@pytest.mark.parametrize("m", (1, 3, 20))
@pytest.mark.parametrize("shape", ((48, 256), (19, 64)), ids=str)
def test_nf4(packed: Bundle, shape: tuple[int, int], m: int):
    rng = np.random.default_rng(m)
    bias = matrix(rng, shape[:1], FP16)
    run_linear(packed, "linear_int4", matrix(rng, (m, shape[1]), FP16), to_nf4(rng.standard_normal(shape), 64), bias)


@pytest.mark.parametrize("m", (1, 20))
@pytest.mark.parametrize("codebook", (False, True))
def test_act_order_with_a_codebook_or_with_neither(packed: Bundle, codebook: bool, m: int):
    """What few calls ask for, with a bias and without."""
    rng = np.random.default_rng(m)
    w = pack_int4(rng.integers(0, 16, (48, 128)).astype(np.uint8))
    weights = Packed(w, rng.uniform(0.5, 1, (4, 48)).astype(FP16), None, 32, rng.permutation(128).astype(np.int32),
                     rng.standard_normal(16).astype(np.float32) if codebook else None)  # fmt: skip
    x = matrix(rng, (m, 128), FP16)
    for bias in (None, matrix(rng, (48,), FP16)):
        run_linear(packed, "linear_int4", x, weights, bias, floor=1e-5)


@pytest.mark.parametrize("m", (1, 3, 20, 129))
@pytest.mark.parametrize("n, k, size", ((64, 256, None), (17, 96, 32), (33, 129, None), (128, 384, 128)), ids=str)
def test_int8(packed: Bundle, n: int, k: int, size: int | None, m: int):
    rng = np.random.default_rng(m)
    x, weights = matrix(rng, (m, k), FP16), to_int8(rng.standard_normal((n, k)), size)
    run_linear(packed, "linear_int8", x, weights)
    zeros = rng.integers(-100, 100, weights.scales.shape).astype(np.int8)
    run_linear(packed, "linear_int8", x, Packed(weights.w, weights.scales, zeros, weights.group_size), splits=3)


@pytest.mark.parametrize("m", (1, 40))
def test_every_code_and_zero(packed: Bundle, m: int):
    """Integers, exactly: all codes less all zeros."""
    codes = np.tile(np.arange(16, dtype=np.uint8), (17, 2))
    zeros = np.arange(17, dtype=np.uint8)[None]
    x = np.eye(m, 32, dtype=np.float16)
    result = run_linear(packed, "linear_int4", x, Packed(pack_int4(codes), np.ones((1, 17), FP16), zeros, 32))
    assert np.array_equal(result, (x @ (codes.astype(np.float64) - zeros.T).T))


# Checkpoints


def gptq(rng: np.random.Generator, n: int, k: int, size: int, act_order: bool) -> tuple[np.ndarray, ...]:
    """(qweight, qzeros, scales, g_idx, the weights that they stand for [k, n]), written word by word."""
    codes, zeros = rng.integers(0, 16, (k, n)), rng.integers(1, 17, (k // size, n))
    scales = rng.uniform(0.01, 0.02, (k // size, n)).astype(np.float16)
    g_idx = np.arange(k) // size
    if act_order:
        g_idx = rng.permutation(g_idx)
    qweight, qzeros = np.zeros((k // 8, n), np.uint32), np.zeros((k // size, n // 8), np.uint32)
    for i in range(8):
        qweight |= codes[i::8].astype(np.uint32) << np.uint32(4 * i)
        qzeros |= (zeros[:, i::8] - 1).astype(np.uint32) << np.uint32(4 * i)
    weight = (codes - zeros[g_idx]) * scales[g_idx].astype(np.float64)
    return qweight.view(np.int32), qzeros.view(np.int32), scales, g_idx.astype(np.int32), weight


@pytest.mark.parametrize("act_order", (False, True))
@pytest.mark.parametrize("m", (1, 7, 70))
@pytest.mark.parametrize("n, k, size", ((40, 128, 32), (64, 256, 128), (24, 96, 96)), ids=str)
def test_gptq(packed: Bundle, n: int, k: int, size: int, m: int, act_order: bool):
    rng = np.random.default_rng(k)
    *stored, weight = gptq(rng, n, k, size, act_order)
    weights, x = from_gptq(*stored), matrix(rng, (m, k), FP16)
    assert (weights.order is not None) == (act_order and size < k)
    result = run_linear(packed, "linear_int4", x, weights)
    assert_close(result, x.astype(np.float64) @ weight, (x.astype(np.float32) @ weight.astype(np.float32)).astype(FP16),
                 1e-3 * k**0.5 * 0.3)  # fmt: skip


def test_zeros_of_the_other_version_are_noticed():
    """Of symmetric checkpoints; the words are those that each version writes for a zero of 8."""
    rng = np.random.default_rng(0)
    qweight, qzeros, scales, _, _ = gptq(rng, 16, 64, 32, False)
    for stored, less_one in ((0x77777777, True), (0x88888888, False)):
        zeros = np.full(qzeros.shape, stored, np.uint32).view(np.int32)
        packed = from_gptq(qweight, zeros, scales, None, less_one, symmetric=True)
        assert packed.zeros is not None and (packed.zeros == 8).all()
        with pytest.raises(ValueError, match=r"zeros_are_less_one=.*other version"):
            from_gptq(qweight, zeros, scales, None, not less_one, symmetric=True)


@pytest.mark.parametrize("m", (1, 70))
@pytest.mark.parametrize("n, k, size", ((40, 128, 32), (64, 256, 128)), ids=str)
def test_awq(packed: Bundle, n: int, k: int, size: int, m: int):
    rng = np.random.default_rng(k)
    codes, zeros = rng.integers(0, 16, (k, n)), rng.integers(0, 16, (k // size, n))
    scales = rng.uniform(0.01, 0.02, (k // size, n)).astype(np.float16)
    words = []
    for array in (codes, zeros):
        word = np.zeros((len(array), n // 8), np.uint32)
        for place, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):  # the columns, from the lowest nibble up
            word |= array[:, column::8].astype(np.uint32) << np.uint32(4 * place)
        words.append(word.view(np.int32))
    weights, x = from_awq(*words, scales), matrix(rng, (m, k), FP16)
    assert np.array_equal(unpack_int4(weights.w, k), codes.T) and np.array_equal(weights.zeros, zeros)
    run_linear(packed, "linear_int4", x, weights)


def test_the_order_of_awq_undoes_itself():
    assert [(0, 2, 4, 6, 1, 3, 5, 7)[i] for i in AWQ_ORDER] == list(range(8))


@pytest.mark.parametrize(
    "change, message",
    (
        ({"scales": np.ones((3, 8), FP16)}, r"groups \* group_size == k"),
        ({"group_size": 96, "scales": np.ones((1, 8), FP16)}, r"groups \* group_size == k"),
        ({"zeros": np.zeros((2, 1), np.int32)}, "zeros"),
        ({"zeros": np.zeros((2, 8), np.int8)}, "zeros"),
        ({"scales": np.ones((2, 7), FP16)}, "scales"),
        ({"scales": np.ones((2, 8), np.float32)}, "scales"),
        ({"w": np.zeros((8, 31), np.uint8)}, "w"),
        ({"w": np.zeros((8, 32), np.int8)}, "w"),
        ({"zeros": np.zeros((1, 8), np.uint8)}, "zeros"),
        ({"group_size": 48}, "group_size"),
        ({"group_size": 16, "scales": np.ones((4, 8), FP16)}, "group_size % 32"),
        ({"zeros": np.zeros((2, 8), np.uint8), "codebook": np.zeros(16, np.float32)}, "codebook"),
    ),
)
def test_what_does_not_fit_is_refused(packed: Bundle, change: dict, message: str):
    given = {"w": np.zeros((8, 32), np.uint8), "scales": np.ones((2, 8), FP16), "group_size": 32, **change}
    with pytest.raises(AotError, match=message):
        packed.linear_int4(np.zeros((1, 64), FP16), **given)


def test_checkpoints_that_do_not_fit_are_refused():
    rng = np.random.default_rng(0)
    qweight, qzeros, scales, _, _ = gptq(rng, 16, 64, 32, False)
    with pytest.raises(ValueError, match="qzeros"):
        from_gptq(qweight, qzeros[:1], scales)
    with pytest.raises(ValueError, match="scales"):
        from_gptq(qweight, qzeros, scales[:, :8])
    with pytest.raises(ValueError, match="do not divide"):
        from_gptq(qweight, np.zeros((3, 2), np.int32), np.ones((3, 16), FP16))
    with pytest.raises(ValueError, match="g_idx"):
        from_gptq(qweight, qzeros, scales, np.zeros(64, np.int32))
    with pytest.raises(ValueError, match="qweight is int64"):
        from_gptq(qweight.astype(np.int64), qzeros, scales)
    with pytest.raises(ValueError, match="multiple of 8"):
        from_gptq(qweight[:, :12], qzeros, scales[:, :12])
    with pytest.raises(ValueError, match="do not divide"):
        to_int4(np.zeros((4, 100)), 32)


# Adapters


@pytest.mark.parametrize("adapters", (None, 1, 5))
@pytest.mark.parametrize(
    "m, n, k, rank", ((1, 64, 64, 8), (16, 48, 80, 16), (37, 19, 33, 5), (130, 144, 48, 40)), ids=str
)
def test_lora(packed: Bundle, m: int, n: int, k: int, rank: int, adapters: int | None):
    """One adapter for all rows, or some for each, or none."""
    rng = np.random.default_rng(m)
    x, w = matrix(rng, (m, k), FP16), matrix(rng, (n, k), FP16)
    down, up = matrix(rng, (adapters or 1, rank, k), FP16), matrix(rng, (adapters or 1, n, rank), FP16)
    index = rng.integers(-1, adapters + 1, m).astype(np.int32) if adapters else None
    given = [None if array is None else on_device(packed, array) for array in (x, w, down, up, index)]
    result = into_poison(packed, (m, n), FP16, lambda e: packed.lora_linear(*given, scale=0.25, e=e))
    arguments = (x, w, down, up, index, 0.25)
    assert_close(result, reference.lora_linear(*arguments), reference.lora_linear_same_dtype(*arguments), FLOOR)


def test_adapters_that_do_not_fit_are_refused(packed: Bundle):
    x, w = np.zeros((3, 32), FP16), np.zeros((8, 32), FP16)
    with pytest.raises(AotError, match="rank"):
        packed.lora_linear(x, w, np.zeros((1, 4, 32), FP16), np.zeros((1, 8, 5), FP16))
    with pytest.raises(AotError, match="adapter_of"):
        packed.lora_linear(x, w, np.zeros((1, 4, 32), FP16), np.zeros((1, 8, 4), FP16), np.zeros(4, np.int32))
