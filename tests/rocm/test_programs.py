"""Programs on AMD's own runtime over emulated GPUs: devices, bundles, copies, strict mode."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from aot_runtime import get_device, open_bundle
from tests.support.emulation.assembled import link
from tests.support.hip_kernels import places_code, spill_code
from tests.support.session_builds import build_once

from .programs import PYTHON, emulate, script
from .session import inside

pytestmark = pytest.mark.on("rocm")

PROJECT = Path(__file__).parents[2]
PROPERTIES = """
    from aot_runtime.device.drivers import open_driver
    driver = open_driver("hip")
    for index in range(driver.device_count()):
        found = driver.properties(index)
        sizes = found.memory_bytes >> 30, found.lds_bytes >> 10
        print(found.arch, found.num_cus, found.num_xcds, found.warp_size, *sizes)
"""
OF_SEVEN = ("mi355x",)
"""GPUs that HIP 6.4.3 does not know."""


def is_old() -> bool:
    return inside().hip.name.endswith(".6")


def test_rocminfo_shows_the_machine():
    done = emulate(inside().command([inside().folder / "usr/bin/rocminfo"]), "-d", "mi300x", "-d", "rx7900xtx")
    assert done.status == 0, done.errors
    for text in ("gfx942", "gfx1100", "AMD Instinct MI300X (emulated)", "304"):
        assert text in done.output


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("mi210", "gfx90a 104 1 64 64 64"),
        ("mi300x", "gfx942 304 8 64 192 64"),
        ("mi325x", "gfx942 304 8 64 256 64"),
        ("mi300a", "gfx942 228 6 64 128 64"),
        ("mi300x-cpx", "gfx942 38 1 64 24 64"),
        ("mi355x", "gfx950 256 8 64 288 160"),
        ("rx7900xtx", "gfx1100 96 1 32 24 64"),
        ("8060s", "gfx1151 40 1 32 96 64"),
        ("rx9070xt", "gfx1201 64 1 32 16 64"),
    ],
)
def test_hip_shows_each_gpu(device: str, expected: str):
    if device in OF_SEVEN and is_old():
        pytest.skip("this HIP does not know it")
    assert emulate(script(PROPERTIES), "-d", device).output.split("\n")[0] == expected


def test_a_gpu_that_hip_does_not_know():
    if not is_old():
        pytest.skip("this HIP knows them all")
    asked = "from aot_runtime import get_device\ntry: get_device('hip')\nexcept Exception as error: print(error)"
    done = emulate(script(asked), "-d", "mi355x")
    assert "hip has 0 device(s); Linux shows gfx950: this HIP seems not to know it" in done.output
    assert "install a newer ROCm" in done.output


SELFTEST = """
    import sys
    from aot_runtime.device.drivers import open_driver
    open_driver("hip")
    from aot_bundle.__main__ import main
    sys.argv = ["aotbundle", "selftest", sys.argv[1]]
    main()
"""


@pytest.mark.parametrize(
    ("device", "arch"),
    [
        ("mi300x", "gfx942"),
        ("mi210", "gfx90a"),
        ("mi355x", "gfx950"),
        ("rx7900xtx", "gfx1100"),
        ("8060s", "gfx1151"),
        ("rx9070xt", "gfx1201"),
    ],
)
def test_selftests_of_a_bundle(device: str, arch: str, tmp_path_factory: pytest.TempPathFactory):
    if device in OF_SEVEN and is_old():
        pytest.skip("this HIP does not know it")
    folder = build_once(tmp_path_factory, "manifests/first.yaml", {arch: ""})
    done = emulate(script(SELFTEST, folder / f"first-{arch}"), "-d", device)
    assert done.status == 0 and re.search("cases? pass(es)?$", done.output), done.output + done.errors


def test_a_cold_start(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path):
    """A first result of a fresh process has the bytes of the emulator's own driver; the phases are timed in order."""
    folder = build_once(tmp_path_factory, "manifests/first.yaml", {"gfx942": ""}) / "first-gfx942"
    arrays = np.random.default_rng(0).standard_normal((3, 1, 2, 128, 64)).astype(np.float16)
    for name, array in zip("qkv", arrays, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    program = inside().python(PROJECT / "benchmarks/cold/ours.py", tmp_path, folder, executable=PYTHON)
    done = emulate(program)
    assert done.status == 0, done.errors
    wanted = open_bundle(folder, get_device("emulator")).flash_attention(*arrays, causal=True)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), wanted)
    phases = list(ast.literal_eval(done.output).values())
    assert len(phases) == 5 and phases == sorted(phases)


COPIES = """
    import ctypes as c
    import sys
    import numpy as np
    hip = c.CDLL(sys.argv[1])
    def check(status): assert status == 0, status
    def allocate(nbytes):
        found = c.c_void_p()
        check(hip.hipMalloc(c.byref(found), c.c_size_t(nbytes)))
        return found
    def at(array): return c.c_void_p(array.ctypes.data)
    def noise(*shape): return np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8)
    n = c.c_size_t
    for nbytes in (1, 1000, 70_001, 5 << 20):  # staged, and from memory that is pinned for the copy
        given, found, here, there = noise(nbytes), np.zeros(nbytes, np.uint8), allocate(nbytes), allocate(nbytes)
        check(hip.hipMemcpy(here, at(given), n(nbytes), 1))
        check(hip.hipMemcpy(there, here, n(nbytes), 3))
        check(hip.hipMemcpy(at(found), there, n(nbytes), 2))
        assert (given == found).all(), nbytes
    given, found, device = noise(37, 512), np.zeros((37, 300), np.uint8), allocate(37 * 300)
    check(hip.hipMemset(device, 0, n(37 * 300)))
    check(hip.hipMemcpy2D(device, n(300), at(given), n(512), n(200), n(37), 1))
    check(hip.hipMemcpy(at(found), device, n(37 * 300), 2))
    assert (found[:, :200] == given[:, :200]).all() and not found[:, 200:].any()
    registered, device = noise(1 << 16), c.c_void_p()
    before = registered.copy()
    check(hip.hipHostRegister(at(registered), n(registered.nbytes), 0))
    check(hip.hipHostGetDevicePointer(c.byref(device), at(registered), 0))
    check(hip.hipMemset(device, 7, n(1000)))
    check(hip.hipDeviceSynchronize())
    assert (registered[:1000] == 7).all() and (registered[1000:] == before[1000:]).all()
    check(hip.hipHostUnregister(at(registered)))
    for allocate_host in (hip.hipHostMalloc, hip.hipMallocManaged):
        check(allocate_host(c.byref(device), n(4096), 1 if allocate_host is hip.hipMallocManaged else 0))
        check(hip.hipMemset(device, 9, n(4096)))
        check(hip.hipDeviceSynchronize())
        assert c.string_at(device, 4096) == bytes([9]) * 4096
    stream, urgent, least, most = c.c_void_p(), c.c_void_p(), c.c_int(), c.c_int()
    check(hip.hipStreamCreate(c.byref(stream)))
    check(hip.hipDeviceGetStreamPriorityRange(c.byref(least), c.byref(most)))
    check(hip.hipStreamCreateWithPriority(c.byref(urgent), 0, most))
    check(hip.hipMallocAsync(c.byref(device), n(1 << 20), stream))
    check(hip.hipMemsetAsync(device, 3, n(1 << 20), stream))
    flag, found = allocate(64), np.zeros(4, np.uint8)
    check(hip.hipStreamWriteValue32(stream, flag, c.c_uint32(5), 0))
    check(hip.hipStreamWaitValue32(urgent, flag, c.c_uint32(5), 1, c.c_uint32(0xFFFFFFFF)))  # equal
    check(hip.hipMemcpyAsync(at(found), device, n(4), 2, urgent))
    check(hip.hipStreamSynchronize(urgent))
    assert (found == 3).all()
    check(hip.hipFreeAsync(device, stream))
    check(hip.hipStreamSynchronize(stream))
    peer = c.c_int()
    check(hip.hipDeviceCanAccessPeer(c.byref(peer), 0, 1))
    assert peer.value == 1
    given, found, here = noise(1 << 20), np.zeros(1 << 20, np.uint8), allocate(1 << 20)
    check(hip.hipMemcpy(here, at(given), n(1 << 20), 1))
    check(hip.hipSetDevice(1))
    there = allocate(1 << 20)
    check(hip.hipMemcpyPeer(there, 1, here, 0, n(1 << 20)))
    check(hip.hipMemcpy(at(found), there, n(1 << 20), 2))
    assert (given == found).all()
    check(hip.hipDeviceReset())
    check(hip.hipMemset(allocate(4096), 3, n(4096)))
    check(hip.hipDeviceSynchronize())
    print("all is well")
"""


@pytest.mark.parametrize("device", ["mi210", "mi300x", "rx7900xtx", "8060s", "rx9070xt"])
def test_memory_of_every_kind(device: str):
    done = emulate(script(COPIES, inside().hip), "-d", device, "-d", device)
    assert "all is well" in done.output, done.output + done.errors


LAUNCH = """
    import struct
    import sys
    import numpy as np
    from hip import hip
    from aot_runtime.device.drivers import open_driver
    driver = open_driver("hip")
    path, symbol, threads, form = sys.argv[1:5]
    function = driver.get_function(0, driver.load_module(0, open(path, "rb").read()), symbol, 0)
    address = driver.allocate_now(0, 4096)
    driver.fill(0, address, 0, 4096, 0)
    driver.prepare(0, function, (1, 1, 1), int(threads), 0, struct.pack(form, address, *map(int, sys.argv[5:]))).run(0)
    found = np.empty(1024, np.int32)
    driver.copy_to_host(0, found.ctypes.data, address, 4096, 0)
    print("found", *found[:int(threads)])
"""


def launched(tmp_path: Path, code: bytes, symbol: str, form: str, *arguments: int, options: tuple[str, ...] = ()):
    (tmp_path / "code").write_bytes(code)
    program = script(LAUNCH, tmp_path / "code", symbol, "128", form, *map(str, arguments))
    return emulate(program, *options)


def test_scratch(tmp_path: Path):
    done = launched(tmp_path, spill_code("gfx942"), "spill", "<Q")
    assert done.output.split() == ["found", *(str(i % 64 * i) for i in range(128))], done.errors


def test_the_dispatch_packet(tmp_path: Path):
    done = launched(tmp_path, places_code("gfx942"), "places", "<Q5I", 128, 1, 128, 1, 1)
    assert done.output.split() == ["found", *(str(i | 128 << 16) for i in range(128))], done.errors


RACE = """s_load_dwordx2 s[2:3], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_mov_b32 v1, 0
global_store_dword v1, v0, s[2:3]
s_waitcnt vmcnt(0)"""


def test_strict_mode_stops_a_race(tmp_path: Path):
    assert "found" in launched(tmp_path, link(RACE), "kernel", "<QQ", 0).output
    done = launched(tmp_path, link(RACE), "kernel", "<QQ", 0, options=("--strict",))
    assert "found" not in done.output
    assert "global_store_dword v1, v0, s[2:3] at pc 0x10 of kernel, workgroup (0, 0, 0)" in done.errors
    ignored = launched(tmp_path, link(RACE), "kernel", "<QQ", 0, options=("--strict", "--ignore", "race"))
    assert "found" in ignored.output


def test_a_profile(tmp_path: Path):
    done = launched(tmp_path, spill_code("gfx942"), "spill", "<Q", options=("--profile",))
    rows = [line.split() for line in done.errors.splitlines() if line.startswith(("kernel ", "spill "))]
    assert rows[0][:2] == ["kernel", "launches"] and rows[1][:3] == ["spill", "1", "1"]


@pytest.mark.parametrize("only", [False, True])
def test_modelled_dispatches(only: bool, tmp_path: Path):
    """Dispatches that are only modelled leave no results; others, and HIP's own copies and fills, are run as ever."""
    options = ("--time", "^sp.ll$", *(["--time-only"] if only else []))
    done = launched(tmp_path, spill_code("gfx942"), "spill", "<Q", options=options)
    expected = [str(i % 64 * i) for i in range(128)]
    assert done.status == 0 and (done.output.split()[1:] == expected) is not only, done.errors
    line = r"^aotbuild emulator: [\d.]+ us, modelled, not measured, .* 1 workgroups: spill$"
    assert re.search(line, done.errors, re.MULTILINE)
    others = launched(tmp_path, spill_code("gfx942"), "spill", "<Q", options=("--time", "other", *options[2:]))
    assert others.output.split()[1:] == expected and "modelled" not in others.errors


C_PROGRAM = """
int hipMalloc(void **, unsigned long); int hipMemset(void *, int, unsigned long); int hipDeviceSynchronize(void);
int hipMemcpy(void *, const void *, unsigned long, int);
int main(void) {
    char there[100], *device;
    if (hipMalloc((void **)&device, 100) || hipMemset(device, 5, 100) || hipDeviceSynchronize()) return 1;
    return hipMemcpy(there, device, 100, 2) || there[99] != 5 ? 2 : 42;
}
"""


def compiled(compiler: str, tmp_path: Path, *arguments: str | Path) -> list[str]:
    """Compile a program against the release's libamdhip64: the command that runs it."""
    found, program = shutil.which(compiler) or pytest.skip(f"no compiler ({compiler})"), tmp_path / "program"
    subprocess.run(
        [found, "-o", program, *arguments, inside().hip, "-Wl,--allow-shlib-undefined"], check=True, cwd=tmp_path
    )
    return inside().command([program])


def test_a_program_in_c(tmp_path: Path):
    (tmp_path / "program.c").write_text(C_PROGRAM)
    done = emulate(compiled("cc", tmp_path, "program.c"))
    assert done.status == 42, done.errors


def test_a_program_over_the_header_of_a_bundle(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path):
    """The example for C++, with HIP's headers as Triton has them, gives the bytes of the emulator's own driver."""
    built = build_once(tmp_path_factory, "manifests/rows.yaml", "op=softmax,T=float32,BLOCK=32")
    rows_bundle = built / "rows-gfx942"
    triton = pytest.importorskip("triton")
    headers = ["-D__HIP_PLATFORM_AMD__", "-isystem", Path(triton.__file__).parent / "backends/amd/include"]
    sources = [PROJECT / "examples/cpp/softmax.cpp", rows_bundle / "src/rows.c"]
    program = compiled("c++", tmp_path, "-std=c++17", *headers, "-I", rows_bundle / "include", *sources)
    done = emulate([*program, str(rows_bundle)], "--strict")
    variant, *values, refusal = done.output.splitlines() or [done.errors]
    assert variant == "rows_gfx942_softmax_softmax_rows_f32_block32_onepass_hasoptions_aligned_most, grid (1, 1, 1)"
    bundle = open_bundle(rows_bundle, get_device("emulator"))
    wanted = bundle.softmax((np.arange(16) % 5).astype(np.float32).reshape(2, 8), scale=0.5)
    assert values == [f"{value:.9g}" for value in wanted.ravel()], done.errors
    assert refusal.startswith("softmax: argument 'out' has shape [2, 8]")
