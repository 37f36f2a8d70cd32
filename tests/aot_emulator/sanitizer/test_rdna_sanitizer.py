"""Strict mode on RDNA: its counters of what is outstanding, and its memory instructions; what both share is tested on CDNA."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime.errors import SanitizerError
from tests.support.emulation import strict_runs

RDNA3, RDNA4 = "gfx1100", "gfx1201"
every_rdna = pytest.mark.parametrize("arch", (RDNA3, RDNA4))
# By what is waited for; of RDNA3 with every other counter left as it is.
WAITS = {
    RDNA3: {
        "loads": "s_waitcnt vmcnt({})",
        "stores": "s_waitcnt_vscnt null, {}",
        "lds": "s_waitcnt lgkmcnt({})",
        "scalars": "s_waitcnt lgkmcnt({})",
    },
    RDNA4: {
        "loads": "s_wait_loadcnt {}",
        "stores": "s_wait_storecnt {}",
        "lds": "s_wait_dscnt {}",
        "scalars": "s_wait_kmcnt {}",
    },
}
RETURN = {RDNA3: "glc", RDNA4: "th:TH_ATOMIC_RETURN"}


def wait(arch: str, kind: str, left: int = 0) -> str:
    return WAITS[arch][kind].format(hex(left)) + "\n"


def body_of(arch: str, body: str) -> str:
    """The lines after others: the address of an array is in s[4:5], 4 * lane in v1, 0 in v3; v8 to v31 are 0."""
    zeros = "".join(f"v_mov_b32 v{number}, 0\n" for number in (3, *range(8, 32)))
    return f"s_load_b64 s[4:5], s[0:1], 0x0\n{wait(arch, 'scalars')}v_lshlrev_b32 v1, 2, v0\n{zeros}{body}"


def run(arch: str, body: str, nbytes: int = 1024, written: bool = True, wavefronts: int = 1) -> None:
    """Run lines in strict mode, counted."""
    array = np.arange(nbytes, dtype=np.uint8) if written else nbytes
    strict_runs.run(body_of(arch, body), array, wavefronts, arch=arch, profile=True)


def fault(arch: str, kind: str, message: str, body: str, **launch) -> SanitizerError:
    with pytest.raises(SanitizerError, match=message) as raised:
        run(arch, body, **launch)
    assert raised.value.kind == kind
    return raised.value


RESOURCE = "s_mov_b32 s8, s4\ns_mov_b32 s9, s5\ns_mov_b32 s10, 256\ns_mov_b32 s11, 0x31027000\n"
# What leaves v2 or s12 outstanding, and what is to be waited for.
OUTSTANDING = (
    ("global_load_b32 v2, v1, s[4:5]", "loads"),
    ("global_load_d16_b16 v2, v1, s[4:5]", "loads"),
    ("buffer_load_b32 v2, v1, s[8:11], null offen", "loads"),
    ("scratch_store_b32 off, v1, off\nscratch_load_b32 v2, off, off", "loads"),
    ("global_atomic_add_u32 v2, v1, v1, s[4:5] {returning}", "loads"),
    ("buffer_atomic_add_u32 v2, v1, s[8:11], null offen {returning}", "loads"),
    ("ds_store_b32 v1, v1\nds_load_b32 v2, v1", "lds"),
    ("ds_bpermute_b32 v2, v1, v1", "lds"),
    ("ds_store_b32 v1, v1\nds_add_rtn_u32 v2, v1, v1", "lds"),
    ("s_load_b32 s12, s[4:5], 0x10", "scalars"),
    ("s_buffer_load_b128 s[12:15], s[8:11], 0x10", "scalars"),
)


@pytest.mark.parametrize("text,kind", OUTSTANDING, ids=lambda value: value.split("\n")[-1].split(" ")[0])
@every_rdna
def test_results_are_to_be_waited_for(arch: str, text: str, kind: str):
    """By the counter that counts them, and no other."""
    start = f"{RESOURCE}v_mov_b32 v2, 0\n{text.format(returning=RETURN[arch])}\n"
    register = "s12" if kind == "scalars" else "v2"
    use = f"v_mov_b32 v9, {register}"
    run(arch, start + wait(arch, kind) + use)
    others = "".join(wait(arch, other) for other in WAITS[arch] if WAITS[arch][other] != WAITS[arch][kind])
    error = fault(arch, "wait", f"{register} is used before", start + others + use)
    assert text.split("\n")[-1].split(" ")[0] in str(error)


@every_rdna
def test_loads_come_back_in_order(arch: str):
    loads = "".join(f"global_load_b32 v{16 + i}, v1, s[4:5] offset:{128 * i}\n" for i in range(4))
    run(arch, loads + wait(arch, "loads", 2) + "v_add_nc_u32 v9, v16, v17")
    fault(arch, "wait", "v18 is used before", loads + wait(arch, "loads", 2) + "v_add_nc_u32 v9, v16, v18")
    # Stores have a counter of their own, so that they do not count among the loads.
    store = "global_store_b32 v1, v8, s[4:5] offset:512\n"
    run(arch, loads + store + wait(arch, "loads", 3) + "v_mov_b32 v9, v16")
    fault(arch, "wait", "v17 is used", loads + store + wait(arch, "loads", 3) + "v_mov_b32 v9, v17")


def test_scalar_and_lds_operations_share_no_counter_on_gfx12():
    start = "ds_store_b32 v1, v1\nds_load_b32 v2, v1\ns_load_b32 s12, s[4:5], 0x10\n"
    run(RDNA4, start + "s_wait_kmcnt 0x0\ns_mov_b32 s13, s12")
    fault(RDNA4, "wait", "v2 is used", start + "s_wait_kmcnt 0x0\nv_mov_b32 v9, v2")
    run(RDNA4, start + "s_wait_loadcnt_dscnt 0x3f00\nv_mov_b32 v9, v2")


@pytest.mark.parametrize("operand", ("a", "b", "c"))
@every_rdna
def test_operands_of_matrix_instructions_are_to_be_waited_for(arch: str, operand: str):
    width = 8 if arch == RDNA3 else 4
    load = {"a": 8, "b": 16, "c": 24}[operand]
    start = f"v_lshlrev_b32 v1, 4, v0\nglobal_load_b128 v[{load}:{load + 3}], v1, s[4:5]\n"
    wmma = f"v_wmma_f32_16x16x16_f16 v[40:47], v[8:{7 + width}], v[16:{15 + width}], v[24:31]"
    run(arch, start + wait(arch, "loads") + wmma)
    error = fault(arch, "wait", f"v{load}, v{load + 1}, .* are used before `global_load_b128", start + wmma)
    assert error.mnemonic == "v_wmma_f32_16x16x16_f16"


@every_rdna
def test_caches_are_invalidated_beside_loads(arch: str):
    """gfx12 counts that among the loads, gfx11 not at all."""
    load = "global_load_b32 v2, v1, s[4:5]\n"
    invalidate = "buffer_gl0_inv\nbuffer_gl1_inv\n" if arch == RDNA3 else "global_inv scope:SCOPE_DEV\n"
    use = wait(arch, "loads", 1) + "v_mov_b32 v9, v2"
    if arch == RDNA3:
        fault(arch, "wait", "v2 is used", load + invalidate + use)
    else:
        run(arch, load + invalidate + use)


@every_rdna
def test_what_nothing_has_written(arch: str):
    for text in (
        "global_load_u8 v2, v1, s[4:5]",
        "buffer_load_d16_hi_b16 v2, v1, s[8:11], null offen",
        "s_load_b32 s12, s[4:5], 0x10",
        "s_buffer_load_b64 s[12:13], s[8:11], 0x10",
    ):
        fault(arch, "uninitialised", "never written", RESOURCE + text, written=False)
    fault(arch, "uninitialised", "bytes of LDS", "ds_load_u16_d16 v2, v1")


@every_rdna
def test_what_is_out_of_range_of_a_buffer_is_not_read(arch: str):
    """256 bytes of which 128 are written: lanes beyond them, by the resource's size, read nothing."""
    half = "s_mov_b32 s10, 128\n"
    store = "buffer_store_b32 v8, v1, s[8:11], null offen\n"
    loads = "buffer_load_b64 v[10:11], v1, s[8:11], null offen\ns_buffer_load_b128 s[12:15], s[8:11], 0x78\n"
    ready = wait(arch, "loads") + wait(arch, "stores")
    run(arch, RESOURCE + half + store + ready + loads, nbytes=256, written=False)
    fault(arch, "uninitialised", "never", RESOURCE + store + ready + loads, nbytes=256, written=False)


@every_rdna
def test_bounds_and_alignment(arch: str):
    fault(arch, "bounds", "in no allocation", "global_load_b32 v2, v1, s[4:5] offset:1000")
    fault(arch, "bounds", "bytes of LDS", "ds_store_b32 v1, v8 offset:4080")
    fault(arch, "bounds", "bytes of scratch", "scratch_store_b32 off, v8, off offset:64")
    fault(arch, "alignment", "no multiple of 4", "global_atomic_add_u32 v1, v8, s[4:5] offset:2")
    fault(arch, "alignment", "no multiple of 8", "ds_store_b64 v1, v[8:9]")


@every_rdna
def test_a_race_on_lds(arch: str):
    """Wavefront 1 reads what wavefront 0 wrote; the barrier orders them if the store is waited for."""
    barrier = "s_barrier\n" if arch == RDNA3 else "s_barrier_signal -1\ns_barrier_wait -1\n"
    store, load = "ds_store_b32 v1, v1\n", "v_xor_b32 v4, 0x80, v1\nds_load_b32 v2, v4\n"
    run(arch, store + wait(arch, "lds") + barrier + load, wavefronts=2)
    fault(arch, "wait", "not waited for before the barrier", store + barrier + load, wavefronts=2)
    fault(arch, "race", "no barrier is between", f"{store}{wait(arch, 'lds')}{load}", wavefronts=2)
