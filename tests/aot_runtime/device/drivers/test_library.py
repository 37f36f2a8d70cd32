"""Choice of libamdhip64, with copies of the double where ROCm, ROCm's wheels and torch have theirs."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot_runtime.device.drivers import hip_python, library
from aot_runtime.device.drivers.hip import HipDriver
from aot_runtime.device.drivers.library import VARIABLE, Candidate, candidates, loaded_libraries, mapped
from aot_runtime.errors import DeviceError
from tests.support.hip_double.double import DoubleLibrary

NAME = "libamdhip64.so"
LAYOUTS = {
    "opt": "opt/rocm/lib/libamdhip64.so",
    "wheel": "site/_rocm_sdk_core/lib/libamdhip64.so.7",
    "torch": "site/torch/lib/libamdhip64.so",
    "other": "other/lib/libamdhip64.so.6",
}


@pytest.fixture(scope="module")
def places(hip_double: DoubleLibrary, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the paths of copies of the double by their layout; all lie in `root`."""
    hip_double.only("only the double is copied")
    root = tmp_path_factory.mktemp("machine")
    for place in LAYOUTS.values():
        (root / place).parent.mkdir(parents=True)
        shutil.copy(hip_double.path, root / place)
    # As ROCm has it: the name of development packages leads to the one with a version.
    shutil.move(root / LAYOUTS["opt"], root / f"{LAYOUTS['opt']}.7.2.0")
    (root / f"{LAYOUTS['opt']}.7").symlink_to(f"{NAME}.7.2.0")
    (root / LAYOUTS["opt"]).symlink_to(f"{NAME}.7")
    return {"root": str(root)} | {name: str((root / place).resolve()) for name, place in LAYOUTS.items()}


# The rules, in files that nothing loads.


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def found(root: Path, loaded: tuple[str, ...] = (), **environment: str) -> list[Candidate]:
    variables = {name: value.replace("ROOT", str(root)) for name, value in environment.items()}
    return list(candidates(variables, [str(root / path) for path in loaded], [str(root / "site")], [str(root / "opt")]))


EVERYTHING = ("opt/lib/libamdhip64.so", "site/_rocm_sdk_core/lib/libamdhip64.so.7", "a/lib/libamdhip64.so",
              "b/lib64/libamdhip64.so.7", "c/libamdhip64.so.6", "d/mine.so", "torch/lib/libamdhip64.so")  # fmt: skip
ENVIRONMENT = {"ROCM_PATH": "ROOT/a", "HIP_PATH": "ROOT/b", "LD_LIBRARY_PATH": "ROOT/nowhere::ROOT/c"}


def test_the_order_of_the_rules(tmp_path: Path):
    touch(tmp_path, *EVERYTHING)
    *files, first, second, third = found(tmp_path, **ENVIRONMENT)
    assert [(os.path.relpath(item.path, tmp_path), item.rule) for item in files] == [
        ("a/lib/libamdhip64.so", "in ROCM_PATH"),
        ("b/lib64/libamdhip64.so.7", "in HIP_PATH"),
        ("c/libamdhip64.so.6", "in LD_LIBRARY_PATH"),
        ("site/_rocm_sdk_core/lib/libamdhip64.so.7", "of ROCm's wheels"),
        ("opt/lib/libamdhip64.so", f"in {tmp_path / 'opt'}"),
    ]
    assert [first.path, second.path, third.path] == [NAME, f"{NAME}.7", f"{NAME}.6"]
    assert {first.rule, second.rule, third.rule} == {"by the dynamic loader"}


def test_what_is_asked_for_is_the_only_one(tmp_path: Path):
    touch(tmp_path, *EVERYTHING)
    (named,) = found(tmp_path, **ENVIRONMENT, **{VARIABLE: "ROOT/d/mine.so"})
    assert named == Candidate(str(tmp_path / "d/mine.so"), f"{VARIABLE} names it")


def test_what_is_loaded_comes_before_all(tmp_path: Path):
    touch(tmp_path, *EVERYTHING)
    paths = ("torch/lib/libamdhip64.so", "a/lib/libamdhip64.so")
    items = found(tmp_path, paths, **ENVIRONMENT, **{VARIABLE: "ROOT/d/mine.so"})
    assert [item.path for item in items] == [str(tmp_path / path) for path in paths]
    assert all(item.loaded and item.rule == "this process had it already" for item in items)
    (first, _) = found(tmp_path, paths, **{VARIABLE: "ROOT/torch/../a/lib/libamdhip64.so"})
    assert first.path == str(tmp_path / paths[1]), "of several, the one that is asked for"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("libamdhip64.so.6", "libamdhip64.so.7", "libamdhip64.so"), "libamdhip64.so"),
        (("libamdhip64.so.7.2.1", "libamdhip64.so.10", "libamdhip64.so.7"), "libamdhip64.so.10"),
        (("libamdhip64.so.debug", "libamdhip64.so.7-gdb.py", "libamdhip64.so.6"), "libamdhip64.so.6"),
    ],
)
def test_the_name_in_a_folder(tmp_path: Path, names: tuple[str, ...], expected: str):
    touch(tmp_path, *(f"rocm/lib/{name}" for name in names))
    assert Path(found(tmp_path, ROCM_PATH="ROOT/rocm")[0].path).name == expected


def test_wheels_of_several_versions(tmp_path: Path):
    touch(tmp_path, *(f"site/_rocm_sdk_core_{version}/lib/libamdhip64.so.7" for version in ("7_0_0", "7_2_1")))
    assert [Path(item.path).parts[-3] for item in found(tmp_path)[:2]] == [
        "_rocm_sdk_core_7_2_1",
        "_rocm_sdk_core_7_0_0",
    ]


def test_maps():
    lines = """\
7f00-7f01 r-xp 00000000 08:01 42                         /opt/my rocm/lib/libamdhip64.so.7.2.0
7f01-7f02 rw-p 00001000 08:01 42                         /opt/my rocm/lib/libamdhip64.so.7.2.0
7f03-7f04 r-xp 00000000 08:01 43                         /usr/lib/libamdhip64_helper.so
7f04-7f05 r-xp 00000000 08:01 44                         /venv/torch/lib/libamdhip64.so
7f05-7f06 rw-p 00000000 00:00 0
7f06-7f07 rw-p 00000000 00:00 0                          [heap]
""".splitlines()
    assert mapped(lines) == ["/opt/my rocm/lib/libamdhip64.so.7.2.0", "/venv/torch/lib/libamdhip64.so"]


# Processes that load one of the copies.


def use(driver: HipDriver, path: str) -> None:
    """Call the library through the binding and ctypes; both must reach this library only."""
    assert loaded_libraries() == [path]
    double = ctypes.CDLL(path)
    double.hip_double_calls.restype = ctypes.c_long
    before = double.hip_double_calls(b"hipMallocFromPoolAsync")
    driver.allocate(0, 64, 0)
    assert double.hip_double_calls(b"hipMallocFromPoolAsync") == before + 1, "hip-python calls another"
    assert driver._library._handle == ctypes.PyDLL(path)._handle, "launches go to another"


def opens(path: str, rule: str, *to_load: str) -> None:
    for other in to_load:
        ctypes.CDLL(other)
    driver = HipDriver()
    use(driver, path)
    assert driver.properties(0).library.endswith(f" ({rule})")
    assert Path(driver.properties(0).library.partition(" (")[0]).samefile(path)


def opens_with_site(path: str, rule: str, site: str) -> None:
    sys.path.append(site)
    opens(path, rule)


def opens_with_system(path: str, folder: str) -> None:
    library.SYSTEM = (folder,)
    opens(path, f"in {folder}")


def run(double: DoubleLibrary, body: Callable[..., None], *arguments: Any, **environment: str) -> None:
    """Run with only the named libraries; the double itself is in none of the searched places."""
    nowhere = {"ROCM_PATH": "", "HIP_PATH": "", "LD_LIBRARY_PATH": ""}
    double.run_fresh(body, *arguments, **(nowhere | environment))


def test_what_torch_has_loaded_is_used(hip_double: DoubleLibrary, places: dict[str, str]):
    rule = "this process had it already"
    named = {"ROCM_PATH": f"{places['root']}/opt/rocm", VARIABLE: places["other"]}
    run(hip_double, opens, places["torch"], rule, places["torch"], **named)


@pytest.mark.parametrize(
    ("place", "rule", "environment"),
    [
        ("other", f"{VARIABLE} names it", {VARIABLE: "ROOT/other/lib/libamdhip64.so.6", "ROCM_PATH": "ROOT/opt/rocm"}),
        ("opt", "in ROCM_PATH", {"ROCM_PATH": "ROOT/opt/rocm", "HIP_PATH": "ROOT/other"}),
        ("other", "in HIP_PATH", {"ROCM_PATH": "ROOT/site", "HIP_PATH": "ROOT/other"}),
        ("other", "in LD_LIBRARY_PATH", {"LD_LIBRARY_PATH": "ROOT/other/lib"}),
    ],
)
def test_what_the_environment_names(
    hip_double: DoubleLibrary, places: dict[str, str], place: str, rule: str, environment: dict[str, str]
):
    variables = {name: value.replace("ROOT", places["root"]) for name, value in environment.items()}
    run(hip_double, opens, places[place], rule, **variables)


def test_wheels(hip_double: DoubleLibrary, places: dict[str, str]):
    """Their library has a version in its name, which the dynamic loader does not know."""
    run(hip_double, opens_with_site, places["wheel"], "of ROCm's wheels", f"{places['root']}/site")


def test_the_system(hip_double: DoubleLibrary, places: dict[str, str]):
    run(hip_double, opens_with_system, places["opt"], f"{places['root']}/opt/rocm")


def finds_nothing(words: str) -> None:
    with pytest.raises(DeviceError, match="AMD GPUs need ROCm's HIP runtime") as raised:
        HipDriver()
    assert words in str(raised.value)


def test_what_cannot_be_loaded_is_said(hip_double: DoubleLibrary, places: dict[str, str], tmp_path: Path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libamdhip64.so").write_text("no library")
    root = places["root"]
    run(hip_double, finds_nothing, "(in ROCM_PATH); libamdhip64.so: cannot open", ROCM_PATH=str(tmp_path))
    missing = {VARIABLE: f"{root}/missing.so", "ROCM_PATH": f"{root}/opt/rocm"}
    run(hip_double, finds_nothing, f"missing.so: cannot open shared object file: No such file or directory ({VARIABLE} "
        "names it)", **missing)  # fmt: skip
    libc = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line)
    run(hip_double, finds_nothing, f"has no hipModuleLaunchKernel ({VARIABLE} names it)", **{VARIABLE: libc})


def opens_after_hip_python(own: str, other: str) -> None:
    """Use hip-python, then open where torch brought another library: arrays and launches go where hip-python goes."""
    from hip import hip

    hip.hipGetDeviceCount()
    ctypes.CDLL(other)
    assert sorted(loaded_libraries()) == sorted([own, other])
    driver = HipDriver()
    assert Path(driver.properties(0).library.partition(" (")[0]).samefile(own)


def test_hip_python_that_was_used_before(hip_double: DoubleLibrary, places: dict[str, str]):
    for other in ("torch", "wheel"):
        run(hip_double, opens_after_hip_python, places["opt"], places[other], ROCM_PATH=f"{places['root']}/opt/rocm",
            LD_LIBRARY_PATH=f"{places['root']}/opt/rocm/lib")  # fmt: skip


def refuses_two(own: str, other: str) -> None:
    from hip import hip

    hip.hipGetDeviceCount()
    ctypes.CDLL(other)
    hip_python.loaded_libraries = lambda: [own, other]
    library.loaded_libraries = lambda: [other]  # as if that of hip-python could not be seen
    with pytest.raises(
        DeviceError, match=f"hip-python calls another libamdhip64 than .*: name one to both, in {VARIABLE}"
    ):
        HipDriver()


def test_two_libraries_are_refused(hip_double: DoubleLibrary, places: dict[str, str]):
    run(hip_double, refuses_two, places["opt"], places["torch"], ROCM_PATH=f"{places['root']}/opt/rocm",
        LD_LIBRARY_PATH=f"{places['root']}/opt/rocm/lib")  # fmt: skip
