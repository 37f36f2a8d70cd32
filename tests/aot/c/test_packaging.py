"""A bundle as a package for CMake and pkg-config, from wherever it was moved to."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aot.c.files import c_files
from aot_runtime.contract.records import TEXT_FILES, Index
from tests.support.c_interface.calling import LANGUAGES, WARNINGS
from tests.support.hip_double.double import DoubleLibrary
from tests.support.sample_index import sample_index

PROGRAM = """\
#include <sample.h>
#include <stdio.h>
int main(int count, char **arguments)
{
    aot_bundle *bundle;
    aot_status status = sample_open(arguments[count - 1], 0, &bundle);
    if (status.code == AOT_OK) printf("%s for %s\\n", bundle->library->bundle, bundle->library->arch);
    else puts(status.message);
    if (status.code == AOT_OK) aot_close(bundle);
    return 0;
}
"""
LISTS = """\
cmake_minimum_required(VERSION 3.21)
project(program LANGUAGES {languages})
find_package(sample REQUIRED)
find_package(sample REQUIRED)
add_executable(program program.{suffix})
target_link_libraries(program PRIVATE sample::sample)
file(WRITE ${{CMAKE_BINARY_DIR}}/folder "${{SAMPLE_GFX942_FOLDER}}")
"""
HIP = """\
add_library(hip::host INTERFACE IMPORTED)
set_target_properties(hip::host PROPERTIES INTERFACE_LINK_LIBRARIES "{library}")
"""


def write(folder: Path, index: Index) -> Path:
    """Write the files that a build writes for C, and an index with its id."""
    for file, content in {**c_files(index), "bundle.json": f'{{"id": "{index.id}"}}'.encode()}.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return folder


def run(*command: str | Path, **environment: str) -> str:
    result = subprocess.run([*map(str, command)], env=os.environ | environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_files(sample: Index):
    files = c_files(sample)
    assert {*files, "stubs/sample.pyi"} == {file.format(name="sample") for file in TEXT_FILES}
    assert all(sample.id.encode() in content for content in files.values()), "verify looks for it"
    assert files == c_files(sample_index()), "the same index gives the same bytes"


@pytest.mark.parametrize(
    ("language", "arch", "backend", "flags"),
    [
        ("c11", "gfx942", "hip", ["-DAOT_LINK_DRIVER"]),
        ("c++17", "gfx942", "hip", []),
        ("c11", "sm_90", "cuda", []),
        ("c++17", "sm_90", "cuda", ["-DAOT_LINK_DRIVER"]),
    ],
)
def test_the_source_compiles_without_a_warning(
    tmp_path: Path, language: str, arch: str, backend: str, flags: list[str]
):
    folder = write(tmp_path, sample_index(arch, backend))
    run(*LANGUAGES[language], *WARNINGS, *flags, "-c", folder / "src/sample.c", "-o", tmp_path / "sample.o")


@pytest.mark.parametrize(
    ("backend", "include", "asserted"),
    [
        (
            "hip",
            "amd/include",
            """#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
static_assert(AOT_PROPERTIES == sizeof(hipDeviceProp_tR0600), "");
static_assert(AOT_MULTIPROCESSORS == offsetof(hipDeviceProp_tR0600, multiProcessorCount), "");
static_assert(AOT_ARCH_NAME == offsetof(hipDeviceProp_tR0600, gcnArchName), "");
static_assert(AOT_XCCS == hipDeviceAttributeNumberOfXccs && AOT_POOLS == hipDeviceAttributeMemoryPoolsSupported, "");
static_assert(sizeof(aot_pool_properties) == sizeof(hipMemPoolProps), "");
static_assert(AOT_RELEASE_THRESHOLD == hipMemPoolAttrReleaseThreshold, "");
static_assert(AOT_OUT_OF_MEMORY == hipErrorOutOfMemory && (intptr_t)HIP_LAUNCH_PARAM_END == AOT_LAUNCH_END, "");
""",
        ),
        (
            "cuda",
            "nvidia/include",
            """#include <cuda.h>
static_assert(AOT_MULTIPROCESSORS == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "");
static_assert(AOT_MAJOR == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "");
static_assert(AOT_MINOR == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "");
static_assert(AOT_POOLS == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, "");
static_assert(AOT_MAX_SHARED == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, "");
static_assert(AOT_CARVEOUT == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, "");
static_assert(sizeof(aot_pool_properties) == sizeof(CUmemPoolProps), "");
static_assert(AOT_RELEASE_THRESHOLD == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, "");
static_assert(AOT_OUT_OF_MEMORY == CUDA_ERROR_OUT_OF_MEMORY && (intptr_t)CU_LAUNCH_PARAM_END == AOT_LAUNCH_END, "");
""",
        ),
    ],
    ids=["hip", "cuda"],
)
def test_what_the_source_takes_of_the_driver_is_what_its_header_says(
    tmp_path: Path, backend: str, include: str, asserted: str
):
    backends = Path(pytest.importorskip("triton").__file__).parent / "backends"
    arch = "gfx942" if backend == "hip" else "sm_90"
    write(tmp_path, sample_index(arch, backend))
    body = "#define NAMED(name, parameters) (void)name;\nvoid named(void);\nvoid named(void) { AOT_FUNCTIONS(NAMED) }\n"
    (tmp_path / "program.c").write_text(f'#include "src/sample.c"\n{asserted}{body}')
    run(*LANGUAGES["c11"], "-isystem", backends / include, "-c", tmp_path / "program.c", "-o", tmp_path / "program.o")


def test_two_bundles_of_two_architectures_in_one_program(tmp_path: Path):
    sources, names = [], ("gfx942", "gfx950")
    for arch in names:
        sources.append(write(tmp_path / arch, sample_index(arch)) / "src/sample.c")
    includes = "".join(f'#include "{arch}/include/sample.h"\n' for arch in names)
    prints = "".join(f"puts(sample_{arch}.arch); " for arch in names)
    (tmp_path / "program.c").write_text(f"{includes}#include <stdio.h>\nint main(void) {{ {prints}return 0; }}\n")
    run(*LANGUAGES["c11"], *WARNINGS, tmp_path / "program.c", *sources, "-o", tmp_path / "program", "-lm")
    assert run(tmp_path / "program").split() == [*names]


def test_a_program_by_pkg_config(hip_double: DoubleLibrary, tmp_path: Path):
    hip_double.only("the program is run by the system's dynamic loader")
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config")
    write(tmp_path / "built", sample_index())
    moved = (tmp_path / "built").rename(tmp_path / "moved elsewhere")
    (tmp_path / "program.c").write_text(PROGRAM)
    path = {"PKG_CONFIG_PATH": str(moved / "lib/pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "sample", **path)
    source = run("pkg-config", "--variable=source", "sample", **path).strip().replace("\\", "")
    script = f'cc -std=c11 "$1" "$2" {flags.strip()} -o "$3"'
    run("sh", "-c", script, "sh", tmp_path / "program.c", source, tmp_path / "program")
    there = {"LD_LIBRARY_PATH": str(hip_double.path.parent)}
    assert run(tmp_path / "program", moved, **there) == "sample for gfx942\n"
    nowhere = run(tmp_path / "program", moved, AOTBUILD_HIP_LIBRARY="/none/libamdhip64.so", LD_LIBRARY_PATH="")
    assert nowhere.startswith("the GPU's driver cannot be loaded: /none/libamdhip64.so: cannot open shared object file")


@pytest.mark.parametrize(("languages", "suffix"), [pytest.param("C", "c", marks=pytest.mark.slow), ("CXX", "cpp")])
def test_a_program_by_cmake(hip_double: DoubleLibrary, tmp_path: Path, languages: str, suffix: str):
    """The program looks the driver up, or links it; a project of C++ alone compiles the source as C++."""
    hip_double.only("the program is run by the system's dynamic loader")
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    write(tmp_path / "built", sample_index())
    moved = (tmp_path / "built").rename(tmp_path / "moved elsewhere")
    project = tmp_path / "project"
    (project / "hip").mkdir(parents=True)
    (project / f"program.{suffix}").write_text(PROGRAM)
    (project / "CMakeLists.txt").write_text(LISTS.format(languages=languages, suffix=suffix))
    (project / "hip/hipConfig.cmake").write_text(HIP.format(library=hip_double.path))
    linked = "ON" if languages == "C" else "OFF"
    paths = f"-DCMAKE_PREFIX_PATH={moved};{project / 'hip'}"
    flags = f"-DCMAKE_{languages}_FLAGS={' '.join(WARNINGS)}"
    build = tmp_path / "build"
    run(
        "cmake",
        "-S",
        project,
        "-B",
        build,
        paths,
        flags,
        f"-DSAMPLE_LINK_DRIVER={linked}",
        "-Dhip_DIR=" + str(project / "hip"),
    )
    run("cmake", "--build", build)
    assert Path((build / "folder").read_text()) == moved
    needed = run("readelf", "-d", build / "program") if shutil.which("readelf") else "libamdhip64" * (linked == "ON")
    assert ("libamdhip64" in needed) == (linked == "ON")
    there = {"LD_LIBRARY_PATH": str(hip_double.path.parent)}
    assert run(build / "program", moved, **there) == "sample for gfx942\n"
