"""Selftest vectors in the builder: random inputs, numpy references, error bounds, files."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

from aot.cache.layered_cache import sealed
from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import plan_bundle
from aot.targets import Target
from aot.write.vectors import CaseVectors, VectorCache, case_vectors, encode_vectors, rounded
from aot_runtime.bundle.vector_files import Vectors, _entries, deviation, read_vectors
from aot_runtime.contract import records
from aot_runtime.contract.records import Case
from tests.support.building.builds import Project, contents
from tests.support.building.projects import edit, unmarked
from tests.support.building.selftests import INTEGERS, REFERENCE, SCALE_CASES, picks, project


def made_vectors(made: Project) -> list[CaseVectors]:
    """Compute the vectors of a project's cases, with its cache."""
    bundle = plan_bundle(load_manifest(made.manifest), Target("gfx942"), {}, False)
    return list(case_vectors(bundle.cases, VectorCache(made.cache)))


def read_back(made: Project) -> dict[str, tuple[Case, Vectors]]:
    """Return the vectors of each case as a reader of the bundle gets them."""
    (op,) = plan_bundle(load_manifest(made.manifest), Target("gfx942"), {}, False).ops
    found = {}
    for item in made_vectors(made):
        path = made.output / item.case.vectors.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(item.content)
        found[item.case.name] = item.case, read_vectors(made.output, op, item.case)
    return found


def test_vectors_are_what_the_reference_makes_of_them(tmp_path: Path):
    made = project(tmp_path)
    found = read_back(made)
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
    with np.load(made.output / case.vectors.file) as file:
        assert set(file) == {"inputs/x", "expected/out"}
        np.testing.assert_array_equal(file["inputs/x"], x)
    case, vectors = found["case1"]  # with a std, a floor and a seed
    x = vectors.inputs["x"]
    assert 3.5 < x.std() < 6.5 and vectors.expected["out"].dtype == np.float64
    assert case.bounds["out"] >= 1e-4
    made.manifest.write_text(edit(SCALE_CASES, ("seed: 9", "seed: 10")))
    assert not np.array_equal(read_back(made)["case1"][1].inputs["x"], x)
    assert made_vectors(project(tmp_path / "deeper" / "b"))[0].content == made_vectors(made)[0].content


def test_integers(tmp_path: Path):
    ((case, vectors),) = read_back(picks(tmp_path)).values()
    starts = vectors.inputs["starts"]
    assert starts.dtype == np.int8 and starts.shape == (30,) and "mask" not in vectors.inputs
    assert set(starts.tolist()) == {-2, -1, 0, 1, 2, 3}, "both ends are drawn"
    np.testing.assert_array_equal(vectors.expected["out"], np.arange(40))
    assert case.bounds == {"out": 1e-6}


def test_an_optional_tensor_stated_values_and_an_exact_result_between_integers(tmp_path: Path):
    """Among the cases is an op that has constant dims only."""
    inputs = "{starts: {values: [5, -128, 127]}, mask: {range: [0, 1]}}\n        given: [mask]"
    changes = ("{starts: {range: [-2, 3]}}", inputs), ("grid: [1]", "grid: [1]\n        bind: {n: 40, m: 2}")
    text = edit(INTEGERS, *changes).replace("[n]", "[40]").replace("[m + 1]", "[3]").replace("{n: 40, m: 29}", "{}")
    ((case, vectors),) = read_back(picks(tmp_path, text)).values()
    assert vectors.inputs["x"].shape == (40,) and vectors.inputs["starts"].tolist() == [5, -128, 127]
    assert set(vectors.inputs["mask"].tolist()) == {False, True}
    assert vectors.expected["out"].dtype == np.float64 and case.bounds["out"] == 1.1


def test_encoding():
    """The bytes depend on the arrays alone, not on their strides, and decode to the same arrays."""
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fnuz, np.int32, np.bool_, np.float64):
        array = np.arange(24).astype(dtype).reshape(2, 3, 4)[:, ::-1]
        once = encode_vectors({"a": array}, {})
        ((name, stored),) = _entries(once)
        assert once == encode_vectors({"a": array.copy()}, {}) and name == "inputs/a.npy"
        np.testing.assert_array_equal(stored.view(dtype), array)


def test_rounding_keeps_more_than_the_dtype_has():
    exact = np.random.default_rng(0).standard_normal(1000) * 10.0 ** np.arange(-3, 1).repeat(250)
    significands = {
        np.float16: 19,
        ml_dtypes.bfloat16: 16,
        ml_dtypes.float8_e4m3fnuz: 12,
        np.float32: 32,
        np.float64: 53,
    }
    for dtype, bits in significands.items():
        kept = rounded(exact, np.dtype(dtype))
        assert kept.dtype == (np.float32 if bits < 24 else np.float64)
        error = np.abs(kept.astype(np.float64) - exact) / np.abs(exact)
        assert error.max() <= 2.0**-bits and (bits == 53 or error.max() > 2.0 ** -(bits + 3))
    special = np.array([np.nan, np.inf, -np.inf, 0.0])
    np.testing.assert_array_equal(rounded(special, np.dtype(np.float16)), special.astype(np.float32))
    integers = np.array([1, -2])
    assert rounded(integers, np.dtype(np.int32)) is integers


# What is wrong


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("def scale():\n    def scale_same_dtype(): ...", "r.py has no function 'scale_same_dtype'"),
        ("import nowhere\nscale = scale_same_dtype = None", "file r.py cannot be imported: ModuleNotFoundError"),
        (REFERENCE.replace("(x, factor)", "(y, factor)"), "does not match the call: missing a required argument: 'y'"),
        (REFERENCE.replace("(x, factor)", "(x, factor, more)"), "missing a required argument: 'more'"),
        ("x[7]", "reference scale raised IndexError: "),
        ("(x, x)", "reference scale gave shapes [[3, 7], [3, 7]]; the call needs out [3, 7]"),
        ("x.T * factor", "gave shapes [[7, 3]]; the call needs "),
        ("x.__imul__(2) * factor", "output array is read-only"),
        (
            REFERENCE.replace(".astype(x.dtype)", ".astype(x.dtype) / 0"),
            "references disagree on which values are finite",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_faulty_reference(tmp_path: Path, reference: str, words: str):
    """The fault is reported when vectors are computed."""
    if "scale" not in reference:
        reference = edit(REFERENCE, ("x.astype(np.float64) * factor", reference))
    with pytest.raises(ManifestError) as caught:
        made_vectors(project(tmp_path, reference=reference))
    (found,) = caught.value.messages
    assert words in found and found.startswith(f"{tmp_path / 'm.yaml'}:")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "{name: small, call",
            "@{name: small, floor: 1, call",
            "'out' is too small to test: its values are at most 1.82e-01, the error bound ",
        ),
        ("call: {rows: 2, cols: 32", "@call: {rows: 60000, cols: 32", "bytes; at most 16777216 are allowed"),
    ],
)
def test_cases_of_no_use(tmp_path: Path, old: str, new: str, words: str):
    """A case is refused if nothing can exceed its floor, or if its vectors are too large for a reader."""
    place, text = unmarked(edit(SCALE_CASES, (old, new)))
    with pytest.raises(ManifestError) as caught:
        made_vectors(project(tmp_path, text))
    (found,) = caught.value.messages
    assert words in found and found.startswith(f"{tmp_path / 'm.yaml'}:{place}: ")


# When vectors are computed, and when those of a build before are taken


class Counted:
    """A project whose reference leaves a mark whenever it is imported."""

    def __init__(self, folder: Path, reference: str = REFERENCE):
        self.log = folder / "imports.log"
        mark = f"\nopen({str(self.log)!r}, 'a').write('x')\n"
        self.made = project(folder, reference=reference + mark)

    def computed(self) -> bool:
        """Return True if vectors have to be computed."""
        self.log.write_text("")
        made_vectors(self.made)
        return bool(self.log.read_text())


def test_vectors_are_computed_once(tmp_path: Path):
    """They are computed again only if those in the cache were altered."""
    counted = Counted(tmp_path)
    assert counted.computed()
    before = made_vectors(counted.made)
    assert not counted.computed() and made_vectors(counted.made) == before
    for path in (counted.made.cache / "vectors-v1").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert counted.computed() and made_vectors(counted.made) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("factor: 0.1", "factor: 0.2"),
        ("rows: 3", "rows: 4"),
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
    counted.made.manifest.write_text(edit(SCALE_CASES, (old, new)))
    assert counted.computed()
    counted.made.manifest.write_text(SCALE_CASES)
    assert not counted.computed()


TWICE = REFERENCE.replace("* factor", "* factor * twice / 2")


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("from helper import twice", "helper.py"),
        ("import helper\ntwice = helper.twice", "helper.py"),
        ("from parts import helper\ntwice = helper.twice", "parts/helper.py"),
        ("from parts.helper import twice", "parts/__init__.py"),
        # What the text does not show is looked at each time.
        ("import importlib\ntwice = importlib.import_module('hel' + 'per').twice", ""),
    ],
)
def test_what_a_reference_imports_is_part_of_it(tmp_path: Path, line: str, file: str):
    for name in ("helper.py", "parts/helper.py", "parts/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("twice = 2\n")
    counted = Counted(tmp_path, f"{line}\n{TWICE}")
    assert counted.computed() and counted.computed() == (not file)
    if file:
        (tmp_path / file).write_text("twice = 3 - 1\n")
        assert counted.computed() and not counted.computed()


# In a build


def test_a_build_with_cases(tmp_path: Path):
    """If a reference is wrong, an older bundle stays as it was."""
    made = project(tmp_path)
    assert ", 1 selftest case (1 more need variants that are not built)" in made.build("--filter", "T=float16").stdout
    assert ", 2 selftest cases" in made.build().stdout
    before = set((made.folder_of() / "selftest").iterdir())
    made.manifest.write_text(edit(SCALE_CASES, ("rows: 3", "rows: 4")))
    made.build()
    after = set((made.folder_of() / "selftest").iterdir())
    index = made.bundle()
    assert len(before) == len(after) == 2 and len(before & after) == 1
    assert {made.folder_of() / case.vectors.file for case in index.selftest} == after
    files = contents(made.output)
    (tmp_path / "r.py").write_text("def scale(): ...\n\n\ndef scale_same_dtype(): ...\n")
    assert made.build("--dry-run").exit_code == 0, "planning makes no arrays"
    result = made.build()
    assert result.exit_code == 2 and "does not match the call" in result.stderr
    assert contents(made.output) == files


def test_an_entry_of_the_cache_whose_file_is_another_is_a_miss(tmp_path: Path):
    """The digest is right: anyone who may write to a cache can compute it."""
    (vectors, *_), cache, key = made_vectors(project(tmp_path)), VectorCache(tmp_path / "forged"), "ab" * 32
    cache.put(key, dataclasses.replace(vectors, content=vectors.content + b"x"))
    assert cache.get(key) is None
    cache.put(key, vectors)
    assert cache.get(key) == vectors


def file(name: str) -> Callable[[CaseVectors], CaseVectors]:
    return lambda made: of_case(vectors=msgspec.structs.replace(made.case.vectors, file=name))(made)


def of_case(**fields: Any) -> Callable[[CaseVectors], CaseVectors]:
    return lambda made: dataclasses.replace(made, case=msgspec.structs.replace(made.case, **fields))


def arrays(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Callable[[CaseVectors], CaseVectors]:
    """Put other arrays in a file whose name and digest are right."""

    def forge(made: CaseVectors) -> CaseVectors:
        stored = {name: array.copy() for name, array in _entries(made.content)}
        groups = [{name[len(at) + 1 : -4]: stored[name] for name in stored if name.startswith(at)} for at in GROUPS]
        change(*groups)
        content = encode_vectors(*groups)
        digest = hashlib.sha256(content).hexdigest()
        blob = records.Blob(f"selftest/{digest[:16]}.npz", len(content), digest)
        return dataclasses.replace(of_case(vectors=blob)(made), content=content)

    return forge


GROUPS = ("inputs", "expected")
FORGED: dict[str, Callable[[CaseVectors], CaseVectors]] = {
    "a file above": file("../../../outside"),
    "the index": file("bundle.json"),
    "another op": of_case(op="other"),
    "another name": of_case(name="\x1b[2J"),
    "other dtypes": of_case(dtypes={"T": "float64"}),
    "other scalars": of_case(scalars={"rows": 7}),
    "no bounds": of_case(bounds={}),
    "NaN as a bound": lambda made: of_case(bounds=dict.fromkeys(made.case.bounds, float("nan")))(made),
    "a bound for more": lambda made: of_case(bounds={**made.case.bounds, "x": 1.0})(made),
    "an input less": arrays(lambda inputs, expected: inputs.popitem()),
    "a result more": arrays(lambda inputs, expected: expected.update(more=np.zeros(3))),
    "another shape": arrays(lambda inputs, expected: inputs.update({n: a[:1] for n, a in [*inputs.items()][:1]})),
    "another dtype": arrays(lambda inputs, expected: inputs.update({n: a.astype("f8") for n, a in inputs.items()})),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_vectors_are_named_and_computed_again(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
):  # fmt: skip
    """The paths in their index are ignored: the recipe determines where files are written."""
    made = project(tmp_path)
    bundle = plan_bundle(load_manifest(made.manifest), Target("gfx942"), {}, False)
    right = made_vectors(made)
    entry = min(made.cache.glob("vectors-v1/*/*"))
    key, cache = entry.name, VectorCache(made.cache)
    found = cache.get(key)
    assert found is not None and found in right
    body = msgspec.msgpack.encode(FORGED[name](found))
    entry.write_bytes(sealed(key, body))
    assert list(case_vectors(bundle.cases, cache)) == right
    (told,) = [record.message for record in caplog.records]
    assert f"entry vectors-v1/{key[:2]}/{key} " in told and told.endswith("; it is not used")
    assert list(case_vectors(bundle.cases, VectorCache(made.cache))) == right and len(caplog.records) == 1
