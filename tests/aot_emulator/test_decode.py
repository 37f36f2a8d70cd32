"""Decoding: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import pytest
from aot_emulator import EmulatorDriver

from aot_runtime import Bundle
from tests.aot_emulator.bundling import built, on_demand
from tests.ops.decode.decode_suite import *  # noqa: F403 -- its tests
from tests.ops.decode.decode_suite import BundleFor, paged, run_paged


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "decode")


@pytest.fixture(scope="module")
def looking(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "decode", "op=paged_attention|flex_decode,T=float16", check_contents=True)


@pytest.fixture(scope="module")
def decode_for(decode: Bundle) -> BundleFor:
    return lambda dtype: decode


@pytest.fixture(scope="module")
def with_vectors(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(tmp_path_factory, "decode", "T=float16,C=float16,HEAD_DIM=64,GROUPS=4,LATENT=256,SPLIT=true")


def test_selftest(with_vectors: Bundle):
    report = with_vectors.selftest()
    assert report.passed, [result for result in report.results if not result.passed]
    assert {result.op for result in report.results} == set(with_vectors.ops)


def test_aligned_code_loads_16_bytes_at_a_time(decode: Bundle):
    run_paged(decode, paged([(1, 100)], 64, head_dim=64), num_splits=1)
    driver = decode.device.driver
    assert isinstance(driver, EmulatorDriver)
    loads = {name: count for name, count in driver.last.summary.mnemonics.items() if name.startswith("global_load")}
    assert loads["global_load_dwordx4"] > 8 and not loads.keys() & {"global_load_ushort", "global_load_short_d16"}
