"""The shipped code objects, executed instruction by instruction in strict mode, against the fp64 references: all of
gfx942's, a choice of other archs'.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray, open_bundle
from aot_runtime.device import Device
from aot_runtime.drivers.emulator import ARCHS, EmulatorDriver, Options
from aot_runtime.format import Variant
from aot_runtime.planner import op_planner
from kernels.attention.reference import attention, attention_same_dtype
from kernels.rows.reference import softmax, softmax_same_dtype
from kernels.tolerance import assert_close

ROOT = Path(__file__).parents[2]
BF16 = np.dtype(ml_dtypes.bfloat16)
FP16 = np.dtype(np.float16)


@cache
def strict_device(arch: str) -> Device:
    return Device(EmulatorDriver(Options(strict=True)), list(ARCHS).index(arch))


def built(
    factory: pytest.TempPathFactory, manifest: str, *options: str, arch: str = "gfx942", name: str = "emulated_bundles"
) -> Bundle:
    """A bundle on the emulator; it is built once for all workers of a session. name: of its folder."""
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from click.testing import CliRunner
    from filelock import FileLock

    from aot.cli import main

    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    path = str(ROOT / f"manifests/{manifest}.yaml")
    command = ["--arch", arch, *options, path, "-o", str(folder), "--cache-dir", str(folder / "cache")]
    with FileLock(folder / f"{manifest}-{arch}.lock"):
        if not (folder / f"{manifest}-{arch}/bundle.json").exists():
            result = CliRunner().invoke(main, command)
            assert result.exit_code == 0, result.output
    return open_bundle(folder / f"{manifest}-{arch}", device=strict_device(arch))


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(tmp_path_factory, "attention", "--filter", "HEAD_DIM=64|128,RETURN_LSE=true")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(tmp_path_factory, "rows")


def poisoned(bundle: Bundle, host: np.ndarray):
    """`host` on the device with NaN around it, and a view of it."""
    whole = np.full([extent + 4 for extent in host.shape[:-1]] + [host.shape[-1] + 16], np.nan, host.dtype)
    inner = (*(slice(2, -2) for _ in host.shape[:-1]), slice(0, host.shape[-1]))
    whole[inner] = host
    return bundle.device.array(whole)[inner]


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("lengths", ((1, 77), (70, 90), (130, 50), (600, 130)), ids=str)
@pytest.mark.parametrize("head_dim", (64, 96, 128))
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_attention(flash: Bundle, dtype: np.dtype, head_dim: int, lengths: tuple[int, int], causal: bool):
    check_attention(flash, dtype, head_dim, lengths, causal)


def check_attention(
    bundle: Bundle, dtype: np.dtype, head_dim: int, lengths: tuple[int, int], causal: bool
) -> None:  # fmt: skip
    rng = np.random.default_rng(head_dim)
    q = rng.standard_normal((1, 2, lengths[0], head_dim)).astype(dtype)
    k, v = (rng.standard_normal((1, 1, lengths[1], head_dim)).astype(dtype) for _ in range(2))
    out = bundle.device.array(np.full(q.shape, np.nan, dtype))
    lse = bundle.device.array(np.full(q.shape[:3], np.nan, np.float32))
    given = [poisoned(bundle, x) for x in (q, k, v)]
    bundle.flash_attention(*given, causal=causal, return_lse=True, out=out, lse=lse)
    arguments = {"scale": head_dim**-0.5, "causal": causal, "return_lse": True}
    exact, same = attention(q, k, v, **arguments), attention_same_dtype(q, k, v, **arguments)
    assert_close(out.numpy(), exact[0], same[0], 1e-6, "out")
    assert_close(lse.numpy(), exact[1], same[1], 1e-5, "lse")


@pytest.mark.parametrize("dtype", (FP16, BF16, np.dtype(np.float32)), ids=str)
@pytest.mark.parametrize("cols", (1, 33, 256, 1000, 4096, 20000))
def test_softmax(rows: Bundle, cols: int, dtype: np.dtype):
    check_softmax(rows, cols, dtype)


def check_softmax(bundle: Bundle, cols: int, dtype: np.dtype) -> None:
    x = (np.random.default_rng(cols).standard_normal((3, cols)) * 4).astype(dtype)
    out = bundle.device.array(np.full(x.shape, np.nan, dtype))
    bundle.softmax(poisoned(bundle, x), out=out)
    assert_close(out.numpy(), softmax(x), softmax_same_dtype(x), 1e-7)


# Other archs

OTHERS = pytest.mark.parametrize("arch", ("gfx950", "gfx90a"))


@OTHERS
def test_attention_of_other_archs(arch: str, tmp_path_factory: pytest.TempPathFactory):
    chosen = "head_dim=128,dtype=bfloat16,causal=true,return_lse=true,padded=false"
    bundle = built(tmp_path_factory, "attention", "--filter", chosen, arch=arch)
    for lengths in ((70, 90), (130, 50), (600, 130)):
        check_attention(bundle, BF16, 128, lengths, True)


@OTHERS
def test_softmax_of_other_archs(arch: str, tmp_path_factory: pytest.TempPathFactory):
    bundle = built(tmp_path_factory, "rows", "--filter", "BLOCK=1024", arch=arch)
    for dtype in (FP16, BF16, np.dtype(np.float32)):
        for cols in (1000, 1024):
            check_softmax(bundle, cols, dtype)


@pytest.mark.slow
@OTHERS
def test_every_head_dim_of_other_archs(arch: str, tmp_path_factory: pytest.TempPathFactory):
    bundle = built(tmp_path_factory, "attention", "--filter", "return_lse=true", arch=arch, name="every_head_dim")
    for dtype in (FP16, BF16):
        for head_dim in (32, 64, 128, 256, 100):
            for lengths in ((1, 77), (70, 90), (600, 130)):
                for causal in (False, True):
                    check_attention(bundle, dtype, head_dim, lengths, causal)


# Every variant of the two manifests, which is what these sweeps are for


def variants_of(bundle: Bundle, op: str, layouts: dict[str, DeviceArray], **scalars: object) -> list[Variant]:
    """What a call launches."""
    planner = op_planner(bundle.index, op)
    decision = planner.decide(
        {name: array.layout for name, array in layouts.items()},
        scalars,
        bundle.device.key,
        bundle.device.properties.num_cus,
        "gfx942",
    )
    return [launch.variant for launch in decision.launches]


def key(variant: Variant) -> tuple[object, ...]:
    return (variant.op, variant.launch, tuple(variant.point.items()), variant.aligned, variant.config)


@pytest.mark.slow
def test_every_variant_of_attention(tmp_path_factory: pytest.TempPathFactory):
    bundle = built(tmp_path_factory, "attention")
    seen = set()
    for head_dim in (32, 64, 128, 256, 16, 48, 80, 144, 31, 63, 100, 129):
        for dtype in (FP16, BF16):
            for seqlen_q in (33, 100, 600):
                for causal in (False, True):
                    for return_lse in (False, True):
                        rng = np.random.default_rng(head_dim)
                        q = rng.standard_normal((1, 2, seqlen_q, head_dim)).astype(dtype)
                        k, v = (rng.standard_normal((1, 1, 83, head_dim)).astype(dtype) for _ in range(2))
                        given = {name: poisoned(bundle, x) for name, x in zip("qkv", (q, k, v), strict=True)}
                        options = {"causal": causal, "return_lse": return_lse}
                        seen |= {key(item) for item in variants_of(bundle, "flash_attention", given, **options)}
                        result = bundle.flash_attention(**given, **options)
                        out, lse = result if return_lse else (result, None)
                        arguments = {"scale": head_dim**-0.5, "causal": causal, "return_lse": True}
                        exact, same = attention(q, k, v, **arguments), attention_same_dtype(q, k, v, **arguments)
                        assert_close(out.numpy(), exact[0], same[0], 1e-6, "out")
                        if lse is not None:
                            assert_close(lse.numpy(), exact[1], same[1], 1e-5, "lse")
    assert seen == {key(variant) for variant in bundle.index.variants}


@pytest.mark.slow
def test_every_variant_of_rows(rows: Bundle):
    seen = set()
    for dtype in (FP16, BF16, np.dtype(np.float32)):
        for cols in (256, 1024, 4096, 16384, 20000, 250, 1001, 4001, 16001, 20001):
            x = (np.random.default_rng(cols).standard_normal((3, cols)) * 4).astype(dtype)
            given = poisoned(rows, x)
            seen |= {key(item) for item in variants_of(rows, "softmax", {"x": given})}
            assert_close(rows.softmax(given).numpy(), softmax(x), softmax_same_dtype(x), 1e-7)
    assert seen == {key(variant) for variant in rows.index.variants}
