"""The emulator's driver: what every driver must do, bad input, scheduling, and the two entries of a kernel."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.driver_contract import CHECKS

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot_emulator import ARCHS, EmulatorDriver, Options, Order

from aot_runtime.bundle.codeobject import read_loaded_image
from aot_runtime.errors import (
    DriverCallError,
    EmulationError,
    InstructionBudgetError,
    MemoryAccessError,
    UnsupportedInstructionError,
)
from tests.support.emulation.assembled import POINTER, data, run
from tests.support.emulation.launching import Kernel, compile_kernel, launch

ADD = (("x", "*fp32"), ("y", "*fp32"), ("out", "*fp32"), ("n", "i32"))
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


def add_kernel(arch: str = "gfx942") -> Kernel:
    return compile_kernel("add", ADD, (("BLOCK", 256),), arch=arch)


def add_arguments(n: int = 1000) -> dict[str, Any]:
    x, y = (np.random.default_rng(i).standard_normal(n).astype(np.float32) for i in range(2))
    return {"x": x, "y": y, "out": np.zeros(n, np.float32), "n": n}


def code_of(kernel: Kernel) -> bytes:
    loaded = read_loaded_image(kernel.compiled.image)
    address, size = loaded.symbols[kernel.compiled.symbol]
    segment = next(s for s in loaded.segments if s.address <= address < s.address + s.size)
    return segment.data[address - segment.address :][:size]


def patched(kernel: Kernel, place: int, new: bytes) -> Kernel:
    """The kernel with its machine code changed."""
    image = kernel.compiled.image
    place += image.index(code_of(kernel))
    changed = image[:place] + new + image[place + len(new) :]
    return replace(kernel, compiled=replace(kernel.compiled, image=changed))


ENTRY = 256
"""Where execution starts: after what loads preloaded arguments."""


def test_both_entries_agree():
    kernel, arguments = add_kernel(), add_arguments()
    preloaded, driver = launch(kernel, (4,), arguments)
    loaded, other = launch(kernel, (4,), arguments, Options(preload=False))
    np.testing.assert_array_equal(preloaded["out"], loaded["out"])
    np.testing.assert_array_equal(loaded["out"], arguments["x"] + arguments["y"])
    assert other.last.instructions > driver.last.instructions
    assert driver.record is None and "add" in repr(driver.last)


def test_serial_order_notices_a_missing_barrier():
    """Of two wavefronts that give each other their numbers the first gets what nobody has written."""
    body = f"{POINTER}v_xor_b32 v2, 0x100, v1\nds_write_b32 v1, v0\nwait lds\n{{}}ds_read_b32 v3, v2\nwait lds\n"
    body += "global_store_dword v1, v3, s[4:5]\n"
    for barrier, order, right in (
        ("", Order.LOCKSTEP, True),
        ("s_barrier\n", Order.SERIAL, True),
        ("", Order.SERIAL, False),
    ):
        after = run(body.format(barrier), data(128), wavefronts=2, strict=False, order=order)
        assert (after[:64] == np.arange(64, 128)).all() == right


def test_an_endless_loop_ends():
    endless = patched(add_kernel(), ENTRY, struct.pack("<I", 0xBF82FFFF))  # s_branch to itself
    with pytest.raises(InstructionBudgetError, match=r"s_branch 0x100 at pc 0x100 of add: .*endless") as raised:
        launch(endless, (4,), add_arguments(), Options(budget=1000))
    assert (raised.value.kernel, raised.value.pc, raised.value.mnemonic) == ("add", ENTRY, "s_branch")


@pytest.mark.parametrize("word,name", [(0xBF900001, "s_sendmsg"), (0xBF920003, "s_trap"), (0x7E00EA00, "<unknown>")])
def test_what_is_not_implemented_is_named(word: int, name: str):
    with pytest.raises(UnsupportedInstructionError) as raised:
        launch(patched(add_kernel(), ENTRY, struct.pack("<I", word)), (4,), add_arguments())
    assert (raised.value.mnemonic, raised.value.pc, raised.value.kernel) == (name, ENTRY, "add")


def test_an_access_outside_names_the_place():
    message = r"(load|store)_dword\w* .* at pc 0x\w+ of add, workgroup .*, lane \d+: .* in no alloc"
    with pytest.raises(MemoryAccessError, match=message) as raised:
        launch(add_kernel(), (40,), add_arguments() | {"n": 10_000})
    assert raised.value.kernel == "add" and raised.value.address > 0


def prepare(driver: EmulatorDriver, kernel: Kernel, **changes: Any) -> Any:
    device = list(ARCHS).index(kernel.arch)
    module = driver.load_module(device, kernel.compiled.image)
    function = driver.get_function(device, module, kernel.compiled.symbol, 0)
    arguments = {"grid": (1, 1, 1), "block": 256, "lds_bytes": 0, "kernargs": bytes(48)} | changes
    return driver.prepare(device, function, **arguments)


@pytest.mark.parametrize("changes,message", [
    ({"grid": (0, 1, 1)}, "one workgroup or more"), ({"block": 0}, "0 threads"), ({"block": 2048}, "2048 threads"),
    ({"lds_bytes": 1 << 17}, "131072 bytes of LDS, a workgroup has 65536"),
    ({"kernargs": bytes(8)}, "bytes of arguments, 8 were given"), ({"kernargs": bytes(4096)}, "bytes of arguments, 4096 were given"),
])  # fmt: skip
def test_bad_launches_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises((DriverCallError, EmulationError), match=message):
        prepare(EmulatorDriver(), add_kernel(), **changes)


def test_gfx950_has_more_lds():
    prepare(EmulatorDriver(), add_kernel("gfx950"), lds_bytes=160 << 10)
    with pytest.raises(DriverCallError, match="163844 bytes of LDS, a workgroup has 163840"):
        prepare(EmulatorDriver(), add_kernel("gfx950"), lds_bytes=(160 << 10) + 4)


def test_foreign_code_objects_are_refused():
    image, driver = add_kernel().compiled.image, EmulatorDriver()
    cut = [image[:length] for length in (0, 63, 64, 200, len(image) // 2, len(image) - 100)]
    for bad in (*cut, b"\x7fELF" + bytes(100), add_kernel("gfx950").compiled.image):
        with pytest.raises(DriverCallError, match="ModuleLoadData"):
            driver.load_module(0, bad)
    with pytest.raises(DriverCallError, match="no kernel 'other'"):
        driver.get_function(0, driver.load_module(0, image), "other", 0)


def test_flipped_bits_never_reach_this_process():
    """Whatever a damaged code object does, it is an error of ours, or a wrong result."""
    kernel, rng, outcomes = add_kernel(), np.random.default_rng(0), set()
    arguments, code = add_arguments(64), code_of(kernel)
    for _ in range(60):
        place, bit = int(rng.integers(ENTRY, len(code))), int(rng.integers(8))
        flipped = patched(kernel, place, bytes([code[place] ^ 1 << bit]))
        try:
            launch(flipped, (1,), arguments, Options(budget=2000))
            outcomes.add("ran")
        except (EmulationError, AssertionError) as error:
            outcomes.add(type(error).__name__)
    assert {"ran", "MemoryAccessError", "UnsupportedInstructionError"} <= outcomes


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
