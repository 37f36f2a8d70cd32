"""Products that begin before earlier launches have ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from aot_models.quantise import Packed, prepack, to_int4, to_int8
from aot_runtime import Bundle, DeviceArray
from tests.ops.gemm.checking import matrix, on_device
from tests.ops.gemm.test_prepacked import op_of
from tests.support.chains import Layer, assert_links_wait
from tests.support.dtypes import BF16, FP16, FP32, eight_bits

pytestmark = pytest.mark.on("gpu")
N = 1024
SCALED = 128
"""Extent of a block that has a scale."""


def compare(gemm: Bundle, m: int, dtype: np.dtype, layers: list[Layer], stream: Any) -> None:
    """Compare rows of x [m, N]."""
    assert_links_wait(on_device(gemm, matrix(np.random.default_rng(m), (m, N), dtype)), layers, stream)


def weights(seed: int) -> np.ndarray:
    """Draw weights [N, N] whose products are about as large as their inputs."""
    return np.random.default_rng(seed).standard_normal((N, N)) / N**0.5


@pytest.mark.parametrize("m", (4, 40))
@pytest.mark.parametrize("pack", (to_int4, to_int8))
def test_prepacked(gemm: Bundle, m: int, pack: Callable[..., Packed]):
    stream = gemm.device.stream()
    packed = [pack(weights(seed), 64, FP16) for seed in range(4)]
    call = partial(getattr(gemm, f"{op_of(packed[0])}_prepacked"), stream=stream)
    placed = [
        {name: gemm.device.array(value) if isinstance(value, np.ndarray) else value for name, value in given.items()}
        for given in (prepack(layer).arguments() for layer in packed)
    ]
    compare(gemm, m, FP16, [partial(call, **given) for given in placed], stream)


@pytest.mark.parametrize("b_is_ready", (False, True))
@pytest.mark.parametrize("m", (1, 16, 40, 128, 200, 700, 3000))
def test_sixteen_bits(gemm: Bundle, m: int, b_is_ready: bool):
    stream = gemm.device.stream()
    call = partial(gemm.matmul, schedule="warp_specialised", b_is_ready=b_is_ready, stream=stream)
    placed = [on_device(gemm, weights(seed).astype(BF16)).T for seed in range(4)]
    compare(gemm, m, BF16, [partial(call, b=b) for b in placed], stream)


@pytest.mark.parametrize("m", (40, 700))
def test_adapters(gemm: Bundle, m: int):
    """The second launch makes a map of what the first one writes, in memory that all such launches use."""
    stream = gemm.device.stream()
    down, up = (on_device(gemm, x[None].astype(BF16)) for x in (weights(9)[:16], weights(10)[:, :16]))
    call = partial(gemm.lora_linear, down=down, up=up, scale=0.5, stream=stream)
    placed = [on_device(gemm, weights(seed).astype(BF16)) for seed in range(4)]
    compare(gemm, m, BF16, [partial(call, w=w) for w in placed], stream)


@pytest.mark.parametrize("how", ("fast", "promoted", "blocks"))
@pytest.mark.parametrize("m", (16, 128, 700, 3000))
def test_eight_bits(gemm: Bundle, m: int, how: str):
    """An earlier launch quantises the operands."""
    stream, dtype = gemm.device.stream(), eight_bits(gemm, "e4m3")
    scale_b = on_device(gemm, np.full((N // SCALED,) * 2 if how == "blocks" else N, 0.25, FP32))
    op, more = ("block_scaled_matmul", {}) if how == "blocks" else ("scaled_matmul", {"use_fast_accum": how == "fast"})

    def layer(x: DeviceArray, b: DeviceArray) -> DeviceArray:
        a = gemm.device.empty((m, N), dtype, stream=stream)
        scale_a = gemm.quantise(x, a, block=SCALED if how == "blocks" else N, stream=stream)
        e = gemm.device.empty((m, N), BF16, stream=stream)
        getattr(gemm, op)(a, b, scale_a if how == "blocks" else scale_a[:, 0], scale_b, e=e, **more, stream=stream)
        return e

    placed = [on_device(gemm, (weights(seed) * 4).astype(dtype)).T for seed in range(4)]
    compare(gemm, m, BF16, [partial(layer, b=b) for b in placed], stream)
