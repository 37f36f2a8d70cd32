"""The self-test on the emulator: bundles as they are built pass, and faults in code and in vectors are noticed."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pty
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import strategies as st

from aot_runtime import ArgumentError, Bundle, BundleError, NoVectorsError, open_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.bundle.vector_files import deviation, read_vectors
from aot_runtime.bundle.verification import verify_bundle
from aot_runtime.call.selftests import Report
from aot_runtime.command.main import main
from aot_runtime.contract.records import Blob, Case
from tests.support.emulated_launches import open_emulated
from tests.support.forging import adopt_files, edit_index
from tests.support.fuzzing import fuzz
from tests.support.reference_launches import with_bundles


def emulated(folder: Path) -> Bundle:
    return open_bundle(folder, device="emulator")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["selftest", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def rows(bundles: Path, tmp_path: Path) -> Path:
    """A copy of rows-gfx942 that a test may damage."""
    return Path(shutil.copytree(bundles / "rows-gfx942", tmp_path / "rows-gfx942"))


def case_of(folder: Path, name: str) -> Case:
    return next(case for case in read_index(folder).selftest if case.name == name)


def vectors_of(folder: Path, name: str) -> Path:
    return folder / case_of(folder, name).vectors.file


def faults(report: Report) -> dict[str, str]:
    """Case → what is wrong with it, of those that failed."""
    return {
        result.case: "; ".join(filter(None, [result.fault, *(output.fault for output in result.outputs)]))
        for result in report.results
        if not result.passed
    }


# What is sound passes


def test_every_op_of_the_small_bundle(bundles: Path):
    """Two launches, several outputs, an inout, an optional tensor, a choice, integers."""
    report = emulated(bundles / "small-gfx942").selftest()
    assert report.passed and report.arch == "gfx942"
    found = {(item.op, item.case): item for item in report.results}
    assert [output.name for output in found["row_sums", "case0"].outputs] == ["total", "largest"]
    assert [launch.symbol for launch in found["row_sums", "case0"].launches] == ["partial_sums", "add_partial"]
    assert [output.name for output in found["accumulate", "ragged"].outputs] == ["state"]
    negated = found["affine", "negated"].launches[0]
    assert negated.axis_values == {"T": "float32", "HAS_BIAS": True, "NEGATED": True}
    assert (negated.aligned, negated.config) == (False, "wide")
    assert len(found) == 6
    for output in (output for item in report.results for output in item.outputs):
        assert 0 <= output.error <= output.bound < 0.01


def test_softmax_reaches_different_variants(bundles: Path):
    report = emulated(bundles / "rows-gfx942").selftest("softmax")
    assert faults(report) == {}
    cases = ["short", "aligned", "steep", "two_pass", "masked", "masked_aligned"]
    assert [result.case for result in report.results] == cases
    assert len({result.launches[0].file for result in report.results}) == 5
    assert all(result.outputs[0].error > 0 for result in report.results), "rounding leaves some error"


def test_attention(bundles: Path):
    """The cases that a bundle of float16 and head_dim 64 serves; the others are left out."""
    report = emulated(bundles / "attention-gfx942").selftest()
    cases = {"ragged", "padded", "window", "biased", "capped", "persistent"}
    assert report.passed and {result.case for result in report.results} == cases
    assert {launch.aligned for result in report.results for launch in result.launches} == {True, False}


@with_bundles()
def test_through_the_driver_of_gpus(folder: str):
    """hip-python and the double of libamdhip64, whose launches the emulator carries out."""
    for name in ("rows", "small"):
        bundle, launches = open_emulated(folder, name)
        report = bundle.selftest()
        assert report.passed, faults(report)
        assert len(launches.done) >= len(report.results) and report.device.startswith("hip:0 ")


# The command


def test_text(bundles: Path):
    result = run(bundles / "small-gfx942", "--device", "emulator", "--op", "row_sums")
    assert result.exit_code == 0 and result.stderr == ""
    head, *lines, last = result.stdout.splitlines()
    assert head.startswith("bundle small for gfx942, id ") and "on emulator:0 (" in head
    assert lines[0] == (
        "ok      row_sums case0: partial_sums[RETURN_LARGEST] general, config0 + "
        "add_partial[RETURN_LARGEST] general, config0"
    )
    assert lines[1].startswith("        total: error ")
    assert lines[2].startswith("        largest: error 0.00e+00, bound ")
    assert lines[3] == "ok      row_sums case1: partial_sums aligned, config0 + add_partial aligned, config0"
    assert last == "all 2 cases pass"


def test_json(bundles: Path):
    result = run(bundles / "rows-gfx942", "--device", "emulator", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    index = read_index(bundles / "rows-gfx942")
    assert (report["id"], report["arch"], report["passed"]) == (index.id, "gfx942", True)
    for item, case in zip(report["results"], index.selftest, strict=True):
        assert (item["op"], item["case"], item["passed"]) == (case.op, case.name, True)
        assert {output["name"]: output["bound"] for output in item["outputs"]} == case.bounds
        assert item["launches"][0]["symbol"] == ("softmax_long_rows" if case.name == "two_pass" else "softmax_rows")


def test_a_terminal_shows_what_is_going_on(bundles: Path):
    ours, theirs = pty.openpty()
    command = "from aot_runtime.command.main import main; main()"
    arguments = ["selftest", str(bundles / "small-gfx942"), "--device", "emulator", "--op", "row_sums"]
    try:
        done = subprocess.run(
            [sys.executable, "-c", command, *arguments], stdout=subprocess.PIPE, stderr=theirs, text=True, check=True
        )
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert shown == "1/2 row_sums case0\r\x1b[K2/2 row_sums case1\r\x1b[K"
    assert done.stdout == run(*arguments[1:]).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "hip"), "AMD GPUs need"),
        (("--device", "emulator:gfx908"), "emulator has no gfx908 device"),
        (
            ("--device", "emulator:gfx90a"),
            "is for gfx942, but emulator:2 (AMD Instinct MI250X, one die, emulated) is gfx90a",
        ),
        (("--device", "hip:x"), "'hip:x' is not a device"),
        (("--device", "emulator", "--op", "sofmax"), "no op 'sofmax'; did you mean 'softmax'?"),
        (("--bogus",), "No such option"),
    ],
)
def test_what_cannot_be_tested_is_status_2(
    bundles: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], words: str
):
    for name in ("ROCM_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    result = run(bundles / "rows-gfx942", *arguments)
    assert result.exit_code == 2 and words in result.stderr and result.stdout == ""


def test_a_bundle_for_another_device_is_status_2(rows: Path):
    edit_index(rows, lambda index: index["target"].update(arch="gfx950"))
    result = run(rows, "--device", "emulator:gfx942")
    assert result.exit_code == 2 and "is for gfx950, but emulator:0" in result.stderr


def test_a_bundle_without_vectors_says_so(rows: Path):
    """As every bundle was before there were any."""
    edit_index(rows, lambda index: index.pop("selftest"))
    shutil.rmtree(rows / "selftest")
    assert verify_bundle(rows) == []
    with pytest.raises(NoVectorsError, match="bundle 'rows' has no selftest vectors: its manifest has no `selftest`"):
        emulated(rows).selftest()
    result = run(rows, "--device", "emulator")
    assert result.exit_code == 2 and "has no selftest vectors" in result.stderr


def test_an_op_without_vectors_says_so(bundles: Path, tmp_path: Path):
    small = Path(shutil.copytree(bundles / "small-gfx942", tmp_path / "small-gfx942"))
    edit_index(small, lambda index: index.update(selftest=[c for c in index["selftest"] if c["op"] != "affine"]))
    with pytest.raises(NoVectorsError, match="op 'affine' of bundle 'small' has no selftest vectors"):
        emulated(small).selftest("affine")
    with pytest.raises(ArgumentError, match="no op 'afine'; did you mean 'affine'"):
        emulated(small).selftest("afine")
    assert emulated(small).selftest("accumulate").passed


# Faults of the code


def v_exp(word: int) -> bool:
    """v_exp_f32: VOP1, opcode 0x20."""
    return word >> 25 == 0x3F and word >> 9 & 0xFF == 0x20


def global_store(word: int) -> bool:
    """Any store of the encodings FLAT, GLOBAL and SCRATCH (opcodes 0x18 to 0x1f), or of MUBUF."""
    flat = word >> 26 == 0x37 and 0x18 <= word >> 18 & 0x7F <= 0x1F
    return flat or (word >> 26 == 0x38 and 0x18 <= word >> 18 & 0x7F <= 0x1F)


def change_code(folder: Path, case: str, wanted: Callable[[int], bool], change: Callable[[int], int]) -> None:
    """Change every instruction word of a kind in the code object that a case launches; the index then adopts it."""
    launched = next(item for item in emulated(folder).selftest().results if item.case == case).launches[0]
    path = folder / launched.file
    image = bytearray(path.read_bytes())
    words = np.frombuffer(image, "<u4", len(image) // 4)
    places = [at for at, word in enumerate(words.tolist()) if wanted(word)]
    assert places
    for at in places:
        words[at] = change(int(words[at]))
    path.write_bytes(image)
    adopt_files(folder)


def test_another_instruction(rows: Path):
    """One bit of an opcode makes v_log_f32 of v_exp_f32: hashes fit, nothing crashes, and the numbers are wrong."""
    change_code(rows, "short", v_exp, lambda word: word ^ 1 << 9)
    report = emulated(rows).selftest()
    assert set(faults(report)) == {"short", "masked"}, "one code object serves both"
    assert "elements beyond the bound, first at [0, " in faults(report)["short"]
    result = run(rows, "--device", "emulator")
    assert result.exit_code == 1
    assert "FAILED  softmax short: softmax_rows[float16 BLOCK=512 ONE_PASS HAS_MASK] general, several" in result.stdout
    assert result.stdout.endswith("2 of 6 cases FAILED\n")
    data = json.loads(run(rows, "--device", "emulator", "--json").stdout)
    assert not data["passed"]
    assert [item["case"] for item in data["results"] if not item["passed"]] == ["short", "masked"]


def test_results_that_are_not_written(rows: Path):
    """Stores become loads; what was in the output beforehand is NaN, which no bound lets pass."""
    change_code(rows, "aligned", global_store, lambda word: word ^ 0x08 << 18)
    report = emulated(rows).selftest()
    assert set(faults(report)) == {"aligned"} and "768 of 768 elements" in faults(report)["aligned"]
    (output,) = report.results[1].outputs
    assert output.error == math.inf
    data = json.loads(run(rows, "--device", "emulator", "--json").stdout)
    assert data["results"][1]["outputs"][0]["error"] is None


def test_altered_code_that_the_index_does_not_adopt(rows: Path):
    for path in (rows / "code").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    found = faults(emulated(rows).selftest())
    assert len(found) == 6 and all("was altered: its size or sha256" in fault for fault in found.values())


def kernarg(name: str, value: str) -> Callable[[dict[str, Any]], None]:
    def edit(index: dict[str, Any]) -> None:
        for variant in index["variants"]:
            for arg in variant["kernargs"]:
                if arg["name"] == name:
                    arg["value"] = value

    return edit


def test_one_element_too_many(rows: Path):
    """The last row then ends in the guard zone: what it is made of is NaN, and what is written there is not."""
    edit_index(rows, kernarg("cols", "cols + 1"))
    found = faults(emulated(rows).selftest())
    assert "something was written outside of the array" in found["short"]
    assert "elements beyond the bound" in found["short"]


def test_an_input_that_is_written_to(bundles: Path, tmp_path: Path):
    """The kernel gets its input as the output too."""
    small = Path(shutil.copytree(bundles / "small-gfx942", tmp_path / "small-gfx942"))
    edit_index(small, kernarg("out", "x"))
    report = emulated(small).selftest("scale_segments")
    assert "inputs were written to: x; 180 of 180 elements beyond the bound" in faults(report)["an_empty_one"]


def test_one_row_too_few(bundles: Path, tmp_path: Path):
    small = Path(shutil.copytree(bundles / "small-gfx942", tmp_path / "small-gfx942"))
    edit_index(small, lambda index: index["ops"][0]["launches"][0]["grid"].__setitem__(0, "rows - 1"))
    report = emulated(small).selftest()
    assert set(faults(report)) == {"plain", "negated"}
    assert faults(report)["negated"].startswith("150 of 450 elements beyond the bound, first at [2, 0]: nan, expected ")


def test_a_call_that_is_refused_fails_and_the_others_go_on(rows: Path):
    edit_index(rows, lambda index: index["variants"].clear())
    found = faults(emulated(rows).selftest())
    assert len(found) == 6 and all(fault.startswith("NoVariantError: softmax: no variant") for fault in found.values())


def test_a_kernel_that_faults(rows: Path):
    """The emulator stops an access outside of every allocation; that is a failed case, and not an end of the run."""
    edit_index(rows, kernarg("x.stride_rows", "1048576"))
    found = faults(emulated(rows).selftest())
    assert "two_pass" not in found and found["short"].startswith("MemoryAccessError: ")


# Faults of the vectors


def rewrite(path: Path, edit: Callable[[dict[str, np.ndarray]], Any], save: Callable[..., None] = np.savez) -> None:
    """Change the arrays of a vector file."""
    with np.load(path) as file:
        arrays = dict(file)
    edit(arrays)
    save(path, **arrays)


def test_one_altered_result(rows: Path):
    """A forger who has hashes and id right is still contradicted by the device."""

    def edit(arrays: dict[str, np.ndarray]) -> None:
        arrays["expected/out"][3, 7] += 2 * case_of(rows, "short").bounds["out"]

    rewrite(vectors_of(rows, "short"), edit)
    adopt_files(rows)
    report = emulated(rows).selftest()
    assert faults(report)["short"].startswith("1 of 165 elements beyond the bound, first at [3, 7]: ")
    assert set(faults(report)) == {"short"}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_result_that_is_not_finite_is_no_wildcard(rows: Path, value: float):
    rewrite(vectors_of(rows, "short"), lambda arrays: arrays["expected/out"].__setitem__((3, 7), value))
    adopt_files(rows)
    assert faults(emulated(rows).selftest())["short"].startswith("1 of 165 elements beyond the bound")


def test_altered_vectors_are_an_integrity_error(rows: Path):
    path = vectors_of(rows, "steep")
    content = bytearray(path.read_bytes())
    content[-400] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleError, match=rf"selftest vectors .*{path.name} was altered: its size or sha256"):
        emulated(rows).selftest()
    (fault,) = verify_bundle(rows)
    assert fault.startswith(f"selftest vectors {path} was altered")
    result = run(rows, "--device", "emulator")
    assert result.exit_code == 1 and "was altered" in result.stderr and result.stdout == ""
    path.unlink()
    with pytest.raises(BundleError, match=r"selftest vectors .* cannot be read: No such file"):
        emulated(rows).selftest()


def test_a_stray_file_is_a_fault_for_verify(rows: Path):
    (rows / "selftest/more.npz").write_bytes(b"")
    assert verify_bundle(rows) == ["selftest/more.npz is not in the index"]


def raw(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def objects(arrays: dict[str, Any]) -> None:
    arrays["inputs/x"] = np.array([{"a": 1}], dtype=object)


def zipped(*entries: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return stream.getvalue()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


X, OUT = npy(np.zeros((5, 33), np.float16)), npy(np.zeros((5, 33), np.float32))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: raw(path, path.read_bytes()[:-100]), "malformed"),
        (lambda path: raw(path, path.read_bytes()[: len(path.read_bytes()) // 2]), "malformed: File is not a zip file"),
        (lambda path: raw(path, b""), "malformed"),
        (lambda path: rewrite(path, lambda a: None, np.savez_compressed), "'inputs/x.npy' is compressed"),
        (lambda path: rewrite(path, objects), "'inputs/x.npy' is no array of numbers in C order"),
        (lambda path: rewrite(path, lambda a: a.update({"inputs/x": np.asfortranarray(a["inputs/x"])})), "in C order"),
        (lambda path: rewrite(path, lambda a: a.update({"inputs/x": a["inputs/x"].astype("f4")})),
         "'inputs/x.npy' is float32[5, 33]; the op takes float16 of 2 dims"),
        (lambda path: rewrite(path, lambda a: a.update({"inputs/x": a["inputs/x"][0]})), "the op takes float16 of 2 "),
        (lambda path: rewrite(path, lambda a: a.update({"inputs/x": a["inputs/x"].astype(np.longdouble)})), "no array"),
        (lambda path: rewrite(path, lambda a: a.pop("inputs/x")), "it lacks 'inputs/x.npy'"),
        (lambda path: rewrite(path, lambda a: a.pop("expected/out")), "it lacks 'expected/out.npy'"),
        (lambda path: rewrite(path, lambda a: a.update(more=np.zeros(3))), "it has 'more.npy', which the case has no "),
        (lambda path: rewrite(path, lambda a: a.update({"inputs/out": np.zeros(3)})), "it has 'inputs/out.npy'"),
        (lambda path: raw(path, zipped(("inputs/x.npy", X.replace(b"(5, 33)", b"(9, 99)")), ("expected/out.npy", OUT))),
         "'inputs/x.npy' has 330 bytes, which is not float16[9, 99]"),
        (lambda path: raw(path, zipped(("inputs/x.npy", X[:50]), ("expected/out.npy", OUT))), "no array of numbers"),
        (lambda path: raw(path, zipped(("inputs/x.npy", X.replace(b"<f2", b"<b8")))), "malformed"),
    ],
    ids=range(16),
)  # fmt: skip
def test_malformed_vectors_are_typed_errors(rows: Path, damage: Callable[[Path], None], words: str):
    path = vectors_of(rows, "short")
    damage(path)
    adopt_files(rows)
    with pytest.raises(BundleError) as found:
        emulated(rows).selftest()
    assert str(found.value).startswith(f"selftest vectors {path} (case 'short' of softmax) are malformed: ")
    assert words in str(found.value)
    assert any(words in fault for fault in verify_bundle(rows))


def test_an_inout_keeps_its_shape(bundles: Path, tmp_path: Path):
    small = Path(shutil.copytree(bundles / "small-gfx942", tmp_path / "small-gfx942"))
    rewrite(vectors_of(small, "ragged"), lambda a: a.update({"expected/state": a["expected/state"][:1]}))
    adopt_files(small)
    with pytest.raises(BundleError, match="'state' goes in with another shape than it comes out with"):
        emulated(small).selftest("accumulate")


def test_entries_that_share_their_bytes(rows: Path):
    """Many entries for one stretch of a file would take a thousand times its size."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", npy(np.zeros(100_000)))
        first = archive.filelist[0]
        for number in range(1000):
            other = zipfile.ZipInfo(f"{number}.npy")
            other.header_offset, other.CRC = first.header_offset, first.CRC
            other.compress_size = other.file_size = first.file_size
            archive.filelist.append(other)
        archive._didModify = True
    vectors_of(rows, "short").write_bytes(stream.getvalue())
    adopt_files(rows)
    with pytest.raises(BundleError, match="its entries are larger than it is"):
        emulated(rows).selftest()


@fuzz(st.data())
def test_fuzzed_vectors(bundles: Path, tmp_path: Path, data: st.DataObject):
    """Any bytes are vectors that fit the op, or a `BundleError`."""
    index = read_index(bundles / "small-gfx942")
    case = next(case for case in index.selftest if case.op == "scale_segments")
    op = next(op for op in index.ops if op.name == case.op)
    content = bytearray((bundles / "small-gfx942" / case.vectors.file).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    (tmp_path / "fuzzed.npz").write_bytes(content)
    blob = Blob("fuzzed.npz", len(content), hashlib.sha256(content).hexdigest())
    try:
        vectors = read_vectors(tmp_path, op, msgspec.structs.replace(case, vectors=blob))
    except BundleError as error:
        assert "malformed" in str(error)
    else:
        assert vectors.inputs["starts"].dtype == np.int32 and vectors.inputs["x"].ndim == 2


# What the index says of cases


def case_edit(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["selftest"][0].update(fields)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (case_edit(op="none"), "there is no such op"),
        (case_edit(name="../x"), "or that is no name"),
        (case_edit(bounds={}), "has bounds of []; the op writes to ['out']"),
        (case_edit(bounds={"x": 1.0}), "has bounds of ['x']"),
        (case_edit(bounds={"out": -1.0}), "finite ones of 0 and more are allowed"),
        (case_edit(dtypes={}), "is of dtypes {}"),
        (case_edit(dtypes={"T": "int8"}), "is of dtypes {'T': 'int8'}"),
        (case_edit(scalars={"y": 1}), "passes scalars ['y']"),
        (case_edit(innermost={"x": 0}), "has innermost dims {'x': 0}"),
        (case_edit(vectors={"file": "../secret.npz", "size": 1, "sha256": ""}), "has file '../secret.npz'"),
        (case_edit(vectors={"file": "code/" + "0" * 16 + ".npz", "size": 1, "sha256": ""}), "selftest/<hash>.npz"),
        (case_edit(vectors={"file": f"selftest/{'0' * 16}.npz", "size": 1 << 30, "sha256": ""}), "of at most 16777216"),
        (lambda index: index["selftest"].append(index["selftest"][0]), "a selftest case is there twice"),
    ],
)
def test_unsound_cases_are_refused_at_once(rows: Path, edit: Callable[[dict[str, Any]], None], words: str):
    edit_index(rows, edit)
    with pytest.raises(BundleError) as found:
        emulated(rows)
    assert words in str(found.value)


def test_deviation():
    values = np.array([1.0, np.nan, np.nan, np.inf, np.inf, -np.inf, 0.0])
    expected = np.array([1.5, np.nan, 0.0, np.inf, 0.0, np.inf, np.nan])
    np.testing.assert_array_equal(deviation(values, expected), [0.5, 0, np.inf, 0, np.inf, np.inf, np.inf])
