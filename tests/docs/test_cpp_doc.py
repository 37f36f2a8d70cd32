"""docs/cpp.md, the C of docs/bundle.md, and the example program: they compile and run; tables are complete."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from aot.c.support import support_text
from aot_runtime import open_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.variant_names import variant_names
from tests.docs.markdown import blocks, section, table
from tests.docs.scripts import ROOT
from tests.support.c_interface.calling import LANGUAGES, WARNINGS
from tests.support.emulated_launches import EmulatedLaunches
from tests.support.hip_double.double import DoubleLibrary
from tests.support.session_builds import build_once

PAGE = (ROOT / "docs/cpp.md").read_text(encoding="utf-8")
BUNDLE = (ROOT / "docs/bundle.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples/cpp/softmax.cpp"


@pytest.fixture(scope="module")
def hip_headers() -> list[str]:
    """Return a compiler's flags for HIP's headers, which Triton brings."""
    if shutil.which("cc") is None or shutil.which("c++") is None:
        pytest.skip("no C and C++ compilers (cc, c++)")
    triton = pytest.importorskip("triton")
    return ["-D__HIP_PLATFORM_AMD__", "-isystem", str(Path(triton.__file__).parent / "backends/amd/include")]


@pytest.mark.parametrize("page", [PAGE, BUNDLE], ids=["cpp.md", "bundle.md"])
def test_the_c_programs_compile(rows_bundle: Path, hip_headers: list[str], tmp_path: Path, page: str):
    (block,) = blocks(page, "c")
    (tmp_path / "program.c").write_text(block.text)
    include = ["-I", str(rows_bundle / "include")]
    command = [*LANGUAGES["c11"], *WARNINGS, "-Wno-conversion", *hip_headers, *include, "-c", "program.c"]
    subprocess.run(command, cwd=tmp_path, check=True)


def test_tables():
    types = support_text("types.h")
    codes = re.findall(r"^    (AOT_\w+)(?: = 0)?,? .*/\*", types.partition("} aot_code;")[0], re.MULTILINE)
    arguments = section(PAGE, "Arguments")
    rows = table(arguments[arguments.index("| Code |") :])
    assert [row[0].strip("`") for row in rows] == codes and len(codes) == 6
    assert set(re.findall(r"aot_\w+", PAGE)) <= set(re.findall(r"aot_\w+", types))


def test_the_names_of_the_variants(rows_bundle: Path):
    """An example is explained in words."""
    (name,) = re.findall(r"rows_gfx942_softmax_\w+", section(BUNDLE, "The header of the variants"))
    assert name in variant_names(read_index(rows_bundle))


def test_the_example_program(
    hip_double: DoubleLibrary, tmp_path_factory: pytest.TempPathFactory, hip_headers: list[str], tmp_path: Path
):
    """It prints the bytes that Python computes. Its `main` runs in a process whose launches are emulated."""
    built = build_once(tmp_path_factory, ROOT / "manifests/rows.yaml", "op=softmax,T=float32,BLOCK=32", "gfx942")
    rows_bundle = built / "rows-gfx942"
    library = tmp_path / "softmax.so"
    flags = [
        "-I",
        str(rows_bundle / "include"),
        "-Dmain=example_main",
        "-shared",
        "-fPIC",
        "-L",
        str(hip_double.path.parent),
    ]
    source = str(rows_bundle / "src/rows.c")
    command = [*LANGUAGES["c++17"], *WARNINGS, *hip_headers, *flags, str(EXAMPLE), source, "-o", str(library)]
    subprocess.run([*command, "-lamdhip64"], check=True)
    printed = hip_double.run(_run_example, str(library), str(rows_bundle)).splitlines()
    assert printed[0] == "rows_gfx942_softmax_softmax_rows_f32_block32_onepass_hasoptions_aligned_most, grid (1, 1, 1)"
    assert printed[1:17] == printed[18:]
    assert printed[17] == (
        "softmax: argument 'out' has shape [2, 8]: dim 1 (cols) is 8, but must be 9 to agree with the other arguments"
    )


def _run_example(library: str, folder: str) -> None:
    launches = EmulatedLaunches()
    main = ctypes.CDLL(library)._Z12example_mainiPPc
    arguments = (ctypes.c_char_p * 2)(b"softmax", folder.encode())
    assert main(2, arguments) == 0 and len(launches.done) == 1
    x = (np.arange(16) % 5).astype(np.float32).reshape(2, 8)
    ctypes.CDLL(None).fflush(None)
    for value in open_bundle(folder).softmax(x, scale=0.5).ravel():
        print(f"{value:.9g}")
