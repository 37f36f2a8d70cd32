"""numpy → hip-python → kernarg bytes → code object → numbers, with no GPU.

hip-python talks to the double of libamdhip64, whose launches the emulator carries out, in strict mode.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import DriverCallError
from kernels.attention.reference import attention, attention_same_dtype
from kernels.rows.reference import softmax, softmax_same_dtype
from kernels.tolerance import assert_close
from tests.support.emulated_launches import open_emulated
from tests.support.reference_launches import with_bundles


def normal(seed: int, *shape: int, dtype=np.float16) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def check_softmax(found: np.ndarray, x: np.ndarray) -> None:
    assert_close(found, softmax(x), softmax_same_dtype(x), 1e-7)


@with_bundles()
def test_softmax(folder: str):
    bundle, launches = open_emulated(folder, "rows")
    for dtype in (np.float16, np.float32, ml_dtypes.bfloat16):
        for cols in (1, 33, 256, 1000, 20000):
            x = normal(cols, 3, cols, dtype=dtype)
            check_softmax(bundle.softmax(x), x)
            check_softmax(bundle.softmax(bundle.device.array(x)).numpy(), x)
    assert len(launches.done) == launches.double.calls("hipModuleLaunchKernel") == 30


@with_bundles()
def test_attention(folder: str):
    bundle, launches = open_emulated(folder, "attention")
    for seqlen_q, seqlen_k, head_dim, causal in ((70, 90, 64, True), (33, 130, 48, False), (1, 77, 33, True)):
        q = normal(1, 2, 4, seqlen_q, head_dim)
        k, v = (normal(seed, 2, 2, seqlen_k, head_dim)[::-1] for seed in (2, 3))
        found = bundle.flash_attention(*map(bundle.device.array, (q, k, v)), causal=causal, return_lse=True)
        arguments = {"scale": head_dim**-0.5, "causal": causal, "return_lse": True}
        exact, same = attention(q, k, v, **arguments), attention_same_dtype(q, k, v, **arguments)
        assert_close(found.out.numpy(), exact[0], same[0], 1e-6)
        assert_close(found.lse.numpy(), exact[1], same[1], 1e-5)
        launch, statistics = launches.done[-1]
        assert launch.grid[1:] == (4, 2) and statistics.instructions > 1000


@with_bundles()
def test_a_captured_graph_replays_with_new_data(folder: str):
    bundle, launches = open_emulated(folder, "rows")
    device = bundle.device
    stream = device.stream()
    x, out = device.array(normal(0, 5, 300)), device.empty((5, 300), np.float16)
    bundle.softmax(x, out=out)  # code objects load before a capture
    with device.capture(stream) as graph:
        bundle.softmax(x, out=out, stream=stream)
    before = len(launches.done)
    for seed in range(3):
        host = normal(seed, 5, 300)
        x.copy_from(host, stream)
        graph.launch(stream)
        stream.synchronize()
        check_softmax(out.numpy(), host)
    assert len(launches.done) == before + 3


@with_bundles(HIP_DOUBLE_DEVICES=2)
def test_the_second_device(folder: str):
    bundle, launches = open_emulated(folder, "rows", "hip:1")
    x = normal(0, 3, 100)
    check_softmax(bundle.softmax(x), x)
    assert [launch.device for launch, _ in launches.done] == [1]


@with_bundles()
def test_a_fault_is_an_error_and_no_crash(folder: str):
    bundle, launches = open_emulated(folder, "rows")
    x = bundle.device.array(normal(0, 3, 100))
    hidden, launches.double.allocations = launches.double.allocations, lambda device: []
    with pytest.raises(DriverCallError, match="hipErrorLaunchFailure"):
        bundle.softmax(x)
    launches.double.allocations = hidden
    check_softmax(bundle.softmax(x).numpy(), x.numpy())
