"""The self-test on the emulator: built bundles pass, and faults in code and vectors are found."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot_bundle.verification import verify_bundle
from aot_runtime import ArgumentError, NoVectorsError, open_bundle
from aot_runtime.call.selftests import Report, result_lines
from tests.support.command import aotbundle
from tests.support.emulated_launches import EmulatedLaunches
from tests.support.forging import adopt_files, edit_index, rewrite_vectors, vectors_of
from tests.support.hip_double.double import in_double


def report_of(folder: Path, *ops: str) -> Report:
    return open_bundle(folder, device="emulator").selftest(*ops)


def faults(report: Report) -> dict[str, str]:
    """Return case → what is wrong with it, for those that failed."""
    return {
        result.case: "; ".join(filter(None, [result.fault, *(output.fault for output in result.outputs)]))
        for result in report.results
        if not result.passed
    }


def test_every_op_of_the_small_bundle(small_bundle: Path):
    """Two launches, several outputs, an inout, an optional tensor, a choice, integers, innermost dims."""
    report = report_of(small_bundle)
    assert report.passed and report.arch == "gfx942"
    found = {(item.op, item.case): item for item in report.results}
    assert [output.name for output in found["row_sums", "case0"].outputs] == ["total", "largest"]
    assert [launch.symbol for launch in found["row_sums", "case0"].launches] == ["partial_sums", "add_partial"]
    assert [output.name for output in found["accumulate", "ragged"].outputs] == ["state"]
    negated = found["affine", "negated"].launches[0]
    assert negated.axis_values == {"T": "float32", "HAS_BIAS": True, "NEGATED": True}
    assert (negated.aligned, negated.config) == (False, "wide")
    copies = [found["copy", case].launches[0] for case in ("rows", "columns", "by_position")]
    assert [item.axis_values["X_ROWS"] for item in copies] == [True, False, False]
    assert [item.aligned for item in copies] == [False, False, True]
    assert len(found) == 12
    for output in (output for item in report.results for output in item.outputs):
        assert 0 <= output.error <= output.bound < 0.01


@in_double()
def test_through_the_driver_of_gpus(small_bundle: Path, rows_bundle: Path):
    """hip-python and the double of libamdhip64, whose launches the emulator carries out."""
    launches = EmulatedLaunches()
    for path in (small_bundle, rows_bundle):
        before, report = len(launches.done), open_bundle(path, "hip:0").selftest()
        assert report.passed, faults(report)
        assert len(launches.done) >= before + len(report.results) and report.device.startswith("hip:0 ")


def test_what_has_no_vectors_says_so(small_copy: Path):
    edit_index(small_copy, lambda index: index.update(selftest=[c for c in index["selftest"] if c["op"] == "copy"]))
    with pytest.raises(NoVectorsError, match="op 'affine' of bundle 'small' has no selftest vectors"):
        report_of(small_copy, "affine")
    with pytest.raises(ArgumentError, match="'afine'"):
        report_of(small_copy, "afine")
    assert report_of(small_copy, "copy").passed
    edit_index(small_copy, lambda index: index.pop("selftest"))  # as every bundle was before there were any
    shutil.rmtree(small_copy / "selftest")
    assert verify_bundle(small_copy) == []
    with pytest.raises(NoVectorsError, match="bundle 'small' has no selftest vectors: its manifest has no `selftest`"):
        report_of(small_copy)


def change_code(folder: Path, op: str, wanted: Callable[[int], bool], change: Callable[[int], int]) -> None:
    """Change every instruction word of a kind in the code object of an op's first case, and adopt it into the index."""
    path = folder / report_of(folder, op).results[0].launches[0].file
    image = bytearray(path.read_bytes())
    words = np.frombuffer(image, "<u4", len(image) // 4)
    places = [at for at, word in enumerate(words.tolist()) if wanted(word)]
    assert places
    for at in places:
        words[at] = change(int(words[at]))
    path.write_bytes(image)
    adopt_files(folder)


def test_another_instruction(small_copy: Path):
    """v_add_f32 becomes v_sub_f32 (VOP2): hashes fit and nothing crashes, but the numbers are wrong."""
    change_code(small_copy, "accumulate", lambda word: word >> 25 == 1, lambda word: word ^ 3 << 25)
    (result,) = report_of(small_copy, "accumulate").results
    assert not result.passed and "elements beyond the bound, first at [0]: " in result.outputs[0].fault
    assert result_lines(result)[0] == "FAILED  accumulate ragged: accumulate_values aligned, config0"
    shown = aotbundle("selftest", small_copy, "--device", "emulator", "--op", "accumulate")
    assert shown.exit_code == 1 and shown.stdout.endswith("1 of 1 cases FAILED\n")


def test_results_that_are_not_written(small_copy: Path):
    """Stores become loads. The output holds NaN beforehand, which no bound lets pass."""

    def is_buffer_store(word: int) -> bool:
        return word >> 26 == 0x38 and 0x18 <= word >> 18 & 0x7F <= 0x1F

    change_code(small_copy, "affine", is_buffer_store, lambda word: word ^ 0x08 << 18)
    report = report_of(small_copy, "affine")
    assert set(faults(report)) == {"plain"} and "32 of 32 elements" in faults(report)["plain"]
    assert report.results[0].outputs[0].error == math.inf
    shown = aotbundle("selftest", small_copy, "--device", "emulator", "--op", "affine", "--json")
    data = json.loads(shown.stdout)
    assert shown.exit_code == 1 and (data["passed"], data["id"]) == (False, report.id)
    assert {item["case"]: item["passed"] for item in data["results"]} == {"plain": False, "negated": True}
    assert data["results"][0]["outputs"][0]["error"] is None


def kernarg(name: str, value: str) -> Callable[[dict[str, Any]], None]:
    def edit(index: dict[str, Any]) -> None:
        for variant in index["variants"]:
            for arg in variant["kernargs"]:
                if arg["name"] == name:
                    arg["value"] = value

    return edit


def one_row_less(index: dict[str, Any]) -> None:
    index["ops"][0]["launches"][0]["grid"][0] = "rows - 1"


@pytest.mark.parametrize(
    ("edit", "op", "case", "fault"),
    [
        # The last row then ends in the guard zone: what it is made of is NaN, and what is written there is not.
        (kernarg("cols", "cols + 1"), "affine", "plain", "something was written outside of the array"),
        (kernarg("splits", "splits - 1"), "row_sums", "case0", "elements beyond the bound"),
        (kernarg("out", "x"), "scale_segments", "an_empty_one", "inputs were written to: x; 180 of 180 elements"),
        (one_row_less, "affine", "negated", "150 of 450 elements beyond the bound, first at [2, 0]: nan, expected "),
        # The emulator stops an access outside of every allocation.
        (kernarg("stride_x_rows", "1048576"), "affine", "negated", "MemoryAccessError: "),
        # A call that is refused.
        (lambda index: index["variants"].clear(), "affine", "plain", "NoVariantError: affine: no variant"),
    ],
)
def test_a_fault_is_a_failed_case(
    small_copy: Path, edit: Callable[[dict[str, Any]], None], op: str, case: str, fault: str
):
    edit_index(small_copy, edit)
    assert fault in faults(report_of(small_copy, op))[case]


@pytest.mark.parametrize("value", [None, np.nan, np.inf])
def test_one_altered_result(small_copy: Path, value: float | None):
    """A forger with the right hashes and id is still contradicted by the device; NaN and infinities match only
    themselves."""

    def edit(arrays: dict[str, np.ndarray]) -> None:
        out = arrays["expected/out"]
        out[1, 7] = out[1, 7] + 1 if value is None else value

    rewrite_vectors(vectors_of(small_copy, "plain"), edit)
    adopt_files(small_copy)
    found = faults(report_of(small_copy, "affine"))
    assert set(found) == {"plain"} and found["plain"].startswith("1 of 32 elements beyond the bound, first at [1, 7]: ")
