"""Selftest vectors as the builder makes them: drawn, referred to numpy, bounded, written; and every fault of a case."""

from __future__ import annotations

import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aot.write.vectors import encode_vectors, rounded
from aot_runtime.bundle.vector_files import Vectors, deviation, read_vectors
from aot_runtime.contract.records import Case, Op
from tests.support.building.builds import Project, contents
from tests.support.building.projects import KERNELS, SCALE, edit, position

REFERENCE = """\
import numpy as np


def scale(x, factor):
    return x.astype(np.float64) * factor


def scale_same_dtype(x, factor):
    return (x.astype(np.float32) * np.float32(factor)).astype(x.dtype)
"""
CASES = """\
    reference: r.py:scale
    selftest:
      - {name: small, call: {rows: 3, cols: 7, T: float16, factor: 0.1}}
      - {call: {rows: 2, cols: 32, T: float32, factor: 3}, inputs: {x: {std: 5}}, floor: 1.0e-4, seed: 9}
"""
MANIFEST = SCALE + CASES


def project(folder: Path, manifest: str = MANIFEST, reference: str = REFERENCE) -> Project:
    made = Project(folder, manifest, KERNELS)
    (folder / "r.py").write_text(reference)
    return made


def selftest(made: Project, arch: str = "gfx942") -> dict[str, tuple[Case, Vectors]]:
    """Case → what the bundle has of it."""
    index = made.bundle(arch)
    ops: dict[str, Op] = {op.name: op for op in index.ops}
    folder = made.output / f"tiny-{arch}"
    return {case.name: (case, read_vectors(folder, ops[case.op], case)) for case in index.selftest}


def fault(made: Project, *options: str) -> str:
    """What a build says of a manifest that is wrong."""
    result = made.build(*options)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    return line.removeprefix("aotbuild: error: ")


# What is built


def test_vectors_are_what_the_reference_makes_of_them(tmp_path: Path):
    made = project(tmp_path)
    assert ", 2 selftest cases" in made.build().stdout
    found = selftest(made)
    assert list(found) == ["small", "case1"]
    case, vectors = found["small"]
    x, out = vectors.inputs["x"], vectors.expected["out"]
    assert (x.dtype, x.shape, out.dtype) == (np.float16, (3, 7), np.float32)
    exact = x.astype(np.float64) * float(np.float32(0.1))  # the kernel gets the scalar in fp32
    np.testing.assert_allclose(out, exact, rtol=2.0**-19)
    assert (case.dtypes, case.scalars) == ({"T": "float16"}, {"factor": 0.1})
    same_dtype = (x.astype(np.float32) * np.float32(0.1)).astype(np.float16)
    bound = 2 * deviation(same_dtype, out).max() + 1e-6
    assert bound <= case.bounds["out"] <= 1.1 * bound


def test_std_floor_and_seed(tmp_path: Path):
    made = project(tmp_path)
    made.build()
    case, vectors = selftest(made)["case1"]
    x = vectors.inputs["x"]
    assert 3.5 < x.std() < 6.5 and vectors.expected["out"].dtype == np.float64
    assert case.bounds["out"] >= 1e-4
    made.manifest.write_text(edit(MANIFEST, ("seed: 9", "seed: 10")))
    made.build()
    assert not np.array_equal(selftest(made)["case1"][1].inputs["x"], x)


def test_what_is_left_out_is_no_error(tmp_path: Path):
    """A case whose dtype or block is filtered away; `aotbuild` says how many there are."""
    made = project(tmp_path)
    assert ", 1 selftest case (1 left out)" in made.build("--filter", "T=float16").stdout
    assert list(selftest(made)) == ["small"]
    assert ", 0 selftest cases (2 left out)" in made.build("--filter", "T=float16,BLOCK=32").stdout
    assert selftest(made) == {} and not list((made.output / "tiny-gfx942").glob("selftest/*"))


def test_an_architecture_leaves_out_what_it_does_not_compile(tmp_path: Path):
    made = project(
        tmp_path, MANIFEST.replace("    launches:", "    exclude: [arch == 'sm_90' and T == 'float32']\n    launches:")
    )
    made.build(archs=("gfx942", "sm_90"))
    assert (list(selftest(made)), list(selftest(made, "sm_90"))) == (["small", "case1"], ["small"])


def test_files_of_the_build_before_are_removed(tmp_path: Path):
    made = project(tmp_path)
    made.build()
    before = set((made.output / "tiny-gfx942/selftest").iterdir())
    made.manifest.write_text(edit(MANIFEST, ("rows: 3", "rows: 4")))
    made.build()
    after = set((made.output / "tiny-gfx942/selftest").iterdir())
    assert len(before) == len(after) == 2 and len(before & after) == 1


def test_the_same_bytes_in_another_folder(tmp_path: Path):
    first, second = project(tmp_path / "a"), project(tmp_path / "deeper" / "b")
    for made in (first, second):
        made.build("--filter", "BLOCK=16|32")
    one, other = (contents(made.output / "tiny-gfx942") for made in (first, second))
    assert one == other and sum(name.startswith("selftest/") for name in one) == 2


def test_numpy_reads_the_file(tmp_path: Path):
    made = project(tmp_path)
    made.build()
    case, vectors = selftest(made)["small"]
    with np.load(made.output / "tiny-gfx942" / case.vectors.file) as file:
        assert set(file) == {"inputs/x", "expected/out"}
        np.testing.assert_array_equal(file["inputs/x"], vectors.inputs["x"])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fnuz, np.int32, np.bool_, np.float64])
def test_encoding(dtype: type):
    """The bytes depend on the arrays alone, strides or not, and give them back."""
    whole = np.arange(24).astype(dtype).reshape(2, 3, 4)
    once, again = (encode_vectors({"a": array}, {}) for array in (whole[:, ::-1], whole[:, ::-1].copy()))
    assert once == again
    from aot_runtime.bundle.vector_files import _entries

    ((name, stored),) = _entries(once)
    assert name == "inputs/a.npy"
    np.testing.assert_array_equal(stored.view(dtype), whole[:, ::-1])


@pytest.mark.parametrize(
    ("dtype", "bits", "storage"),
    [(np.float16, 19, np.float32), (ml_dtypes.bfloat16, 16, np.float32), (ml_dtypes.float8_e4m3fnuz, 12, np.float32),
     (np.float32, 32, np.float64), (np.float64, 53, np.float64)],
)  # fmt: skip
def test_rounding_keeps_more_than_the_dtype_has(dtype: type, bits: int, storage: type):
    exact = np.random.default_rng(0).standard_normal(1000) * 10.0 ** np.arange(-3, 1).repeat(250)
    kept = rounded(exact, np.dtype(dtype))
    assert kept.dtype == storage
    error = np.abs(kept.astype(np.float64) - exact) / np.abs(exact)
    assert error.max() <= 2.0**-bits
    assert bits == 53 or error.max() > 2.0 ** -(bits + 3)


def test_rounding_keeps_what_is_not_finite():
    special = np.array([np.nan, np.inf, -np.inf, 0.0])
    np.testing.assert_array_equal(rounded(special, np.dtype(np.float16)), special.astype(np.float32))
    integers = np.array([1, -2])
    assert rounded(integers, np.dtype(np.int32)) is integers


# What is wrong with a case, and where


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("cols: 7", "colums: 7", "colums: 7",
         "op 'scale', case 'small': 'colums' is no dim, dtype variable or scalar; did you mean 'cols'?"),
        ("cols: 7, ", "", "call: {rows: 3", "the shape of 'x' does not follow from the dims: 'cols' needs cols"),
        ("cols: 7", "cols: 7.5", "cols: 7.5", "case 'small': cols is 7.5; an extent is a whole number"),
        ("cols: 7", "cols: true", "cols: true", "cols is True; an extent is a whole number"),
        ("cols: 7", "cols: 0", "call: {rows: 3", "case 'small': scale: cols is 0; allowed: 1 to"),
        ("T: float16, factor", "T: int8, factor", "call: {rows: 3", "argument 'x' is int8; allowed: float16, float32"),
        ("T: float16, factor", "T: float61, factor", "call: {rows: 3", "'float61' is no dtype; did you mean"),
        ("T: float16, factor", "factor", "call: {rows: 3", "which dtype is T? allowed: float16, float32"),
        (", factor: 0.1", "", "call: {rows: 3", "argument 'factor' is missing"),
        ("factor: 0.1", "factor: much", "call: {rows: 3", "argument 'factor' is 'much'; a number is allowed"),
        ("0.1}", "0.1}, given: [x]", "x]}\n", "case 'small': 'x' is no optional tensor"),
        ("0.1}", "0.1}, inputs: {y: {std: 2}}", "y: {std", "'y' is no input of this call; known: x"),
        ("0.1}", "0.1}, inputs: {out: {std: 2}}", "out: {std", "'out' is no input of this call"),
        ("0.1}", "0.1}, innermost: {x: rows}", "x: rows}", "'x' is no input with `innermost` dims"),
        ("0.1}", "0.1}, inputs: {x: {values: [1, 2]}}", "values: [1, 2]", "'x' is float16[3, 7]: 21 values, not 2"),
        ("0.1}", "0.1}, inputs: {x: {}}", "x: {}", "an input has either `std`, `range` or `values`"),
        ("0.1}", "0.1}, inputs: {x: {std: 1, range: [0, 1]}}", "x: {std: 1", "either `std`, `range` or `values`"),
        ("0.1}", "0.1}, inputs: {x: {range: [2, 1]}}", "x: {range", "range [2, 1]: the first is over the second"),
        ("0.1}", "0.1}, inputs: {x: {range: [1]}}", "range: [1]", "at least 2 allowed, 1 given"),
        ("0.1}", "0.1}, inputs: {x: {std: 0}}", "std: 0", "greater than 0"),
        ("0.1}", "0.1}, floors: 1", "floors: 1", "unknown key 'floors'; did you mean 'floor'?"),
        ("0.1}", "0.1}, floor: -1", "floor: -1", "greater than or equal to 0"),
        ("      - {call", "      - {name: small, call", "{name: small, call: {rows: 2",
         "another case is called 'small'"),
        ("    reference: r.py:scale\n", "", "selftest:",
         "`selftest` needs `reference: path.py:function` (given: nothing)"),
        ("r.py:scale", "r.py", "reference: r.py", "needs `reference: path.py:function` (given: r.py)"),
        ("r.py:scale", "gone.py:scale", "reference: gone", "op 'scale': file gone.py is not in"),
        ("r.py:scale", "r.py:scales", "reference: r.py", "op 'scale': r.py has no function 'scales'"),
        ("r.py:scale", "r.py:scale_same_dtype", "reference: r.py", "no function 'scale_same_dtype_same_dtype'"),
    ],
)  # fmt: skip
def test_a_faulty_case(tmp_path: Path, old: str, new: str, place: str, words: str):
    made = project(tmp_path, edit(MANIFEST, (old, new)))
    found = fault(made, "--dry-run")
    assert words in found, found
    assert found.startswith(position(made.manifest, place) + ": "), found


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("def scale():\n    def scale_same_dtype(): ...", "r.py has no function 'scale_same_dtype'"),
        ("import nowhere\nscale = scale_same_dtype = None", "file r.py cannot be imported: ModuleNotFoundError"),
        (REFERENCE.replace("(x, factor)", "(y, factor)"), "does not fit the call: missing a required argument: 'y'"),
        (REFERENCE.replace("(x, factor)", "(x, factor, more)"), "missing a required argument: 'more'"),
        (edit(REFERENCE, ("x.astype(np.float64) * factor", "x[7]")), "reference scale raised IndexError: "),
        (edit(REFERENCE, ("x.astype(np.float64) * factor", "(x, x)")),
         "reference scale gave shapes [[3, 7], [3, 7]]; the call writes out [3, 7]"),
        (edit(REFERENCE, ("x.astype(np.float64) * factor", "x.T * factor")), "gave shapes [[7, 3]]; the call writes "),
        (edit(REFERENCE, ("x.astype(np.float64) * factor", "x.__imul__(2) * factor")), "output array is read-only"),
        (edit(REFERENCE, (".astype(x.dtype)", ".astype(x.dtype) / 0")), "references disagree on what is finite"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_faulty_reference(tmp_path: Path, reference: str, words: str):
    """It shows once vectors are computed, after compiling; a bundle that was there stays as it is."""
    made = project(tmp_path)
    made.build("--filter", "BLOCK=16|32")
    before = contents(made.output)
    (tmp_path / "r.py").write_text(reference)
    assert made.build("--dry-run").exit_code == 0
    found = fault(made)
    assert words in found and found.startswith(f"{made.manifest}:"), found
    assert contents(made.output) == before


def test_a_floor_that_nothing_can_fail(tmp_path: Path):
    made = project(tmp_path, edit(MANIFEST, ("0.1}", "0.1}, floor: 1")))
    found = fault(made)
    assert "'out' could as well be 0: it is at most 1.82e-01, the bound " in found
    assert found.startswith(position(made.manifest, "{name: small") + ": ")


def test_a_reference_need_not_take_every_scalar(tmp_path: Path):
    manifest = edit(MANIFEST, ("factor: {type: fp32}", "factor: {type: fp32}\n      hint: {type: i32, default: 4}"))
    made = project(tmp_path, manifest)
    assert made.build("--dry-run").exit_code == 0


INTEGERS = """\
bundle: tiny
ops:
  pick:
    reference: r.py:pick
    tensors:
      x: {shape: [n], dtype: float32}
      starts: {shape: [m + 1], dtype: int8}
      mask: {shape: [n], dtype: bool, optional: true}
      out: {shape: [n], dtype: int32, role: output}
    constexprs:
      MASKED: {values: [false, true], pick: given(mask)}
    launches:
      - kernel: k.py:pick
        grid: [1]
    selftest:
      - call: {n: 40, m: 29}
        inputs: {starts: {range: [-2, 3]}}
"""
PICK = """\
import triton
import triton.language as tl


@triton.jit
def pick(x, starts, mask, out, n, m, MASKED: tl.constexpr):
    i = tl.arange(0, 64)
    tl.store(out + i, i, mask=i < n)
"""
PICK_REFERENCE = """\
import numpy as np


def pick(x, starts, mask=None):
    return np.arange(len(x)) if mask is None else np.where(mask, np.arange(len(x)) - 0.5, starts[0])


def pick_same_dtype(x, starts, mask=None):
    return np.rint(pick(x, starts, mask)).astype(np.int32)
"""


def picks(folder: Path, *changes: tuple[str, str]) -> Project:
    made = Project(folder, edit(INTEGERS, *changes), PICK)
    (folder / "r.py").write_text(PICK_REFERENCE)
    return made


def test_integers(tmp_path: Path):
    made = picks(tmp_path)
    result = made.build()
    assert result.exit_code == 0, result.stderr
    ((case, vectors),) = selftest(made).values()
    starts = vectors.inputs["starts"]
    assert starts.dtype == np.int8 and starts.shape == (30,)
    assert set(starts.tolist()) == {-2, -1, 0, 1, 2, 3}, "both ends are drawn"
    assert "mask" not in vectors.inputs
    np.testing.assert_array_equal(vectors.expected["out"], np.arange(40))
    assert case.bounds == {"out": 1e-6}


def test_an_optional_tensor_and_an_exact_result_between_integers(tmp_path: Path):
    masked = "{starts: {range: [-2, 3]}, mask: {range: [0, 1]}}\n        given: [mask]"
    made = picks(tmp_path, ("{starts: {range: [-2, 3]}}", masked))
    result = made.build()
    assert result.exit_code == 0, result.stderr
    ((case, vectors),) = selftest(made).values()
    assert set(vectors.inputs["mask"].tolist()) == {False, True}
    assert vectors.expected["out"].dtype == np.float64 and case.bounds["out"] == 1.1


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ("{}", "'starts' is int8, which has no normal random numbers: say `{range: [low, high]}` or `{values: […]}`"),
        ("{starts: {std: 1}}", "'starts' is int8, which has no normal random numbers"),
        ("{starts: {range: [0, 128]}}", "'starts' cannot be 128: int8 has whole numbers from -128 to 127"),
        ("{starts: {range: [0.5, 3]}}", "'starts' cannot be 0.5: int8 has whole numbers"),
        ("{starts: {values: [1.5]}}", "'starts' is int8[30]: 30 values, not 1"),
        (f"{{starts: {{values: {[0] * 29 + [1.5]}}}}}", "'starts' cannot be 1.5"),
        (f"{{starts: {{values: {[0] * 29 + ['x']}}}}}", "the values of 'starts' are not all numbers"),
        ("{mask: {range: [0, 1]}}", "'mask' is no input of this call; known: starts, x"),
    ],
)  # fmt: skip
def test_faulty_inputs(tmp_path: Path, inputs: str, words: str):
    made = picks(tmp_path, ("{starts: {range: [-2, 3]}}", inputs))
    assert words in fault(made, "--dry-run")


def test_too_large_a_case(tmp_path: Path):
    made = project(tmp_path, edit(MANIFEST, ("rows: 2, cols: 32", "rows: 60000, cols: 32")))
    assert "bytes; at most 16777216 are allowed" in fault(made)


def test_a_call_that_depends_on_the_device(tmp_path: Path):
    """What few and what many compute units need must be there; else the case is left out."""
    manifest = edit(MANIFEST, ("pick: smallest >= cols", "pick: 16 if num_cus < 200 else 32"), ("cols: 32", "cols: 16"))
    made = project(tmp_path, manifest)
    made.build()
    assert list(selftest(made)) == ["small", "case1"]
    made.build("--filter", "BLOCK=16")
    assert selftest(made) == {}


def test_an_op_whose_dims_are_all_constant(tmp_path: Path):
    made = picks(
        tmp_path, ("x: {shape: [n]", "x: {shape: [40]"), ("starts: {shape: [m + 1]", "starts: {shape: [30]"),
        ("mask: {shape: [n]", "mask: {shape: [40]"), ("out: {shape: [n]", "out: {shape: [40]"),
        ("grid: [1]", "grid: [1]\n        bind: {n: 40, m: 29}"), ("call: {n: 40, m: 29}", "call: {}"),
    )  # fmt: skip
    result = made.build()
    assert result.exit_code == 0, result.stderr
    assert selftest(made)["case0"][1].inputs["x"].shape == (40,)


# When vectors are computed, and when those of a build before are taken


class Counted:
    """A project whose reference leaves a mark whenever it is imported."""

    def __init__(self, folder: Path, reference: str = REFERENCE):
        self.log = folder / "imports.log"
        self.made = project(folder)
        self.write(reference)

    def write(self, reference: str) -> None:
        (self.made.folder / "r.py").write_text(reference + f"\nopen({str(self.log)!r}, 'a').write('x')\n")

    def computed(self, *options: str) -> bool:
        """Whether a build computes vectors."""
        self.log.write_text("")
        result = self.made.build(*options)
        assert result.exit_code == 0, result.output
        return bool(self.log.read_text())


def test_vectors_are_computed_once(tmp_path: Path):
    counted = Counted(tmp_path)
    assert not counted.computed("--dry-run"), "planning makes no arrays"
    assert counted.computed()
    before = contents(counted.made.output)
    assert not counted.computed() and contents(counted.made.output) == before
    shutil.rmtree(counted.made.output)
    assert not counted.computed() and contents(counted.made.output) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("factor: 0.1", "factor: 0.2"),
        ("rows: 3", "rows: 4"),
        ("{std: 5}", "{std: 6}"),
        ("{std: 5}", "{range: [5, 6]}"),
        ("name: small", "name: other"),
        ("seed: 9", "seed: 10"),
        ("1.0e-4", "1.0e-3"),
        ("T: float16, factor", "T: float32, factor"),
        ("r.py:scale", "r.py:again"),
    ],
)
def test_what_a_case_says_is_computed_anew(tmp_path: Path, old: str, new: str):
    counted = Counted(tmp_path, REFERENCE + "\nagain, again_same_dtype = scale, scale_same_dtype\n")
    assert counted.computed()
    counted.made.manifest.write_text(edit(MANIFEST, (old, new)))
    assert counted.computed()
    counted.made.manifest.write_text(MANIFEST)
    assert not counted.computed()


IMPORTS = {
    "from helper import twice": ("helper.py", "twice = 2"),
    "import helper\ntwice = helper.twice": ("helper.py", "twice = 2"),
    "from parts import helper\ntwice = helper.twice": ("parts/helper.py", "twice = 2"),
    "from parts.helper import twice": ("parts/__init__.py", ""),
}


@pytest.mark.parametrize("line", IMPORTS)
def test_what_a_reference_imports_is_part_of_it(tmp_path: Path, line: str):
    for name in ("helper.py", "parts/helper.py", "parts/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("twice = 2\n")
    counted = Counted(tmp_path, f"{line}\n{REFERENCE.replace('* factor', '* factor * twice / 2')}")
    assert counted.computed() and not counted.computed()
    name, _ = IMPORTS[line]
    (tmp_path / name).write_text("twice = 3 - 1\n")
    assert counted.computed() and not counted.computed()


def test_a_module_that_the_text_does_not_show_is_looked_at_each_time(tmp_path: Path):
    (tmp_path / "helper.py").write_text("twice = 2\n")
    hidden = "import importlib\ntwice = importlib.import_module('hel' + 'per').twice\n"
    counted = Counted(tmp_path, hidden + REFERENCE.replace("* factor", "* factor * twice / 2"))
    assert counted.computed() and counted.computed()


def test_vectors_in_the_cache_that_were_altered_are_computed_anew(tmp_path: Path):
    counted = Counted(tmp_path)
    counted.computed()
    before = contents(counted.made.output)
    for path in (counted.made.cache / "vectors-v1").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1] + b"!")
    shutil.rmtree(counted.made.output)
    assert counted.computed() and contents(counted.made.output) == before
