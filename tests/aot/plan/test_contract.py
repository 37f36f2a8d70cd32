from pathlib import Path

import pytest

from aot.manifest.yamlfile import ManifestError
from aot_runtime.call.planner import Planner
from aot_runtime.contract import records
from aot_runtime.contract.layout import divisors
from aot_runtime.contract.names import Scope
from tests.support.building.projects import EVERYTHING, SCALE, check_fault, check_row, contract, edit, rows


def test_a_contract_has_all_that_the_manifest_says(tmp_path: Path):
    op = contract(tmp_path, EVERYTHING)
    assert [tensor.name for tensor in op.tensors] == ["x", "bias", "out", "top"]
    assert op.tensors[1].shape == (records.Dim("rows", True), records.Dim("cols"))
    assert (op.tensors[1].optional, op.tensors[2].role, op.tensors[3].when) == (True, "output", "return_top")
    assert [tensor.contiguous for tensor in op.tensors] == [(1,), (1,), (1,), (0,)], "the last dim is, by default"
    assert op.scalars[0] == records.Scalar("factor", "fp32", "cols ** (-0.5)")
    assert op.scalars[1] == records.Scalar("return_top", "flag", "False")
    assert op.scalars[2] == records.Scalar("mode", "choice", "'fast'", ("fast", "exact"))
    assert op.dims == (records.DimLimit("cols", 1, 4096),)
    assert (op.require, op.dtypes) == (("cols % 2 == 0",), {"T": ("float16", "float32")})
    assert op.divisible == (records.Divisible("cols", 0, ("x", "out")),), "not the optional tensors"
    assert divisors(op, {"T": "float16"}) == {"cols": 8} and divisors(op, {"T": "float32"}) == {"cols": 4}
    assert op.derived == (records.Derived("chunks", "cdiv(cols, 16)"),)
    assert op.axes[0] == records.Axis("BLOCK", (16, 64), "cols", ">=")
    assert op.axes[1] == records.Axis("BIASED", (False, True), "given(bias)")
    assert op.workspace == (records.Workspace("partial", ("rows", "chunks"), "float32"),)
    (launch,) = op.launches
    assert (launch.kernel, launch.grid, launch.when) == ("scale_rows", ("rows", "1", "1"), "rows > 0")
    assert launch.configs == (
        records.Config("wide", {"WIDTH": 4}, {"num_warps": 8}, "cols > 32"),
        records.Config("base", {"WIDTH": 2}, {"num_warps": 4}),
    )
    Planner(op, (), "hip")  # the reader takes it


def test_tensors_that_no_constexpr_tells_of_get_one(tmp_path: Path):
    """A nullable tensor gets none, nor one that is present exactly when another is."""
    text = edit(
        EVERYTHING, ("      BIASED: {values: [false, true], pick: given(bias)}\n", ""), ("TOP and BIASED", "HAS_BIAS"),
        ("      TOP: {values: [false, true], pick: return_top}\n", ""),
        ("    scalars:", "      all: {shape: [rows], dtype: float32, role: output, when: (return_top)}\n    scalars:"),
    )  # fmt: skip
    assert contract(tmp_path, text).axes[1:] == (
        records.Axis("HAS_BIAS", (False, True), "given(bias)"),
        records.Axis("HAS_TOP", (False, True), "return_top"),
    )
    nullable = edit(text, ("optional: true", "optional: true, nullable: true"), ("exclude: [HAS_BIAS]", "exclude: []"))
    assert [axis.name for axis in contract(tmp_path, nullable).axes] == ["BLOCK", "HAS_TOP"]


def test_a_grid_that_reads_what_only_the_kernel_is_given(tmp_path: Path):
    text = edit(EVERYTHING, ("grid: [rows]", 'bind: {N: 3}\n        grid: ["cdiv(rows, N)"]'))
    hint = r"undefined name 'N'; .*; it is a parameter in `bind`, and a grid reads those of `configs`: \[{blocks: {N: "
    with pytest.raises(ManifestError, match=hint):
        contract(tmp_path, text)


# Expressions, wherever there is one: what is replaced, and by what; the @ is where a fault in it is said to be.

PLACES = {
    "shape": ("shape: [rows], dtype", "shape: [@'{}'], dtype"),
    "output when": ("when: return_top", "@when: '{}'"),
    "default": ("default: cols ** -0.5", "@default: '{}'"),
    "require": ("require: [cols % 2 == 0]", "require: [@'{}']"),
    "derived": ('chunks: "cdiv(cols, 16)"', "@chunks: '{}'"),
    "pick": ("pick: return_top", "@pick: '{}'"),
    "pick smallest": ("pick: smallest >= cols", "@pick: 'smallest >= {}'"),
    "exclude": ("exclude: [TOP and BIASED]", "exclude: [@'{}']"),
    "overrides": ("{when: BLOCK == 64", "{{@when: '{}'"),
    "workspace": ("shape: [rows, chunks]", "shape: [rows, @'{}']"),
    "grid": ("grid: [rows]", "grid: [@'{}']"),
    "launch when": ("when: rows > 0", "@when: '{}'"),
    "config when": ("when: cols > 32", "@when: '{}'"),
}


def check_expression(folder: Path, place: str, expression: str, message: str) -> None:
    """Put an expression into the contract EVERYTHING, and assert that it has this fault there."""
    old, new = PLACES[place]
    check_fault(folder, edit(EVERYTHING, (old, new.format(expression))), f"op 'scale': {message}")


@pytest.mark.parametrize("place", PLACES)
def test_expressions_are_checked(tmp_path: Path, place: str):
    """Faults of syntax, of names and of types are found."""
    check_expression(tmp_path, place, "rows.shape", "'rows.shape': 'rows.shape' is not part of the expression language")
    name = "arch" if place in ("exclude", "overrides", "default") else "mode"
    said = f"'{name} + 1': text can only be compared with == and !=, not computed with"
    check_expression(tmp_path, place, f"{name} + 1", said)
    if place != "shape":  # where a name is a dim
        old, new = PLACES[place]
        with pytest.raises(ManifestError, match=r": 'nosuchname \+ 1' uses undefined name 'nosuchname'; known: "):
            contract(tmp_path, edit(EVERYTHING, (old, new.format("nosuchname + 1").replace("@", ""))))


# A place, an expression, and what is said.
EXPRESSIONS = """
pick -> retrun_top -> 'retrun_top' uses undefined name 'retrun_top'; did you mean 'return_top'?
grid -> BLCOK * rows -> 'BLCOK * rows' uses undefined name 'BLCOK'; did you mean 'BLOCK'?
grid -> cdiv(rows, WIDHT) -> 'cdiv(rows, WIDHT)' uses undefined name 'WIDHT'; did you mean 'WIDTH'?
launch when -> chunk > 1 -> 'chunk > 1' uses undefined name 'chunk'; did you mean 'chunks'?
overrides -> WIDHT == 4 -> 'WIDHT == 4' uses undefined name 'WIDHT'; did you mean 'WIDTH'?
overrides -> confg -> 'confg' uses undefined name 'confg'; did you mean 'config'?
exclude -> BAISED -> 'BAISED' uses undefined name 'BAISED'; did you mean 'BIASED'?
exclude -> alinged -> 'alinged' uses undefined name 'alinged'; did you mean 'aligned'?
pick -> given(bais) -> 'given(bais)': given(bais): unknown tensor 'bais'; did you mean 'bias'?
grid -> stride(x, column) -> stride(x, column): 'column' is not a single dim of 'x' [rows, cols]
"""


@pytest.mark.parametrize(("place", "expression", "message"), rows(EXPRESSIONS))
def test_expressions_that_are_refused(tmp_path: Path, place: str, expression: str, message: str):
    check_expression(tmp_path, place, expression, message)


@pytest.mark.parametrize("place", ["default", "require", "derived", "exclude", "overrides"])
def test_strides_are_not_known_everywhere(tmp_path: Path, place: str):
    part = {"default": "scalars"}.get(place, place)
    said = f"'stride(x, 0) > 1': strides are not known here; {part} cannot depend on them"
    check_expression(tmp_path, place, "stride(x, rows) > 1", said)


UNKNOWN = {
    "require": "aligned",  # is only decided after the call is accepted
    "derived": "BLOCK",
    "default": "return_top",  # a later scalar
    "exclude": "rows > 2",  # a call's, where only what is built is known
    "launch when": "WIDTH > 2",  # a config is chosen when the launch is
    "pick smallest": "TOP",  # a later axis
}


@pytest.mark.parametrize("place", UNKNOWN)
def test_names_are_known_only_from_where_they_are_decided(tmp_path: Path, place: str):
    (old, new), expression = PLACES[place], UNKNOWN[place]
    with pytest.raises(ManifestError, match=f"'{expression}' uses undefined name '{expression.split()[0]}'"):
        contract(tmp_path, edit(EVERYTHING, (old, new.format(expression).replace("@", ""))))


def test_canonical_spelling(tmp_path: Path):
    """A planner reads `stride(x, 0)`, where a dim's name would mean its extent. Presence is compared as text."""
    changes = (
        ("when: cols > 32", "when: 'stride(x, rows) + stride(x, cols) > 32'"),
        ("when: return_top", "when: return_top   and(rows>1)"),
        ("pick: return_top", "pick: (return_top and rows > 1)"),
    )
    op = contract(tmp_path, edit(EVERYTHING, *changes))
    assert op.launches[0].configs[0].when == "stride(x, 0) + stride(x, 1) > 32"
    assert op.tensors[3].when == op.axes[2].pick == "return_top and rows > 1"


# What is replaced in EVERYTHING, by what, with an @ where the fault is; what is said.
FAULTS = r"""
top: {shape: [rows] -> @stream: {shape: [rows] -> 'stream' is reserved; choose another name
mode: { -> @num_cus: { -> 'num_cus' is reserved; choose another name
{chunks: -> {@lambda: -> 'lambda' is reserved; choose another name
mode: { -> @bias: { -> 'bias' is in `tensors` already; names are distinct
partial: { -> @BLOCK: { -> 'BLOCK' is in `constexprs` already; names are distinct
TOP: { -> @T: { -> 'T' is in `dtypes` already; names are distinct
TOP: { -> rows: { -> tensors: -> @tensors: -> 'rows' cannot be a dim's name: it is reserved, or something else's name
[rows|1, cols] -> [rows|1, x] -> tensors: -> @tensors:
 -> 'x' cannot be a dim's name: it is reserved, or something else's name
WIDTH: 4} -> WIDTH: 4, @BLOCK: 4} -> a config of 'scale_rows' sets 'BLOCK', which the op has
WIDTH: 4} -> WIDTH: 4, @aligned: 4}
 -> a config of 'scale_rows' sets 'aligned': no identifier, or a reserved one
dims: {cols: { -> dims: {@clos: { -> unknown dim 'clos'; did you mean 'cols'?
divisible: [cols] -> @divisible: [col] -> unknown dim 'col'; did you mean 'cols'?
dtype: float32, role: output, when -> @dtype: flaot32, role: output, when
 -> unknown dtype or dtype variable 'flaot32'; did you mean 'float32'?
dtype: float32}} -> @dtype: flaot32}} -> unknown dtype or dtype variable 'flaot32'; did you mean 'float32'?
options: {num_stages: 1} -> options: {@num_stage: 1} -> unknown compiler option 'num_stage'; did you mean 'num_stages'?
rows|1 -> @rows|2 -> 'rows|2': only `dim|1` (an extent of 1 is broadcast) is allowed
BIASED: {values: [false, true], pick: given(bias)} -> HAS_BIAS: {values: [false, true], pick: not given(bias)}
 -> TOP and BIASED -> TOP -> bias: { -> @bias: { -> 'bias' may be absent, but no constexpr has
 `pick: given(bias)`, so the kernel cannot know whether it is present
TOP: {values: [false, true], pick: return_top} -> HAS_TOP: {values: [false, true], pick: not return_top}
 -> TOP and BIASED -> BIASED -> top: {shape -> @top: {shape -> 'top' may be absent, but no constexpr has
 `pick: return_top`, so the kernel cannot know whether it is present
x: {shape: [rows, cols] -> x: {@innermost: [cols, rows], shape: [rows, cols] -> any of several dims of 'x' may be the
 innermost, but no constexpr has `pick: innermost(x, cols)`, so the kernel cannot know which is
x: {shape: [rows, cols] -> x: {innermost: [cols, @depth], shape: [rows, cols]
 -> 'depth' is not a single dim of ['rows', 'cols']
x: {shape: [rows, cols] -> x: {contiguous: [@2], shape: [rows, cols] -> '2' is not a single dim of ['rows', 'cols']
x: {shape: [rows, cols] -> x: {contiguous: [@-3], shape: [rows, cols] -> '-3' is not a single dim of ['rows', 'cols']
x: {shape: [rows, cols] -> x: {@contiguous: [1, cols], shape: [rows, cols] -> a dim is listed twice
x: {shape: [rows, cols] -> x: {contiguous: [@cols], shape: [rows, cols, cols]
 -> 'cols' is not a single dim of ['rows', 'cols', 'cols']
optional: true -> optional: true, @when: return_top
 -> only an output can have `when`; an input can be `optional: true`
when: return_top -> when: return_top, @optional: true
 -> an output cannot be optional; state with `when` when it exists
x: {shape: [rows, cols], dtype: T} -> x: {shape: [rows, cols], dtype: int8} -> dtypes: {T -> dtypes: {@T
 -> no required input has dtype 'T', so no call decides it
default: fast} -> @default: faste} -> 'faste' is not one of fast, exact
mode: {type: choice, values: [fast, exact] -> @mode: {type: choice
 -> `values` are for `type: choice`, which requires them
factor: {type: fp32 -> @factor: {type: fp32, values: [a] -> `values` are for `type: choice`, which requires them
return_top: {type: flag -> @return_top: {type: flag, max: 1 -> a flag cannot have min or max
mode: {type: choice -> @mode: {type: choice, min: 0 -> a choice cannot have min or max
values: [16, 64] -> @values: [16, 16] -> values must be distinct and of the same type
values: [16, 64] -> @values: [16, 64.0] -> values must be distinct and of the same type
values: [16, 64], pick -> values: [small, large], @pick -> smallest and largest need numbers as values
values: [16, 64], pick -> values: [false, true], @pick -> smallest and largest need numbers as values
pick: smallest >= cols -> @pick: smallest >= mode -> 'mode' is text; >= needs a number
pick: smallest >= cols -> @pick: smallest <= cols -> 'smallest <= cols': allowed are smallest >= E, smallest > E,
 largest <= E and largest < E, where E is an expression
{name: base, -> {name: base, @when: rows > 1, -> the last config ('base') must serve every call: it has no `when`
{name: wide, when: cols > 32, -> @{name: wide, -> config 'wide' has no `when`, so the configs after it are never used
name: base -> name: wide -> configs: -> @configs: -> two configs have the same name (wide, wide)
when: cols > 32 -> @when: cols > -> 'cols >' is not an expression: invalid syntax
"""


@pytest.mark.parametrize("row", rows(FAULTS), ids=lambda row: row[1])
def test_what_is_refused(tmp_path: Path, row: list[str]):
    check_row(tmp_path, EVERYTHING, row, "op 'scale': ")


def test_an_op_cannot_have_the_name_of_a_bundles_attribute(tmp_path: Path):
    said = "op 'preload': an op cannot be called 'preload': open bundles have an attribute of that name"
    check_fault(tmp_path, edit(SCALE, ("scale:", "@preload:")), said)


def test_two_launches_of_one_kernel_need_names(tmp_path: Path):
    second = "      - kernel: k.py:scale_rows\n        grid: [cols]\n        configs: [{blocks: {WIDTH: 1}}]\n"
    said = "op 'scale': two launches have the same name (scale_rows, scale_rows); give them a `name`"
    check_fault(tmp_path, edit(EVERYTHING, ("launches:", "@launches:")) + second, said)
    named = EVERYTHING + second.replace("\n", "\n        name: again\n", 1)
    assert [launch.kernel for launch in contract(tmp_path, named).launches] == ["scale_rows", "again"]


# What a manifest may say


def with_ends(shape: str) -> str:
    return edit(SCALE, ("      out: {", f"      ends: {{shape: [{shape}], dtype: int32}}\n      out: {{"))


def test_shapes_that_give_a_dim(tmp_path: Path):
    inverses = {
        "batch + 1": "extent - 1", "1 + batch": "extent - 1", "batch - 1": "extent + 1", "batch * 2": "extent // 2",
        "batch // 8": "extent * 8", "batch // (cols + 1)": "extent * (cols + 1)",
    }  # fmt: skip
    for extent, inverse in inverses.items():
        source = Scope.of(contract(tmp_path, with_ends(extent))).dims["batch"]
        assert (source.tensor, source.position, source.inverse) == ("ends", 0, inverse)
    forms = "'batch + c', 'batch - c', 'batch * c' or 'batch // c'; or 'batch' must be a scalar"
    said = f"op 'scale': tensor 'ends': nothing gives the extent 'batch': some input needs a dim 'batch', or {forms}"
    for extent in ("batch|1", "8 - batch", "batch % 8", "batch + batch", "batch + other", "batch ** 2"):
        check_fault(tmp_path, edit(with_ends(f'"{extent}"'), ("tensors:", "@tensors:")), said)


def test_a_plain_name_of_an_input_gives_a_dim(tmp_path: Path):
    """Expressions and outputs give no dims."""
    text = edit(SCALE, ("      x: {", "      ends: {shape: [rows + 1], dtype: int32}\n      x: {"))
    assert Scope.of(contract(tmp_path, text)).dims["rows"].tensor == "x"
    with pytest.raises(ManifestError, match="tensor 'out': nothing gives the extent 'wide'"):
        contract(tmp_path, edit(SCALE, ("out: {shape: [rows, cols]", "out: {shape: [rows, wide]")))


def test_contiguous_dims(tmp_path: Path):
    for given, positions in {
        "[cols]": (1,), "[rows, cols]": (0, 1), "[cols, rows]": (1, 0), "[0]": (0,), "[-2, cols]": (0, 1), "[]": (),
    }.items():  # fmt: skip
        text = edit(with_ends(""), ("x: {shape: [rows, cols]", f"x: {{contiguous: {given}, shape: [rows, cols]"))
        assert [tensor.contiguous for tensor in contract(tmp_path, text).tensors] == [positions, (), (1,)]


def test_pick_rules(tmp_path: Path):
    """Values of a rule that compares are sorted."""
    for pick, expected in {
        "smallest >= cols + 1": ((16, 64), "cols + 1", ">="), "smallest>cols": ((16, 64), "cols", ">"),
        "largest <= cols": ((16, 64), "cols", "<="), "largest < cols": ((16, 64), "cols", "<"),
        "cols": ((64, 16), "cols", "equal"),
    }.items():  # fmt: skip
        text = edit(EVERYTHING, ("values: [16, 64], pick: smallest >= cols", f"values: [64, 16], pick: {pick}"))
        assert contract(tmp_path, text).axes[0] == records.Axis("BLOCK", *expected)


def test_what_may_be_left_out(tmp_path: Path):
    """A choice without a default must be passed. Configs without names are numbered; no configs mean a single one."""
    changes = (", default: fast}", "}"), ("name: wide, ", ""), ("name: base, ", "")
    op = contract(tmp_path, edit(EVERYTHING, *changes))
    assert op.scalars[2] == records.Scalar("mode", "choice", "", ("fast", "exact"))
    assert [config.name for config in op.launches[0].configs] == ["config0", "config1"]
    op = contract(tmp_path, edit(SCALE, ("        configs: [{options: {num_warps: 1}}]\n", "")))
    assert op.launches[0].configs == (records.Config("config0", {}, {}),)
