import pytest

from aot_runtime.call.planner import Planner
from aot_runtime.contract import records
from aot_runtime.contract.names import Scope
from tests.support.building.projects import EVERYTHING, SCALE, contract, contract_fault, edit, position


def check(tmp_path, text: str, fragment: str, message: str) -> None:
    """The contract has exactly this one fault, at the fragment's place."""
    found = contract_fault(tmp_path, text)
    assert found == f"{position(tmp_path / 'm.yaml', fragment)}: op 'scale': {message}"


def test_a_contract_has_all_that_the_manifest_says(tmp_path):
    op = contract(tmp_path, EVERYTHING)
    assert [tensor.name for tensor in op.tensors] == ["x", "bias", "out", "top"]
    assert op.tensors[1].shape == (records.Dim("rows", True), records.Dim("cols"))
    assert (op.tensors[1].optional, op.tensors[2].role, op.tensors[3].when) == (True, "output", "return_top")
    assert [tensor.contiguous for tensor in op.tensors] == [(1,), (1,), (1,), (0,)], "the last dim is, by default"
    assert op.scalars[0] == records.Scalar("factor", "fp32", "cols ** (-0.5)")
    assert op.scalars[1] == records.Scalar("return_top", "flag", "False")
    assert op.scalars[2] == records.Scalar("mode", "choice", "'fast'", ("fast", "exact"))
    assert op.dims == (records.DimLimit("cols", 1, 4096),)
    assert (op.require, op.divisible, op.dtypes) == (("cols % 2 == 0",), ("cols",), {"T": ("float16", "float32")})
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


# Expressions, wherever there is one

PLACES = {
    "shape": ("shape: [rows], dtype", "shape: ['{}'], dtype"),
    "output when": ("when: return_top", "when: '{}'"),
    "default": ("default: cols ** -0.5", "default: '{}'"),
    "require": ("require: [cols % 2 == 0]", "require: ['{}']"),
    "derived": ('chunks: "cdiv(cols, 16)"', "chunks: '{}'"),
    "pick": ("pick: return_top", "pick: '{}'"),
    "pick smallest": ("pick: smallest >= cols", "pick: 'smallest >= {}'"),
    "exclude": ("exclude: [TOP and BIASED]", "exclude: ['{}']"),
    "overrides": ("{when: BLOCK == 64", "{{when: '{}'"),
    "workspace": ("shape: [rows, chunks]", "shape: [rows, '{}']"),
    "grid": ("grid: [rows]", "grid: ['{}']"),
    "launch when": ("when: rows > 0", "when: '{}'"),
    "config when": ("when: cols > 32", "when: '{}'"),
}
FORBIDDEN = {
    "rows.shape": "'rows.shape' is not part of the expression language",
    "rows[0]": "'rows[0]' is not part of the expression language",
    "lambda: 1": "'lambda: 1' is not part of the expression language",
    "(n := 3)": "'(n := 3)' is not part of the expression language",
    'f"{rows}"': "'f'{rows}'' is not part of the expression language",
    "[rows]": "'[rows]' is not part of the expression language",
    "rows if rows else [i for i in rows]": "'[i for i in rows]' is not part of the expression language",
    "open(rows)": "unknown function 'open'; known: abs, cdiv, elsize, given, innermost, max, min, next_pow2, stride",
    "cdv(rows, 2)": "unknown function 'cdv'; did you mean 'cdiv'?",
    "cdiv(rows)": "cdiv() takes 2 arguments",
    "2 ** 17": "an exponent is a literal number of at most 16",
    "2 ** rows": "an exponent is a literal number of at most 16",
    "(rows ** 9) ** 9": "a power of a power is not allowed",
    "__import__": "name '__import__' starts with an underscore",
}


def located(tmp_path, place: str, expression: str) -> tuple[str, str]:
    """(the fault of EVERYTHING with an expression put somewhere, the place of that expression)."""
    old, new = PLACES[place]
    filled = new.format(expression)
    text = edit(EVERYTHING, (old, filled))
    found = contract_fault(tmp_path, text)
    offset = {"shape": 8, "require": 10, "exclude": 10, "workspace": 14, "grid": 7, "overrides": 1}.get(place, 0)
    line, column = position(tmp_path / "m.yaml", filled).split(":")[-2:]
    return found, f"{tmp_path / 'm.yaml'}:{line}:{int(column) + offset}: op 'scale': "


@pytest.mark.parametrize("expression", FORBIDDEN)
@pytest.mark.parametrize("place", PLACES)
def test_forbidden_constructs(tmp_path, place, expression):
    found, start = located(tmp_path, place, expression)
    assert found == f"{start}'{expression}': {FORBIDDEN[expression]}"


@pytest.mark.parametrize("place", PLACES)
def test_undefined_names(tmp_path, place):
    found, start = located(tmp_path, place, "nosuchname + 1")
    if place == "shape":
        assert found == (
            f"{tmp_path / 'm.yaml'}:4:5: op 'scale': tensor 'top': nothing gives the extent 'nosuchname': some input "
            "needs a dim 'nosuchname', or 'nosuchname + c', 'nosuchname - c', 'nosuchname * c' or 'nosuchname // c'"
        )
    else:
        assert found.startswith(f"{start}'nosuchname + 1' uses undefined name 'nosuchname'; known: ")


@pytest.mark.parametrize("place", PLACES)
def test_text_is_only_compared(tmp_path, place):
    name = "arch" if place in ("exclude", "overrides", "default") else "mode"
    found, start = located(tmp_path, place, f"{name} + 1")
    assert found == f"{start}'{name} + 1': text can only be compared with == and !=, not computed with"


@pytest.mark.parametrize("place", ["output when", "default", "require", "derived", "exclude", "overrides"])
def test_strides_are_not_known_everywhere(tmp_path, place):
    found, start = located(tmp_path, place, "stride(x, rows) > 1")
    part = {"output when": "tensors", "default": "scalars"}.get(place, place)
    dim = "rows" if place == "output when" else "0"
    assert found == f"{start}'stride(x, {dim}) > 1': strides are not known here; {part} cannot depend on them"


@pytest.mark.parametrize(
    "place, expression, nearest",
    [
        ("pick", "retrun_top", "return_top"),  # a scalar
        ("grid", "BLCOK * rows", "BLOCK"),  # an axis
        ("grid", "cdiv(rows, WIDHT)", "WIDTH"),  # what every config sets
        ("launch when", "chunk > 1", "chunks"),  # a derived number
        ("overrides", "WIDHT == 4", "WIDTH"),
        ("overrides", "confg", "config"),
        ("exclude", "BAISED", "BIASED"),
        ("exclude", "alinged", "aligned"),
    ],
)
def test_the_nearest_name(tmp_path, place, expression, nearest):
    found, start = located(tmp_path, place, expression)
    assert found.startswith(f"{start}'{expression}' uses undefined name ")
    assert found.endswith(f"; did you mean '{nearest}'?")


@pytest.mark.parametrize(
    "place, expression",
    [
        ("require", "aligned"),  # is only decided after the call is accepted
        ("derived", "BLOCK"),
        ("default", "return_top"),  # a later scalar
        ("exclude", "rows > 2"),  # a call's, where only what is built is known
        ("launch when", "WIDTH > 2"),  # a config is chosen when the launch is
        ("pick smallest", "TOP"),  # a later axis
    ],
)
def test_names_are_known_only_from_where_they_are_decided(tmp_path, place, expression):
    found, start = located(tmp_path, place, expression)
    assert "uses undefined name" in found and found.startswith(start)


def test_questions_about_what_is_no_tensor(tmp_path):
    found, start = located(tmp_path, "pick", "given(bais)")
    assert found == f"{start}'given(bais)': given(bais): 'bais' is no tensor; did you mean 'bias'?"
    found, start = located(tmp_path, "grid", "stride(x, column)")
    assert found == f"{start}stride(x, column): 'column' names no single dim of 'x' [rows, cols]"


def test_strides_are_stored_by_position(tmp_path):
    """A planner reads `stride(x, 0)`; a dim's name in there would be its extent."""
    op = contract(tmp_path, edit(EVERYTHING, ("when: cols > 32", "when: 'stride(x, rows) + stride(x, cols) > 32'")))
    assert op.launches[0].configs[0].when == "stride(x, 0) + stride(x, 1) > 32"


# Names


@pytest.mark.parametrize(
    "change, fragment, message",
    [
        (("      top: {", "      stream: {"), "stream: {", "'stream' is reserved; choose another name"),
        (("      mode: {", "      num_cus: {"), "num_cus: {", "'num_cus' is reserved; choose another name"),
        (("{chunks: ", "{lambda: "), "lambda: ", "'lambda' is reserved; choose another name"),
        (("      mode: {", "      bias: {"), "bias: {type", "'bias' is in `tensors` already; names are distinct"),
        (("partial: {", "BLOCK: {"), "BLOCK: {shape", "'BLOCK' is in `constexprs` already; names are distinct"),
        (("      TOP: {", "      T: {"), "T: {values", "'T' is in `dtypes` already; names are distinct"),
        (
            ("      TOP: {", "      rows: {"),
            "tensors:",
            "'rows' cannot be a dim's name: it is reserved, or something else's name",
        ),
        (
            ("shape: [rows|1, cols]", "shape: [rows|1, x]"),
            "tensors:",
            "'x' cannot be a dim's name: it is reserved, or something else's name",
        ),
        (
            ("WIDTH: 4}", "WIDTH: 4, BLOCK: 4}"),
            "BLOCK: 4",
            "a config of 'scale_rows' sets 'BLOCK', which the op has",
        ),
        (
            ("WIDTH: 4}", "WIDTH: 4, aligned: 4}"),
            "aligned: 4",
            "a config of 'scale_rows' sets 'aligned': no identifier, or a reserved one",
        ),
        (("dims: {cols: {", "dims: {clos: {"), "clos: {", "'clos' is no dim of a tensor; did you mean 'cols'?"),
        (("divisible: [cols]", "divisible: [col]"), "divisible", "'col' is no dim of a tensor; did you mean 'cols'?"),
        (
            ("dtype: float32, role: output, when", "dtype: flaot32, role: output, when"),
            "dtype: flaot32",
            "'flaot32' is no dtype and no dtype variable; did you mean 'float32'?",
        ),
        (
            ("options: {num_stages: 1}", "options: {num_stage: 1}"),
            "num_stage: 1",
            "'num_stage' is no compiler option; did you mean 'num_stages'?",
        ),
    ],
)
def test_names_that_are_refused(tmp_path, change, fragment, message):
    check(tmp_path, edit(EVERYTHING, change), fragment, message)


def test_an_op_cannot_have_the_name_of_a_bundles_attribute(tmp_path):
    found = contract_fault(tmp_path, edit(SCALE, ("  scale:", "  preload:")))
    assert found.endswith(
        "3:3: op 'preload': an op cannot be called 'preload': open bundles have an attribute of that name"
    )


def test_two_launches_of_one_kernel_need_names(tmp_path):
    second = "      - kernel: k.py:scale_rows\n        grid: [cols]\n        configs: [{blocks: {WIDTH: 1}}]\n"
    check(
        tmp_path,
        EVERYTHING + second,
        "launches:",
        "two launches have one name (scale_rows, scale_rows); give them a `name`",
    )
    named = EVERYTHING + second.replace("\n", "\n        name: again\n", 1)
    assert [launch.kernel for launch in contract(tmp_path, named).launches] == ["scale_rows", "again"]


# Tensors


@pytest.mark.parametrize(
    "extent, inverse",
    [
        ("batch + 1", "extent - 1"),
        ("1 + batch", "extent - 1"),
        ("batch - 1", "extent + 1"),
        ("batch * 2", "extent // 2"),
        ("batch // 8", "extent * 8"),
        ("batch + cols", "extent - cols"),
        ("batch // (cols + 1)", "extent * (cols + 1)"),
    ],
)
def test_shapes_that_give_a_dim(tmp_path, extent, inverse):
    op = contract(
        tmp_path, edit(SCALE, ("      out: {", f"      ends: {{shape: [{extent}], dtype: int32}}\n      out: {{"))
    )
    source = Scope.of(op).dims["batch"]
    assert (source.tensor, source.position, source.inverse) == ("ends", 0, inverse)


@pytest.mark.parametrize(
    "extent", ["batch|1", "8 - batch", "batch % 8", "batch + batch", "batch + other", "batch ** 2"]
)
def test_shapes_that_give_none(tmp_path, extent):
    text = edit(SCALE, ("      out: {", f'      ends: {{shape: ["{extent}"], dtype: int32}}\n      out: {{'))
    check(
        tmp_path,
        text,
        "tensors:",
        "tensor 'ends': nothing gives the extent 'batch': some input needs a dim 'batch', or 'batch + c', "
        "'batch - c', 'batch * c' or 'batch // c'",
    )


def test_a_plain_name_gives_a_dim_rather_than_an_expression(tmp_path):
    text = edit(SCALE, ("      x: {", "      ends: {shape: [rows + 1], dtype: int32}\n      x: {"))
    assert Scope.of(contract(tmp_path, text)).dims["rows"].tensor == "x"


def test_an_output_gives_no_dim(tmp_path):
    found = contract_fault(tmp_path, edit(SCALE, ("out: {shape: [rows, cols]", "out: {shape: [rows, wide]")))
    assert "tensor 'out': nothing gives the extent 'wide'" in found


def test_only_one_is_broadcast(tmp_path):
    check(
        tmp_path,
        edit(EVERYTHING, ("rows|1", "rows|2")),
        "rows|2",
        "'rows|2': only `dim|1` (an extent of 1 is broadcast) is allowed",
    )


@pytest.mark.parametrize(
    "given, positions",
    [
        ("[cols]", (1,)),
        ("[rows, cols]", (0, 1)),
        ("[cols, rows]", (1, 0)),
        ("[0]", (0,)),
        ("[-1]", (1,)),
        ("[-2, cols]", (0, 1)),
        ("[]", ()),
    ],
)
def test_contiguous_dims(tmp_path, given, positions):
    op = contract(tmp_path, edit(SCALE, ("x: {shape: [rows, cols]", f"x: {{contiguous: {given}, shape: [rows, cols]")))
    assert op.tensors[0].contiguous == positions


@pytest.mark.parametrize(
    "given, fragment, message",
    [
        ("[colls]", "colls", "'colls' names no single dim of ['rows', 'cols']"),
        ("[2]", "2], shape", "'2' names no single dim of ['rows', 'cols']"),
        ("[-3]", "-3", "'-3' names no single dim of ['rows', 'cols']"),
        ("[1, cols]", "contiguous", "a dim is named twice"),
    ],
)
def test_contiguous_dims_that_are_none(tmp_path, given, fragment, message):
    text = edit(SCALE, ("x: {shape: [rows, cols]", f"x: {{contiguous: {given}, shape: [rows, cols]"))
    check(tmp_path, text, fragment, message)


def test_a_dim_that_is_there_twice_is_contiguous_by_position_only(tmp_path):
    text = edit(SCALE, ("x: {shape: [rows, cols]", "x: {contiguous: [cols], shape: [rows, cols, cols]"))
    check(tmp_path, text, "cols], shape", "'cols' names no single dim of ['rows', 'cols', 'cols']")


def test_a_scalar_tensor_has_no_contiguous_dim(tmp_path):
    text = edit(SCALE, ("      out: {", "      seed: {shape: [], dtype: int32}\n      out: {"))
    assert contract(tmp_path, text).tensors[1].contiguous == ()


@pytest.mark.parametrize(
    "changes, fragment, message",
    [
        (
            [("pick: given(bias)", "pick: not given(bias)")],
            "bias: {",
            "'bias' may be absent, but no constexpr has `pick: given(bias)`, "
            "so the kernel cannot know whether it is there",
        ),
        (
            [("x: {shape: [rows, cols], dtype: T", "x: {shape: [rows, cols], dtype: T, innermost: [cols, rows]")],
            "innermost",
            "any of several dims of 'x' may be the innermost, but no constexpr has `pick: innermost(x, cols)`, "
            "so the kernel cannot know which is",
        ),
        (
            [("x: {shape: [rows, cols], dtype: T", "x: {shape: [rows, cols], dtype: T, innermost: [cols, depth]")],
            "depth]",
            "'depth' names no single dim of ['rows', 'cols']",
        ),
        (
            [("pick: return_top", "pick: not return_top")],
            "top: {shape",
            "'top' may be absent, but no constexpr has `pick: return_top`, "
            "so the kernel cannot know whether it is there",
        ),
        (
            [("optional: true", "optional: true, when: return_top")],
            "when: return_top}\n      out",
            "only an output has `when`; an input may be `optional: true`",
        ),
        (
            [("when: return_top", "when: return_top, optional: true")],
            "optional: true}\n    scalars",
            "an output is not optional; say when it exists with `when`",
        ),
        (
            [("x: {shape: [rows, cols], dtype: T}", "x: {shape: [rows, cols], dtype: int8}")],
            "T: [float16",
            "no required input has dtype 'T', so no call decides it",
        ),
    ],
)
def test_tensors_that_are_refused(tmp_path, changes, fragment, message):
    check(tmp_path, edit(EVERYTHING, *changes), fragment, message)


def test_presence_is_compared_in_canonical_spelling(tmp_path):
    text = edit(
        EVERYTHING,
        ("when: return_top", "when: return_top   and(rows>1)"),
        ("pick: return_top", "pick: (return_top and rows > 1)"),
    )
    assert contract(tmp_path, text).tensors[3].when == "return_top and rows > 1"


# Scalars and axes


@pytest.mark.parametrize(
    "change, fragment, message",
    [
        (("default: fast}", "default: faste}"), "default: faste", "'faste' is not one of fast, exact"),
        (("values: [fast, exact], ", ""), "mode: {", "`values` goes with `type: choice`, and only with it"),
        (
            ("type: fp32,", "type: fp32, values: [a],"),
            "factor: {",
            "`values` goes with `type: choice`, and only with it",
        ),
        (("type: flag,", "type: flag, max: 1,"), "return_top: {", "a flag has no min or max"),
        (("type: choice,", "type: choice, min: 0,"), "mode: {", "a choice has no min or max"),
        (("values: [16, 64]", "values: [16, 16]"), "values: [16", "values must be distinct and of one type"),
        (("values: [16, 64]", "values: [16, 64.0]"), "values: [16", "values must be distinct and of one type"),
        (
            ("values: [16, 64]", "values: [small, large]"),
            "pick: smallest",
            "smallest and largest need numbers as values",
        ),
        (
            ("values: [16, 64]", "values: [false, true]"),
            "pick: smallest",
            "smallest and largest need numbers as values",
        ),
        (("smallest >= cols", "smallest >= mode"), "pick: smallest", "'mode' is text; >= needs a number"),
        (("smallest >= cols", "smallest >= T"), "pick: smallest", "'T' is text; >= needs a number"),
        (
            ("smallest >= cols", "smallest <= cols"),
            "pick: smallest",
            "'smallest <= cols': allowed are smallest >= E, smallest > E, largest <= E and largest < E, "
            "of an expression E",
        ),
    ],
)
def test_scalars_and_axes_that_are_refused(tmp_path, change, fragment, message):
    check(tmp_path, edit(EVERYTHING, change), fragment, message)


def test_a_choice_without_a_default_must_be_passed(tmp_path):
    op = contract(tmp_path, edit(EVERYTHING, (", default: fast}", "}")))
    assert op.scalars[2] == records.Scalar("mode", "choice", "", ("fast", "exact"))


@pytest.mark.parametrize(
    "pick, rule, expression",
    [
        ("smallest >= cols + 1", ">=", "cols + 1"),
        ("smallest>cols", ">", "cols"),
        ("largest <= cols", "<=", "cols"),
        ("largest < cols", "<", "cols"),
        ("cols", "equal", "cols"),
    ],
)
def test_pick_rules(tmp_path, pick, rule, expression):
    op = contract(
        tmp_path, edit(EVERYTHING, ("values: [16, 64], pick: smallest >= cols", f"values: [64, 16], pick: {pick}"))
    )
    values = (64, 16) if rule == "equal" else (16, 64)
    assert op.axes[0] == records.Axis("BLOCK", values, expression, rule)


# Configs


@pytest.mark.parametrize(
    "changes, fragment, message",
    [
        (
            [("{name: base, ", "{name: base, when: rows > 1, ")],
            "when: rows > 1,",
            "the last config ('base') must serve every call: it has no `when`",
        ),
        ([("when: cols > 32, ", "")], "{name: wide", "config 'wide' has no `when`, so those after it are never used"),
        ([("name: base", "name: wide")], "configs:", "two configs have one name (wide, wide)"),
        ([("when: cols > 32", "when: cols >")], "when: cols >", "'cols >' is not an expression: invalid syntax"),
    ],
)
def test_configs_that_are_refused(tmp_path, changes, fragment, message):
    check(tmp_path, edit(EVERYTHING, *changes), fragment, message)


def test_configs_without_names_are_numbered(tmp_path):
    op = contract(tmp_path, edit(EVERYTHING, ("name: wide, ", ""), ("name: base, ", "")))
    assert [config.name for config in op.launches[0].configs] == ["config0", "config1"]


def test_a_launch_without_configs_has_one(tmp_path):
    op = contract(tmp_path, edit(SCALE, ("        configs: [{options: {num_warps: 1}}]\n", "")))
    assert op.launches[0].configs == (records.Config("config0", {}, {}),)
