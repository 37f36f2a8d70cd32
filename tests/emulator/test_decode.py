"""Decoding: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import pytest
from bundling import built
from decode_suite import *  # noqa: F403 -- its tests
from decode_suite import FP16, BundleFor, paged, run_paged

from aot_runtime import Bundle
from aot_runtime.drivers.emulator import EmulatorDriver

PLAIN = "T=float16,HEAD_DIM=64"
INT4 = "flash_decode_int4|paged_attention_int4|append_kv_int4"
OPS = f"flash_decode|paged_attention|{INT4}|append_kv|append_kv_per_token|mla_decode|flex_decode"
MODS = "|".join(
    f"flex_decode_{name}" for name in ("causal", "window", "prefix_lm", "document", "alibi", "relative_bias", "softcap")
)


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(tmp_path_factory, "decode", f"op={OPS},{PLAIN},GROUPS=4,LATENT=256")


@pytest.fixture(scope="module")
def decode_for(decode: Bundle, tmp_path_factory: pytest.TempPathFactory) -> BundleFor:
    filters = "op=flash_decode|paged_attention,T=bfloat16,C=bfloat16,HEAD_DIM=128,WHOLE_BLOCKS=false"
    bfloat16 = built(tmp_path_factory, "decode", filters)
    return lambda dtype: decode if dtype == FP16 else bfloat16


@pytest.fixture(scope="module")
def one_group(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    filters = f"op={INT4},{PLAIN},GROUPS=1,SPLIT=true,WHOLE_BLOCKS=true,ROTARY=false"
    return built(tmp_path_factory, "decode", filters)


@pytest.fixture(scope="module")
def mods(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(tmp_path_factory, "decode", f"op={MODS},{PLAIN},SPLIT=true")


def test_selftest(decode: Bundle, mods: Bundle):
    ops = {"flash_decode", "paged_attention", "append_kv", "append_kv_per_token", "append_kv_int4", "mla_decode"}
    for bundle, wanted in ((decode, ops | {"flash_decode_int4", "flex_decode"}), (mods, set(MODS.split("|")))):
        report = bundle.selftest()
        assert report.passed, [result for result in report.results if not result.passed]
        assert wanted <= {result.op for result in report.results}


def test_aligned_code_loads_16_bytes_at_a_time(decode: Bundle):
    run_paged(decode, paged([(1, 100)], 64, head_dim=64), num_splits=1)
    driver = decode.device.driver
    assert isinstance(driver, EmulatorDriver)
    loads = {name: count for name, count in driver.last.summary.mnemonics.items() if name.startswith("global_load")}
    assert loads["global_load_dwordx4"] > 8 and not loads.keys() & {"global_load_ushort", "global_load_short_d16"}
