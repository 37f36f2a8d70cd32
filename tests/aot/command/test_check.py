"""`aotbuild check` finds and names faults planted in kernels and manifests, and passes correct ones."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.building.builds import Project
from tests.support.building.projects import edit
from tests.support.session_builds import ROOT

HEAD = "import triton\nimport triton.language as tl\n"
KERNEL = """

@triton.jit
def add_transposed(a, b, out, rows, cols, a_r, a_c, b_r, b_c, o_r, o_c, BLOCK: tl.constexpr):
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (r < rows) & (c < cols)
    x = tl.load(a + r * a_r + c * a_c, mask=mask)
    y = tl.load(b + c * b_r + r * b_c, mask=mask)
    tl.store(out + r * o_r + c * o_c, x + y, mask=mask)
"""
OP = """\
  add_transposed:
    reference: reference.py:add_transposed
    tensors:
      a: {shape: [rows, cols], dtype: float32, contiguous: []}
      b: {shape: [cols, rows], dtype: float32, contiguous: []}
      out: {shape: [rows, cols], dtype: float32, role: output, contiguous: []}
    specialisations: [general]
    launches:
      - kernel: k.py:add_transposed
        grid: ["cdiv(rows, BLOCK)", "cdiv(cols, BLOCK)"]
        bind: {a_r: "stride(a, 0)", a_c: "stride(a, 1)", b_r: "stride(b, 0)", b_c: "stride(b, 1)",
               o_r: "stride(out, 0)", o_c: "stride(out, 1)"}
        configs: [{blocks: {BLOCK: 16}, options: {num_warps: 1}}]
"""
GATHER = """

@triton.jit
def gather(x, index, out, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(index + i, mask=i < count)
    tl.store(out + i, tl.load(x + at, mask=i < count), mask=i < count)
"""
GATHER_OP = """\
  gather:
    tensors:
      x: {shape: [size], dtype: float32, contiguous: [0]}
      index: {shape: [count], dtype: int32, contiguous: [0], range: [0, size - 1]}
      out: {shape: [count], dtype: float32, role: output, contiguous: [0]}
    specialisations: [general]
    launches:
      - {kernel: "k.py:gather", grid: ["cdiv(count, BLOCK)"], configs: [{blocks: {BLOCK: 16}, options: {num_warps: 1}}]}
"""
PERSISTENT = """

@triton.jit
def persistent(x, out, rows, x_r, out_r, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        i = tl.arange(0, BLOCK)
        tl.store(out + row * out_r + i, tl.load(x + row * x_r + i))
"""
PERSISTENT_OP = """\
  persistent:
    tensors:
      x: {shape: [rows, 16], dtype: float32}
      out: {shape: [rows, 16], dtype: float32, role: output}
    specialisations: [general]
    launches:
      - kernel: k.py:persistent
        grid: [num_cus]
        bind: {x_r: "stride(x, 0)", out_r: "stride(out, 0)"}
        configs: [{blocks: {BLOCK: 16}, options: {num_warps: 1}}]
"""
LONG_ROW = """

@triton.jit
def long_row(x, out, cols, x_r, out_r, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * x_r + i, mask=i < cols)
    tl.store(out + tl.program_id(0) * out_r + i, v, mask=i < cols)
"""
LONG_ROW_OP = """\
  long_row:
    tensors:
      x: {shape: [rows, cols], dtype: float32}
      out: {shape: [rows, cols], dtype: float32, role: output}
    specialisations: [general]
    launches:
      - kernel: k.py:long_row
        grid: [rows]
        bind: {x_r: "stride(x, 0)", out_r: "stride(out, 0)"}
        configs: [{blocks: {BLOCK: 1024}, options: {num_warps: 4}}]
"""
REFERENCE = "def add_transposed(a, b):\n    return a + b.T\n"

Edits = tuple[tuple[str, str], ...]
STORE, STORED = "    tl.store(", "    tl.store(out + r * o_r + c * o_c, "
LOAD_A = "    x = tl.load(a + r * a_r + c * a_c, mask=mask)\n"
FAULTS: Mapping[str, tuple[Edits, Edits, str, str]] = {
    # name → (edits of the kernel, of the manifest, kinds of findings, tensors that one of them names)
    "swapped_strides": ((("c * b_r + r * b_c", "c * b_c + r * b_r"),), (), "bounds|uninitialised|strides", "b"),
    "packed_assumed": ((("c * a_c, ", "c, "),), (), "uninitialised|strides", "a"),
    "mask_off_by_one": ((("(c < cols)", "(c <= cols)"),), (), "bounds", "a|b"),
    "mask_forgotten": ((("r * b_c, mask=mask", "r * b_c"),), (), "bounds", "b"),
    "tail_unwritten": ((("x + y, mask=mask", "x + y, mask=mask & (c != cols - 1)"),), (), "unwritten", "out"),
    "output_read": ((("x + y,", "x + y + tl.load(out + r * o_r + c * o_c, mask=mask),"),), (), "uninitialised", "out"),
    "gap_written": (((f"{STORED}x + y", f"{STORED.replace('r * o_r', 'r * o_r + (c == cols - 1)')}x + y"),), (),
                    "bounds|race|unwritten", "out"),
    "input_read_again": (((STORED, f"{STORED}y, mask=mask)\n{LOAD_A}{STORED}"),),
                         (("role: output, ", "role: output, in_place: [a], "),), "in_place", "out"),
    "wrong_number": ((("x + y", "x - y"),), (), "reference", "out"),
    "no_number": ((("x + y", "tl.sqrt(-1.0 - x * x) + y"),), (), "not_finite", "out"),
    "grid_rounded_down": ((), (("cdiv(rows, BLOCK)", "rows // BLOCK"),), "unwritten", "out"),
    "strides_swapped_in_bind": ((), (('b_r: "stride(b, 0)", b_c: "stride(b, 1)"',
                                      'b_r: "stride(b, 1)", b_c: "stride(b, 0)"'),),
                                "bounds|uninitialised|strides|reference", "b|out"),
    "extents_swapped_in_bind": ((), (("bind: {", "bind: {rows: cols, cols: rows, "),), "bounds|unwritten|race",
                                "a|b|out"),
}  # fmt: skip
REFERENCED = {"add_transposed", "wrong_number", "strides_swapped_in_bind"}
"""Ops with a reference. The faults of the others are found without one."""


def ops_and_kernels() -> tuple[str, str]:
    """A manifest of one op for each fault, one with none and one whose index may be any number; and their kernels."""
    ops, kernels = "bundle: tiny\nops:\n" + OP + GATHER_OP + PERSISTENT_OP, HEAD + KERNEL + GATHER + PERSISTENT
    for name, (of_kernel, of_op, _, _) in FAULTS.items():
        edits = [*of_op, ("  add_transposed:\n", f"  {name}:\n")]
        if of_kernel:
            kernels += edit(KERNEL, *of_kernel, ("def add_transposed", f"def {name}"))
            edits.append(("k.py:add_transposed", f"k.py:{name}"))
        if name not in REFERENCED:
            edits.append(("    reference: reference.py:add_transposed\n", ""))
        ops += edit(OP, *edits)
    any_index = edit(GATHER_OP, ("  gather:\n", "  any_index:\n"), (", range: [0, size - 1]", ""))
    return ops + any_index, kernels


def write(folder: Path, ops: str, kernels: str) -> Project:
    (folder / "reference.py").write_text(REFERENCE)
    return Project(folder, ops, kernels)


def check(project: Project, *options: str) -> tuple[int, str]:
    words = ["check", str(project.manifest), "--cache-dir", str(project.cache), *options]
    result = project.invoke(words)
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write(tmp_path_factory.mktemp("check"), *ops_and_kernels())


@pytest.fixture(scope="module")
def reports(project: Project) -> dict[str, Any]:
    status, output = check(project, "--json", "--count", "2")
    assert status == 1
    data = json.loads(output)
    assert not data["passed"] and data["seed"] == 0
    return {report["op"]: report for report in data["ops"]}


def test_what_is_right_passes(reports: dict[str, Any]):
    assert len(reports["gather"]["cases"]) == len(reports["persistent"]["cases"]) == 2
    passed = {name for name, report in reports.items() if report["passed"]}
    assert passed == {"add_transposed", "gather", "persistent"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_named(reports: dict[str, Any], name: str):
    *_, kind, tensor = FAULTS[name]
    findings = [finding for case in reports[name]["cases"] for finding in case["findings"]]
    assert findings
    assert {True} == {bool(re.fullmatch(kind, finding["kind"])) for finding in findings}, findings
    assert any(re.fullmatch(tensor, finding["argument"]) for finding in findings), findings


def test_a_finding_has_the_line_of_the_kernel(reports: dict[str, Any], project: Project):
    finding = next(case["findings"][0] for case in reports["mask_forgotten"]["cases"] if case["findings"])
    file, line = finding["source"].split(":")
    source = (project.folder / file).read_text().splitlines()
    assert "tl.load(b + c * b_r + r * b_c)" in source[int(line) - 1]


def test_an_index_that_may_be_any_is_told(reports: dict[str, Any]):
    text = json.dumps(reports["any_index"])
    assert "'index'" in text and "`range`" in text


def test_the_command_that_is_told_makes_the_same_call_again(reports: dict[str, Any], project: Project):
    case = next(case for case in reports["tail_unwritten"]["cases"] if case["number"] == 1)
    words = shlex.split(case["again"])[3:]
    status, output = check(project, *words, "--json")
    again = json.loads(output)["ops"]
    assert status == 1 and [report["op"] for report in again] == ["tail_unwritten"]
    assert [(found["call"], found["findings"]) for found in again[0]["cases"]] == [(case["call"], case["findings"])]
    status, output = check(project, *words)
    assert status == 1
    assert output.startswith("FAILED  tail_unwritten") and "case 1: a=float32" in output and "again: aotbuild" in output
    assert output.endswith("\n1 op, 1 of them wrong; seed 0\n")


ALTERS_INPUT = ((STORE, f"{STORE}a + r * a_r + c * a_c, y, mask=mask)\n{STORE}"),)
NO_OUTPUT = (("dtype: float32, role: output", "dtype: float32"),)


@pytest.mark.parametrize(
    ("kernel", "op", "said"),
    [
        (edit(KERNEL, *ALTERS_INPUT), OP, "writes to 'a', which is an input"),
        (KERNEL, edit(OP, *NO_OUTPUT), "writes to 'out', which is an input"),
    ],
    ids=["input_written", "wrong_role"],
)
def test_roles_are_held_to_what_kernels_do(tmp_path: Path, kernel: str, op: str, said: str):
    status, output = check(write(tmp_path, "bundle: tiny\nops:\n" + op, HEAD + kernel))
    assert status == 2 and said in output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--op", "gater"), "did you mean 'gather'?"),
        (("--arch", "sm_90"), "the emulator does not support sm_90; supported: gfx942"),
        (("--filter", "x"), "'x' is not axis=value"),
    ],
)
def test_wrong_usage(project: Project, words: tuple[str, ...], said: str):
    status, output = check(project, *words)
    assert status == 2 and said in output


def test_the_default_architecture_is_shown_as_it_is_given(project: Project):
    assert "[default: gfx942]" in " ".join(project.invoke(["check", "--help"]).output.split())


def test_without_the_emulator_the_extra_is_named(project: Project):
    hidden = "lambda name, *rest, find=util.find_spec: None if name == 'tinygrad' else find(name, *rest)"
    code = f"from importlib import util; util.find_spec = {hidden}; from aot.cli import main; main()"
    command = [sys.executable, "-c", code, "check", str(project.manifest)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 2
    assert ended.stderr.startswith("aotbuild: error: the emulator needs tinygrad's tables")
    assert "pip install 'aotbuild[emulator]'" in ended.stderr


def test_extents_may_have_to_be_multiples(tmp_path: Path):
    op = edit(OP, ("    specialisations", "    require: [rows % 96 == 0]\n    specialisations"))
    status, output = check(write(tmp_path, "bundle: tiny\nops:\n" + op, HEAD + KERNEL), "--json", "--count", "2")
    (report,) = json.loads(output)["ops"]
    assert (status, len(report["cases"])) == (0, 2), output


def test_a_loop_that_does_not_end_is_told_once(tmp_path: Path):
    loop = "    while tl.load(a, volatile=True) < 1e30:\n        rows += 0\n"
    kernel = edit(KERNEL, ("    x = tl.load(", f"{loop}    x = tl.load("))
    status, output = check(write(tmp_path, "bundle: tiny\nops:\n" + OP, HEAD + kernel), "--time-limit", "0.5")
    assert status == 1 and output.startswith("FAILED  add_transposed            1 call of 1 variant")
    assert "endless: a launch did not end in " in output


def test_rows_that_are_longer_than_a_block_are_drawn(tmp_path: Path):
    """Small extents do not show that a row is at most a block of 1024, which `require` has to say."""
    project = write(tmp_path, "bundle: tiny\nops:\n" + LONG_ROW_OP, HEAD + LONG_ROW)
    status, output = check(project, "--json", "--count", "2")
    (report,) = json.loads(output)["ops"]
    found = [finding for case in report["cases"] for finding in case["findings"]]
    assert status == 1 and {(item["kind"], item["argument"]) for item in found} == {("unwritten", "out")}, found
    told = edit(LONG_ROW_OP, ("    specialisations", "    require: [cols <= 1024]\n    specialisations"))
    status, output = check(write(tmp_path, "bundle: tiny\nops:\n" + told, HEAD + LONG_ROW), "--json")
    (report,) = json.loads(output)["ops"]
    columns = {int(case["call"].split("[")[1].split(", ")[1].split("]")[0]) for case in report["cases"]}
    assert status == 0 and {1023, 1024} & columns, "right below what is allowed, or all of it"
