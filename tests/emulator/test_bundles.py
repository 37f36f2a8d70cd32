"""The project's own gfx942 bundles through `open_bundle(device="emulator")`, against the fp64 references."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import ArchMismatchError, Bundle, DeviceError, get_device, open_bundle
from kernels.attention.reference import attention as exact_attention
from kernels.attention.reference import attention_same_dtype
from kernels.rows.reference import softmax, softmax_same_dtype
from kernels.tolerance import assert_close

ROOT = Path(__file__).parents[2]
F16, BF16, F32 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


@pytest.fixture(scope="session")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from click.testing import CliRunner

    from aot.cli import main

    folder = tmp_path_factory.mktemp("attention")
    command = [
        "--arch",
        "gfx942",
        "--filter",
        "HEAD_DIM=64|128,RETURN_LSE=true",
        str(ROOT / "manifests/attention.yaml"),
        "-o",
        str(folder),
        "--cache-dir",
        str(folder / "cache"),
    ]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    return open_bundle(folder / "attention-gfx942", device="emulator")


@pytest.fixture(scope="session")
def rows(rows_bundle: Path) -> Bundle:
    return open_bundle(rows_bundle, device="emulator")


def normal(seed: int, *shape: int, dtype: np.dtype, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


@pytest.mark.parametrize("columns", (1, 40, 256, 16384, 20000))
@pytest.mark.parametrize("dtype", (F16, F32), ids=str)
def test_softmax(rows: Bundle, dtype: np.dtype, columns: int):
    x = normal(0, 3, columns, dtype=dtype, scale=4)
    exact = softmax(x)
    assert_close(rows.softmax(x), exact, softmax_same_dtype(x), 1e-6 * exact.max())


def test_softmax_of_special_rows(rows: Bundle):
    x = np.zeros((4, 40), np.float32)
    x[1], x[2, 3], x[3, :39] = -np.inf, np.nan, -np.inf
    out = rows.softmax(x)
    np.testing.assert_array_equal(np.isnan(out).all(1), [False, True, True, False])
    assert out[3, 39] == 1


def check(bundle: Bundle, q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool, given=None, scale=None) -> None:  # type: ignore[no-untyped-def]
    """Outputs hold NaN before the call."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = bundle.device.array(np.full(q.shape, np.nan, q.dtype))
    lse = bundle.device.array(np.full(q.shape[:3], np.nan, np.float32))
    arrays = [bundle.device.array(x) for x in (q, k, v)] if given is None else given
    bundle.flash_attention(*arrays, scale=scale, causal=causal, return_lse=True, out=out, lse=lse)
    exact = exact_attention(q, k, v, scale=scale, causal=causal, return_lse=True)
    same = attention_same_dtype(q, k, v, scale=scale, causal=causal, return_lse=True)
    assert_close(out.numpy(), exact[0], same[0], 1e-6, "out")
    assert_close(lse.numpy(), exact[1], same[1], 1e-5, "lse")


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("head_dim", (64, 65, 128))
@pytest.mark.parametrize("dtype", (F16, BF16), ids=str)
def test_attention(attention: Bundle, dtype: np.dtype, head_dim: int, causal: bool):
    q = normal(0, 1, 4, 113, head_dim, dtype=dtype)
    k, v = (normal(i, 1, 2, 203, head_dim, dtype=dtype) for i in (1, 2))
    check(attention, q, k, v, causal)


def test_attention_with_rows_that_see_no_key_and_a_negative_scale(attention: Bundle):
    q = normal(0, 1, 2, 100, 64, dtype=F16)
    k, v = (normal(i, 1, 2, 50, 64, dtype=F16) for i in (1, 2))
    check(attention, q, k, v, True, scale=-0.3)


def test_attention_of_views_with_poisoned_padding(attention: Bundle):
    whole = np.full((1, 4, 83, 80), np.nan, np.float16)
    inner = (slice(None), slice(1, 3), slice(8, 75), slice(0, 64))
    hosts = [normal(i, 1, 2, 67, 64, dtype=F16) for i in range(3)]
    given = []
    for host in hosts:
        whole[inner] = host
        given.append(attention.device.array(whole)[inner])
    check(attention, *hosts, True, given)


def test_attention_on_streams_and_in_graphs(attention: Bundle):
    device = attention.device
    q, k, v = (device.array(normal(i, 1, 2, 64, 64, dtype=F16)) for i in range(3))
    expected = attention.flash_attention(q, k, v, return_lse=True).out.numpy()
    stream, out = device.stream(), device.array(np.full(q.shape, np.nan, np.float16))
    lse = device.empty(q.shape[:3], np.float32)
    with device.capture(stream) as graph:
        attention.flash_attention(q, k, v, return_lse=True, out=out, lse=lse, stream=stream)
    assert np.isnan(out.numpy()).all(), "captured work ran"
    graph.launch(stream)
    np.testing.assert_array_equal(out.numpy(stream), expected)
    v.copy_from(np.zeros(v.shape, np.float16))
    graph.launch(stream)
    assert not out.numpy(stream).any()


def test_devices_by_name(rows_bundle: Path, rows_bundles: Path):
    device = get_device("emulator:gfx942")
    assert device is open_bundle(rows_bundle, device="emulator").device is get_device("emulator:0")
    assert device.arch == "gfx942" and device.properties.warp_size == 64
    assert open_bundle(rows_bundles, device="emulator:gfx942").index.target.arch == "gfx942"
    with pytest.raises(DeviceError, match="emulator has no gfx1 device; it has: gfx942"):
        get_device("emulator:gfx1")
    with pytest.raises((DeviceError, ArchMismatchError), match="sm_90"):
        open_bundle(rows_bundles / "rows-sm_90", device="emulator")
