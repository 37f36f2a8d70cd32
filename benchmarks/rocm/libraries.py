"""AMD's libraries of kernels, and llama.cpp, in a folder: Debian's packages, pinned in `hipblaslt.txt`, ….

Like HIP in `tests.rocm`, they are fetched by apt, from the archive that the machine's apt uses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rocm.packages import Archive, Package, Rocm, Unavailable, cache_folder
from tests.rocm.packages import install as install_hip

HERE = Path(__file__).parent
NAMES = ("hipblaslt", "rocblas")
LLAMA = "llama"
"""llama.cpp with its HIP backend, which needs rocBLAS."""
RANDOM = "rocrand"
"""rocRAND, which generates random numbers."""
ROCBLAS_TESTS = "rocblas-tests"
"""rocBLAS's own test program."""
CLANG = "clang"
"""Debian's compiler, which assembles generated kernels."""
EMULATED = ("gfx90a", "gfx1100", "gfx1201")
"""Architectures of both Debian's kernels and the emulator; of others nothing is unpacked."""
_ARCHS = (
    "gfx803", "gfx900", "gfx906", "gfx908", "gfx1010", "gfx1030", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151",
    "gfx1200",
)  # fmt: skip
_LIBRARIES = "usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True)
class Libraries:
    """The content of a folder that `install` made."""

    folder: Path

    @property
    def rocm(self) -> Rocm:
        """Return HIP with these libraries beside it; the stand-in for ROCm SMI is found first."""
        own = [self.folder / "stand-ins", *(self.folder / name / _LIBRARIES for name in (*NAMES, RANDOM))]
        return Rocm(self.folder / "hip", (*own, self.folder / "rocblas" / _LIBRARIES / "blas"))

    def computes(self, name: str, arch: str) -> bool:
        """Tell whether a library is there and has kernels for an architecture."""
        if not (self.folder / name / _LIBRARIES / f"lib{name}.so.{4 if name == 'rocblas' else 1}").exists():
            return False
        made = name == "hipblaslt" and self.generated(arch).exists()
        return made or any((self.folder / name / _LIBRARIES / name).rglob(f"*_{arch}.dat"))

    def kernels(self, name: str) -> Path:
        """Return the folder of the library's kernels and their tables."""
        return self.folder / name / _LIBRARIES / name / "library"

    def generated(self, arch: str) -> Path:
        """Return the folder of hipBLASLt's kernels for an architecture, if they were generated here."""
        return self.folder / "generated" / arch

    def rocblas_test(self) -> list[str | Path]:
        """Return the command of rocBLAS's own test program."""
        found = self.folder / ROCBLAS_TESTS / "usr"
        data = found / "share/librocblas4-tests/data/rocblas_gtest.data"
        return [found / "libexec/rocm/librocblas4-tests/rocblas-test", "--data", data]

    def bench(self, name: str) -> Path:
        """Return the library's benchmark program."""
        return next((self.folder / name / "usr/libexec/rocm").glob(f"*/{name}-bench"))


def install(folder: Path, names: Sequence[str]) -> Libraries:
    """Put libraries, and HIP, below a folder, unless they are there. Raises `Unavailable`."""
    install_hip(folder / "hip")
    for name in names:
        if not (folder / name).exists():
            lines = (HERE / f"{name}.txt").read_text().splitlines()
            files = Archive(cache_folder(), ("sid",)).fetch([Package(*line.split()) for line in lines])
            unfinished = folder / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            for file in files:
                _unpack(file, unfinished)
            unfinished.rename(folder / name)
    _build_stand_in(folder / "stand-ins")
    return Libraries(folder)


def _unpack(package: Path, folder: Path) -> None:
    left_out = [f"--exclude=*{arch}*" for arch in _ARCHS]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as tar:
        done = subprocess.run(["tar", "-x", "-C", str(folder), *left_out], stdin=tar.stdout)
    if done.returncode or tar.returncode:
        raise Unavailable(f"{package} cannot be unpacked below {folder}")


def _build_stand_in(folder: Path) -> None:
    target = folder / "librocm_smi64.so.1"
    if target.exists():
        return
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable("the stand-in for ROCm SMI needs a C compiler: cc, gcc or clang")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(target), str(HERE / "rocm_smi.c")], check=True)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of programs that use the libraries.

    comgr 7.0.2 keeps code objects that it has unbundled in a cache, by a key that is the same for different compressed
    bundles, as hipBLASLt's files are: it would give a file the kernels of another one.
    """
    return {**os.environ, "AMD_COMGR_CACHE": "0", **(more or {})}
