"""hipBLASLt's kernels for gfx942, which Debian does not build: made by AMD's generator from AMD's table of winners.

The generator (TensileLite 4.33) and the table, which has a kernel for each size that was tuned, are in the repository
ROCm/hipBLASLt. Debian's clang assembles the kernels. hipBLASLt 7.1.1 finds them in a folder that
`HIPBLASLT_TENSILE_LIBPATH` names, once the generator's own tables have the form that it reads.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rocm.packages import Rocm, Unavailable

from .libraries import Libraries

ARCH = "gfx942"
SOURCE = "https://github.com/ROCm/hipBLASLt"
COMMIT = "7d9fb683db25941d38c5f89749a2c26acc493992"
"""A commit of October 2024, with TensileLite 4.33."""
_GENERATOR = "tensilelite"
_TABLES = "library/src/amd_detail/rocblaslt/src/Tensile/Logic/asm_full/aquavanjaram/gfx942/Equality"
_FILES = (f"/{_GENERATOR}/", f"!/{_GENERATOR}/Tensile/CustomKernels/", f"/{_TABLES}/")
"""Patterns of the files that are checked out, without kernels by hand, which are 97 MB."""
_NEEDED = {"joblib": "joblib", "msgpack": "msgpack", "yaml": "pyyaml"}
"""Modules that are needed, and the packages that have them."""
_LETTERS = {"f16": "HHS", "bf16": "BBS"}
_SCRIPT = Path(__file__).with_name("tensile.py")
_SIZES, _SOLUTIONS = 7, 5
"""Positions in a table of winners."""
_ADDED_TO_MAPPINGS = {
    "CUOccupancy": 1, "MathClocksUnrolledLoop": 0, "PrefetchGlobalRead": 2, "nonTemporalA": 0, "nonTemporalB": 0,
    "synchronizerSizePerWG": 1,
}  # fmt: skip
Table = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """Products of a type and of BLAS's operations."""

    type: str
    ops: str

    def __str__(self) -> str:
        return f"{self.type} {self.ops}"

    @property
    def file(self) -> str:
        """Return the name of AMD's table. It names the order of the indices of both operands."""
        a = "Ailk" if self.ops[0] == "N" else "Alik"
        b = "Bljk" if self.ops[1] == "N" else "Bjlk"
        return f"aquavanjaram_Cijk_{a}_{b}_{_LETTERS[self.type]}_BH_UserArgs.yaml"


def generate(libraries: Libraries, kinds: Iterable[Kind], sizes: Sequence[int] | None, source: str) -> Path:
    """Make the winners of square products, or, if `sizes` is None, all winners of the tables.

    Return the folder of the library's kernels. Raises `Unavailable`.
    """
    missing = [package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise Unavailable(f"AMD's generator needs Python packages: pip install {' '.join(missing)}")
    checkout = sources(source, libraries.folder / "hipBLASLt")
    compiler = _compiler(libraries)
    with tempfile.TemporaryDirectory(dir=libraries.folder) as scratch:
        made = Path(scratch, "library")
        made.mkdir()
        for kind in kinds:
            work = Path(scratch, f"{kind.type}{kind.ops}")
            (work / "logic").mkdir(parents=True)
            _cut(checkout / _TABLES / kind.file, work / "logic" / kind.file, sizes, kind)
            _run_generator(checkout, compiler, work)
            _assemble(compiler, work, made)
        _complete(made, libraries.kernels("hipblaslt"))
        target = libraries.generated(ARCH)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(exist_ok=True)
        made.rename(target)
    return target


def sources(source: str, folder: Path) -> Path:
    """Return a folder with the generator and AMD's tables: one that is given, or a partial checkout of a repository.

    A local repository needs no other objects than those files.
    """
    if (Path(source) / _GENERATOR).is_dir():
        return Path(source).absolute()
    if (folder / _GENERATOR).is_dir():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    _git("init", "--quiet", str(folder))
    _git("remote", "add", "origin", source, folder=folder)
    if Path(source).is_dir():
        objects = Path(source, _git("rev-parse", "--git-path", "objects", folder=Path(source)).strip()).absolute()
        (folder / ".git/objects/info/alternates").write_text(f"{objects}\n")
    else:
        _git("fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", COMMIT, folder=folder)
    _git("sparse-checkout", "set", "--no-cone", *_FILES, folder=folder)
    _git("checkout", "--quiet", COMMIT, folder=folder)
    return folder


def _git(*arguments: str, folder: Path | None = None) -> str:
    place = [] if folder is None else ["-C", str(folder)]
    try:
        done = subprocess.run(["git", *place, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise Unavailable("AMD's generator is fetched with git, which is not installed") from None
    if done.returncode:
        what = f"git {' '.join(arguments)} fails: {done.stderr.strip()}"
        raise Unavailable(f"{what}\n--source names a checkout of {SOURCE}, or a local repository")
    return done.stdout


def _compiler(libraries: Libraries) -> Path:
    """Write clang and its linker as programs that the loader of HIP's folder runs; return the former."""
    llvm = libraries.folder / "clang/usr/lib/llvm-21"
    rocm = Rocm(libraries.rocm.folder, (llvm / "lib", libraries.folder / "clang/usr/lib/x86_64-linux-gnu"))
    folder = libraries.folder / "clang/programs"
    folder.mkdir(exist_ok=True)
    clang, linker = folder / "clang++", folder / "ld.lld"
    # Clang starts itself, and the linker beside it, by the name that it was started with.
    by_name = 'case $1 in -cc1*) ;; *) set -- -no-canonical-prefixes "$@" ;; esac\n'
    for program, binary, first in ((clang, "clang", by_name), (linker, "lld", "")):
        command = " ".join(f"'{word}'" for word in rocm.command([llvm / "bin" / binary], program))
        program.write_text(f'#!/bin/sh\n{first}exec {command} "$@"\n')
        program.chmod(0o755)
    return clang


def _cut(table: Path, target: Path, sizes: Sequence[int] | None, kind: Kind) -> None:
    """Write a table with the winners of square products alone, or, if `sizes` is None, with all of them."""
    import yaml

    if not table.exists():
        raise Unavailable(f"AMD has no table of {kind} for {ARCH}")
    content = cut(yaml.load(table.read_text(), yaml.CSafeLoader), sizes)
    found = {size[0] for size, _ in content[_SIZES]}
    if missing := [str(size) for size in sizes or () if size not in found]:
        raise Unavailable(f"AMD's table of {kind} for {ARCH} does not have the sizes {', '.join(missing)}")
    target.write_text(json.dumps(content))  # JSON is YAML


def cut(table: Sequence[Any], sizes: Sequence[int] | None) -> list[Any]:
    """Return a table of winners with those of square products of these sizes, numbered anew.

    If `sizes` is None, all winners are kept but kernels by hand, which are not checked out.
    """
    if sizes is None:
        rows = [row for row in table[_SIZES] if not table[_SOLUTIONS][row[1][0]].get("CustomKernelName")]
    else:
        wanted = [[size, size, 1, size] for size in sizes]
        rows = [row for row in table[_SIZES] if row[0][:4] in wanted]
    used = sorted({index for _, (index, _) in rows})
    found = list(table)
    found[_SOLUTIONS] = [table[_SOLUTIONS][old] | {"SolutionIndex": new} for new, old in enumerate(used)]
    found[_SIZES] = [[size, [used.index(index), speed]] for size, (index, speed) in rows]
    return found


def _run_generator(checkout: Path, compiler: Path, work: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(_SCRIPT), str(compiler), str(work / "logic"), str(work / "made")]
    variables = {**os.environ, "PYTHONPATH": str(checkout / _GENERATOR)}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=work)
    if done.returncode:
        raise Unavailable(f"AMD's generator fails:\n{(done.stdout + done.stderr)[-2000:]}")


def _assemble(compiler: Path, work: Path, made: Path) -> None:
    """Make one code object of a run's kernels, and the table beside it."""
    (table,) = (work / "made/library").glob(f"TensileLibrary_*_Contraction_*_{ARCH}.dat")
    target = [str(compiler), "-target", "amdgcn-amd-amdhsa"]
    options = ["-x", "assembler", "-mcode-object-version=4", f"-mcpu={ARCH}", "-mwavefrontsize64", "-c"]
    objects = []
    for source in sorted((work / "made").glob("build_tmp/*/assembly/*.s")):
        objects.append(str(source.with_suffix(".o")))
        subprocess.run([*target, *options, "-o", objects[-1], str(source)], check=True)
    subprocess.run([*target, "-o", str(made / f"{table.stem}.co"), *objects], check=True)
    shutil.copy(table, made)
    shutil.copy(work / f"made/library/TensileLibrary_lazy_{ARCH}.dat", made / f"{table.stem}.master")


def _complete(made: Path, debian: Path) -> None:
    """Give the tables the form that hipBLASLt 7.1.1 reads, and make the two that lead to them."""
    masters, starts, first = [], {}, 0
    for path in sorted(made.glob("*.master")):
        table = _unpacked(path.with_suffix(".dat"))
        starts[first] = path.stem
        path.with_suffix(".dat").write_bytes(_packed(converted(table, first)))
        first += len(table["solutions"])
        masters.append(_unpacked(path))
        path.unlink()
    version = _unpacked(debian / "TensileLibrary_lazy_gfx90a.dat")["version"]
    (made / f"TensileLibrary_lazy_{ARCH}.dat").write_bytes(_packed(merged(masters) | {"version": version}))
    (made / "TensileLiteLibrary_lazy_Mapping.dat").write_bytes(_packed(starts))
    for name in ("hipblasltExtOpLibrary.dat", "hipblasltTransform.hsaco"):
        (made / name).symlink_to(debian / name)


def converted(table: Table, first: int) -> Table:
    """Return a table of TensileLite 4.33 in the form of hipBLASLt 7.1.1. Solutions are numbered from `first`.

    Sizes that are not in the table get the winner of the nearest one: so a small product can check each library.
    """
    solutions = [_converted(solution, first) for solution in table["solutions"]]
    (row,) = table["library"]["rows"]
    sizes = [size | {"index": size["index"] + first} for size in row["library"]["table"]]
    exact = row | {"library": row["library"] | {"table": sizes}}
    nearest = {"predicate": {"type": "TruePred"}, "library": exact["library"] | {"distance": "Euclidean"}}
    return {"solutions": solutions, "library": table["library"] | {"rows": [exact, nearest]}}


def _converted(solution: Table, first: int) -> Table:
    index, problem = solution["index"] + first, solution["problemPredicate"]
    kept = [each for each in problem["value"] if each["type"] != "WorkspaceCheck"]  # a predicate of the task, now
    return solution | {
        "index": index, "libraryLogicIndex": index, "taskPredicate": {"type": "WorkspaceCheck"},
        "problemPredicate": problem | {"value": kept},
        "problemType": solution["problemType"] | {"swizzleTensorA": False, "swizzleTensorB": False},
        "sizeMapping": _ADDED_TO_MAPPINGS | solution["sizeMapping"],
    }  # fmt: skip


def merged(masters: Sequence[Table]) -> Table:
    """Return one master table of several, each of which leads to the kernels of one kind of product."""
    by_ops: dict[str, Table] = {}
    for master in masters:
        (row,) = master["library"]["rows"]
        for ops, problems in row["library"]["map"].items():
            known = by_ops.setdefault(ops, problems | {"rows": []})
            known["rows"] = known["rows"] + problems["rows"]
    hardware = masters[0]["library"]
    row = hardware["rows"][0]
    return masters[0] | {"library": hardware | {"rows": [row | {"library": row["library"] | {"map": by_ops}}]}}


def _unpacked(path: Path) -> Table:
    import msgpack  # type: ignore[import-untyped]

    found: Table = msgpack.unpackb(path.read_bytes(), strict_map_key=False)
    return found


def _packed(table: Mapping[Any, Any]) -> bytes:
    import msgpack

    found: bytes = msgpack.packb(table)
    return found
