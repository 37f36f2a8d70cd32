"""The emulator's driver: the tests of all drivers, bad input, scheduling, and the two entry points of a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.driver_contract import CHECKS

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot_emulator import ARCHS, EmulatorDriver, Options, Order
from aot_emulator.errors import EmulationError
from aot_runtime.errors import DriverCallError
from tests.support.emulation.assembled import POINTER, data, in_words_of, link, run
from tests.support.emulation.launching import compile_kernel, launch
from tests.support.emulation.machine import assemble

BY_BINDING = {
    "properties_are_filled_in",
    "host_memory_may_be_reused_after_a_copy",
    "memory_can_be_had_during_any_capture",
    "fresh_threads_need_no_preparation",
}
"""Checks that look into the Python binding of a real GPU's library."""


@pytest.mark.parametrize("name", sorted(CHECKS.keys() - BY_BINDING))
def test_contract(name: str):
    CHECKS[name](EmulatorDriver())  # type: ignore[arg-type]


def test_both_entries_agree():
    signature = (("x", "*fp32"), ("y", "*fp32"), ("out", "*fp32"), ("n", "i32"))
    kernel = compile_kernel("add", signature, (("BLOCK", 256),))
    x, y = (np.random.default_rng(i).standard_normal(1000).astype(np.float32) for i in range(2))
    arguments = {"x": x, "y": y, "out": np.zeros_like(x), "n": 1000}
    preloaded, driver = launch(kernel, (4,), arguments)
    loaded, other = launch(kernel, (4,), arguments, Options(preload=False))
    np.testing.assert_array_equal(preloaded["out"], x + y)
    np.testing.assert_array_equal(loaded["out"], x + y)
    assert other.last.instructions > driver.last.instructions
    assert driver.record is None and "add" in repr(driver.last)


def test_serial_order_notices_a_missing_barrier():
    """Two wavefronts give each other their numbers; in serial order, the first reads what nobody has written."""
    body = f"{POINTER}v_xor_b32 v2, 0x100, v1\nds_write_b32 v1, v0\nwait lds\n{{}}ds_read_b32 v3, v2\nwait lds\n"
    body += "global_store_dword v1, v3, s[4:5]\n"
    for barrier, order, right in (
        ("", Order.LOCKSTEP, True),
        ("s_barrier\n", Order.SERIAL, True),
        ("", Order.SERIAL, False),
    ):
        after = run(body.format(barrier), data(128), wavefronts=2, strict=False, order=order)
        assert (after[:64] == np.arange(64, 128)).all() == right


def prepare(arch: str, **changes: Any) -> None:
    driver, device = EmulatorDriver(), list(ARCHS).index(arch)
    function = driver.get_function(device, driver.load_module(device, link(POINTER, arch)), "kernel", 0)
    arguments = {"grid": (1, 1, 1), "block": 256, "lds_bytes": 0, "kernargs": bytes(16)} | changes
    driver.prepare(device, function, **arguments)


@pytest.mark.parametrize("arch,changes,message", [
    ("gfx942", {"grid": (0, 1, 1)}, "one workgroup or more"), ("gfx942", {"block": 0}, "0 threads"),
    ("gfx942", {"block": 2048}, "2048 threads"), ("gfx942", {"kernargs": bytes(8)}, "bytes of arguments, got 8"),
    ("gfx942", {"kernargs": bytes(4096)}, "bytes of arguments, got 4096"),
    ("gfx942", {"lds_bytes": (60 << 10) + 4}, "65540 bytes of LDS, a workgroup has 65536"),
    ("gfx950", {"lds_bytes": (156 << 10) + 4}, "163844 bytes of LDS, a workgroup has 163840"),
])  # fmt: skip
def test_bad_launches_are_refused(arch: str, changes: dict[str, Any], message: str):
    """The kernel itself has 4 KiB of LDS."""
    prepare(arch, lds_bytes=(156 if arch == "gfx950" else 60) << 10)
    with pytest.raises((DriverCallError, EmulationError), match=message):
        prepare(arch, **changes)


def test_foreign_code_objects_are_refused():
    image, driver = link(POINTER), EmulatorDriver()
    cut = [image[:length] for length in (0, 63, 64, 200, len(image) // 2, len(image) - 100)]
    for bad in (*cut, b"\x7fELF" + bytes(100), link(POINTER, "gfx950")):
        with pytest.raises(DriverCallError, match="ModuleLoadData"):
            driver.load_module(0, bad)
    with pytest.raises(DriverCallError, match="no kernel 'other'"):
        driver.get_function(0, driver.load_module(0, image), "other", 0)


def test_flipped_bits_never_reach_this_process():
    """A damaged code object ends in an error of ours, or in a wrong result."""
    body = (
        POINTER
        + "global_load_dword v2, v1, s[4:5]\nwait loads\nv_add_u32 v2, v2, v2\nglobal_store_dword v1, v2, s[4:5]"
    )
    image, code, rng, outcomes = link(body), assemble(in_words_of("gfx942", body)), np.random.default_rng(0), set()
    for _ in range(60):
        place, bit = image.index(code) + int(rng.integers(len(code))), int(rng.integers(8))
        flipped = image[:place] + bytes([image[place] ^ 1 << bit]) + image[place + 1 :]
        try:
            run(flipped, data(64), strict=False, budget=2000)
            outcomes.add("ran")
        except EmulationError as error:
            outcomes.add(type(error).__name__)
    assert {"ran", "MemoryAccessError", "UnsupportedInstructionError"} <= outcomes


def test_a_broken_capture_is_an_error():
    """Nothing may go to the default stream while another is captured, nor wait for that one."""
    driver, data = EmulatorDriver(), np.zeros(64, np.uint8)
    stream, other, address = driver.create_stream(0), driver.create_stream(0), driver.allocate(0, 64, 0)
    event = driver.create_event(0)
    for use, code in (
        (lambda: driver.allocate(0, 64, stream), "emulatorErrorStreamCaptureUnsupported"),
        (lambda: driver.synchronize(0, stream), "emulatorErrorStreamCaptureUnsupported"),
        (lambda: driver.allocate(0, 64, 0), "emulatorErrorStreamCaptureImplicit"),
        (lambda: driver.fill(0, address, 0, 64, 0), "emulatorErrorStreamCaptureImplicit"),
        (lambda: driver.copy_to_host(0, data.ctypes.data, address, 64, 0), "emulatorErrorStreamCaptureImplicit"),
        (lambda: driver.record_event(0, event, 0), "emulatorErrorStreamCaptureImplicit"),
        (lambda: driver.synchronize(0, 0), "emulatorErrorStreamCaptureImplicit"),
        (lambda: driver.free(0, address, 0), "emulatorErrorStreamCaptureImplicit"),
    ):
        driver.begin_capture(0, stream)
        with pytest.raises(DriverCallError, match=code):
            use()
        with pytest.raises(DriverCallError, match="emulatorErrorStreamCaptureInvalidated"):
            driver.end_capture(0, stream)
        assert not driver.is_capturing(0, stream)
    driver.begin_capture(0, stream)
    driver.fill(0, address, 1, 64, other), driver.synchronize(0, other), driver.allocate(1, 64, 0)
    driver.launch_graph(0, driver.end_capture(0, stream), stream)


def test_handles_and_memory_are_checked():
    driver = EmulatorDriver()
    address = driver.allocate(0, 100, 0)
    assert address % 256 == 0 and driver.device_of(address + 99) == 0
    data = np.zeros(200, np.uint8)
    for call in (
        lambda: driver.copy_to_device(0, address, data.ctypes.data, 200, 0),
        lambda: driver.copy_to_host(0, data.ctypes.data, address + 1, 100, 0),
        lambda: driver.fill(0, address - 1, 0, 2, 0),
        lambda: driver.free(0, address + 256, 0),
        lambda: driver.device_of(address + 100),
        lambda: driver.launch_graph(0, 99, 0),
        lambda: driver.synchronize(0, 99),
        lambda: driver.unload_module(0, 99),
    ):
        with pytest.raises(DriverCallError):
            call()
    driver.free(0, address, 0)
    with pytest.raises(DriverCallError):
        driver.free(0, address, 0)
    assert driver.allocate(0, 100, 0) != address, "an address is never used twice"


def test_fresh_memory_is_poisoned():
    driver = EmulatorDriver()
    address, content = driver.allocate(0, 64, 0), np.zeros(16, np.float32)
    driver.copy_to_host(0, content.ctypes.data, address, 64, 0)
    assert np.isnan(content).all()
