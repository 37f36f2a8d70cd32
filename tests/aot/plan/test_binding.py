import pytest

from aot.compile.kernel_source import Parameter
from aot.manifest.yamlfile import ManifestError
from aot.plan.binding import TRITON_DTYPES, Binder, Bound, compile_job, kernarg_values
from aot_runtime.contract.dtypes import DTYPES
from tests.support.building.bindings import Bindings
from tests.support.building.projects import EVERYTHING, SCALE, edit, position, tuning


def test_an_unbound_parameter_takes_its_default(tmp_path):
    bindings = Bindings(tmp_path)
    assert bindings.bind("x", "extra=None", "shift=3") == [
        bindings.one("x"),
        Bound("extra", "constexpr", constant=None),
        Bound("shift", "constexpr", constant=3),
    ]


@pytest.fixture
def everything(tmp_path) -> Bindings:
    return Bindings(tmp_path)


# By name


@pytest.mark.parametrize(
    "name, general, aligned",
    [
        ("x", Bound("x", "*fp16", None, "x", "float16", True, True), "*fp16"),
        ("partial", Bound("partial", "*fp32", None, "partial", "float32", True, False), "*fp32"),
        ("stride_x_rows", Bound("stride_x_rows", "i32", None, "stride(x, 0)", "", True), "i64"),
        ("stride_x_0", Bound("stride_x_0", "i32", None, "stride(x, 0)", "", True), "i64"),
        ("stride_x_cols", Bound("stride_x_cols", "constexpr", 1), "constexpr"),
        ("stride_x_1", Bound("stride_x_1", "constexpr", 1), "constexpr"),
        ("rows", Bound("rows", "i32", None, "rows"), "i32"),
        ("cols", Bound("cols", "i32", None, "cols", "", True), "i32"),
        ("factor", Bound("factor", "fp32", None, "factor"), "fp32"),
        ("return_top", Bound("return_top", "i1", None, "return_top"), "i1"),
        ("chunks", Bound("chunks", "i32", None, "chunks"), "i32"),
        ("num_cus", Bound("num_cus", "i32", None, "num_cus"), "i32"),
        ("BLOCK", Bound("BLOCK", "constexpr", 16), "constexpr"),
        ("T", Bound("T", "constexpr", "float16"), "constexpr"),
        ("WIDTH", Bound("WIDTH", "constexpr", 4), "constexpr"),
        ("SIZE=7", Bound("SIZE", "constexpr", 7), "constexpr"),
        ("SIZE=None", Bound("SIZE", "constexpr", None), "constexpr"),
        ("BLOCK=7", Bound("BLOCK", "constexpr", 16), "constexpr"),
    ],
)
def test_by_name(everything, name, general, aligned):
    """What each parameter is in the aligned specialisation, and its type in the general one."""
    bound, other = everything.one(name), everything.one(name, aligned=False)
    assert bound == general
    assert (other.type, other.value, other.constant) == (aligned, bound.value, bound.constant)


@pytest.mark.parametrize("name", ["BLOCK", "WIDTH", "T", "arch", "aligned"])
def test_what_the_point_decides_is_a_constant_for_a_run_time_parameter_too(everything, name):
    bound = everything.binder()._bind(
        Parameter(name, False), None, everything.variant(), dict(everything.variant().constants)
    )
    assert bound == Bound(name, "constexpr", constant=dict(everything.variant().constants)[name])


def test_a_pointer_has_the_points_dtype(everything):
    assert everything.one("out", T="float32").type == "*fp32"
    assert everything.one("top", TOP=True).type == "*fp32"


def test_every_dtype_has_a_triton_name():
    assert TRITON_DTYPES.keys() == DTYPES.keys()


def test_what_is_absent_is_none_and_its_strides_are_zero(everything):
    names = ("bias", "stride_bias_cols", "stride_bias_0", "top", "BIASED")
    assert everything.bind(*names, BIASED=False) == [
        Bound("bias", "constexpr", None),
        Bound("stride_bias_cols", "constexpr", 0),
        Bound("stride_bias_0", "constexpr", 0),
        Bound("top", "constexpr", None),
        Bound("BIASED", "constexpr", False),
    ]
    there = everything.bind(*names, BIASED=True)
    assert [item.type for item in there] == ["*fp16", "constexpr", "i32", "constexpr", "constexpr"]
    assert there[2] == Bound("stride_bias_0", "i32", value="stride(bias, 0)", divisible=True)


def test_the_stride_of_a_dim_that_may_be_broadcast_is_never_folded(tmp_path):
    """It is 1, or 0: neither a constant nor a multiple of 16."""
    bindings = Bindings(tmp_path, edit(EVERYTHING, ("[rows|1, cols]", "[rows, cols|1]")))
    bound = bindings.one("stride_bias_cols", BIASED=True)
    assert bound == Bound("stride_bias_cols", "i32", value="stride(bias, 1)", divisible=False)


def test_only_the_innermost_contiguous_dim_has_stride_one(tmp_path):
    bindings = Bindings(
        tmp_path, edit(SCALE, ("x: {shape: [rows, cols]", "x: {contiguous: [cols, rows], shape: [rows, cols]"))
    )
    assert bindings.one("stride_x_0") == Bound("stride_x_0", "constexpr", 1)
    assert bindings.one("stride_x_1") == Bound("stride_x_1", "i32", value="stride(x, 1)", divisible=True)


def test_no_dim_is_contiguous_where_the_manifest_says_none(tmp_path):
    bindings = Bindings(tmp_path, edit(SCALE, ("x: {shape: [rows, cols]", "x: {contiguous: [], shape: [rows, cols]")))
    assert [item.type for item in bindings.bind("stride_x_0", "stride_x_1", "stride_out_1")] == [
        "i32",
        "i32",
        "constexpr",
    ]


def test_hints_only_where_the_manifest_aligns(tmp_path):
    bindings = Bindings(
        tmp_path,
        edit(SCALE, ("x: {shape: [rows, cols], dtype: T}", "x: {shape: [rows, cols], dtype: T, align: false}")),
    )
    found = bindings.bind("x", "stride_x_rows", "out", "stride_out_rows", "rows", "cols", "factor")
    assert [item.name for item in found if item.divisible] == ["out", "stride_out_rows"]
    assert [item.name for item in found if item.ranged] == ["x", "out"]


def test_a_general_variant_has_no_hints(everything):
    launch = everything.manifest.spec.ops["scale"].launches[0]
    names = ("x", "stride_x_rows", "partial", "cols", "rows", "BLOCK")
    jobs = {}
    for aligned in (True, False):
        variant = everything.variant(aligned=aligned)
        bound = everything.binder(*names).bind(variant)
        jobs[aligned] = compile_job(everything.manifest, launch, bound, variant, "gfx942", False)
    assert jobs[True].divisible_by_16 == ("x", "stride_x_rows", "partial", "cols")
    assert jobs[True].pointer_range_32 == ("x",)
    assert (jobs[False].divisible_by_16, jobs[False].pointer_range_32) == ((), ())
    assert jobs[True].signature == (
        ("x", "*fp16"),
        ("stride_x_rows", "i32"),
        ("partial", "*fp32"),
        ("cols", "i32"),
        ("rows", "i32"),
        ("BLOCK", "constexpr"),
    )
    assert jobs[False].signature[1] == ("stride_x_rows", "i64")
    assert jobs[True].constants == (("BLOCK", 16),)
    assert (jobs[True].source, jobs[True].function, jobs[True].options) == ("k.py", "scale_rows", (("num_warps", 8),))


def test_kernargs_are_what_is_no_constant(everything):
    bound = everything.binder("x", "stride_x_cols", "stride_x_rows", "bias", "factor", "BLOCK").bind(
        everything.variant()
    )
    assert list(kernarg_values(bound)) == [
        ("x", "*float16", "x"),
        ("stride_x_rows", "i32", "stride(x, 0)"),
        ("factor", "fp32", "factor"),
    ]


# By `bind`


@pytest.mark.parametrize(
    "bind, expected",
    [
        ("p: x", Bound("p", "*fp16", None, "x", "float16", True, True)),
        ("p: partial", Bound("p", "*fp32", None, "partial", "float32", True)),
        ("p: bias", Bound("p", "constexpr", None)),
        ("p: 3", Bound("p", "constexpr", 3)),
        ("p: 1.5", Bound("p", "constexpr", 1.5)),
        ("p: true", Bound("p", "constexpr", True)),
        ("p: BLOCK * 2", Bound("p", "constexpr", 32)),
        ("p: BLOCK if given(bias) else 0", Bound("p", "constexpr", 0)),
        ("p: elsize(x)", Bound("p", "constexpr", 2)),
        ("p: cols", Bound("p", "i32", value="cols", divisible=True)),
        ("p: rows*cols", Bound("p", "i32", value="rows * cols")),
        ("p: factor * 1.5", Bound("p", "fp32", value="factor * 1.5")),
        ("p: rows / 2", Bound("p", "fp32", value="rows / 2")),
        ("p: rows ** -1", Bound("p", "fp32", value="rows ** (-1)")),
        ("p: rows if return_top else factor", Bound("p", "fp32", value="rows if return_top else factor")),
        ("p: rows // 2", Bound("p", "i32", value="rows // 2")),
        ("p: rows > 2 and return_top", Bound("p", "i1", value="rows > 2 and return_top")),
        ("p: not return_top", Bound("p", "i1", value="not return_top")),
        ("p: mode == 'fast'", Bound("p", "i1", value="mode == 'fast'")),
        ("p: '-rows'", Bound("p", "i32", value="-rows")),
        ('p: "min(rows, 8)"', Bound("p", "i32", value="min(rows, 8)")),
        ('p: "stride(x, rows)"', Bound("p", "i32", value="stride(x, 0)", divisible=True)),
        ('p: "stride(x, cols)"', Bound("p", "constexpr", 1)),
        ('p: "stride(x, rows) * 2"', Bound("p", "i32", value="stride(x, 0) * 2")),
        ("p: {value: rows, type: i64}", Bound("p", "i64", value="rows")),
        ("p: {value: factor, type: fp64}", Bound("p", "fp64", value="factor")),
        ("p: {value: 1, type: i64}", Bound("p", "i64", value="1")),
        ("p: {value: BLOCK * 2, type: u64}", Bound("p", "u64", value="32")),
        ('p: {value: "stride(x, cols)", type: i64}', Bound("p", "i64", value="stride(x, 1)")),
        ('p: {value: "stride(x, 0)", type: i64}', Bound("p", "i64", value="stride(x, 0)", divisible=True)),
        ("p: {value: rows}", Bound("p", "i32", value="rows")),
    ],
)
def test_by_bind(tmp_path, bind, expected):
    assert Bindings(tmp_path, bind=bind).one("p") == expected


def test_an_expression_of_strides_is_wide_in_the_general_specialisation(tmp_path):
    bindings = Bindings(tmp_path, bind='p: "stride(x, 0) * 2"')
    assert [bindings.one("p", aligned=aligned).type for aligned in (True, False)] == ["i32", "i64"]


@pytest.mark.parametrize("derived, kind", [("cols ** -0.5", "fp32"), ("cols > 16", "i1"), ("cols * 2", "i32")])
def test_a_derived_number_has_the_type_of_its_value(tmp_path, derived, kind):
    text = edit(EVERYTHING, ('{chunks: "cdiv(cols, 16)"}', f'{{chunks: "cdiv(cols, 16)", a: "{derived}", b: a}}'))
    assert Bindings(tmp_path, text).one("b") == Bound("b", kind, value="b")


@pytest.mark.parametrize(
    "bind, constant",
    [
        ("P: 3", 3),
        ("P: BLOCK // 2", 8),
        ("P: T == 'float16'", True),
        ("P: 64 if arch == 'gfx942' else 32", 64),
        ("P: given(bias)", False),
        ("P: {value: 2.5}", 2.5),
        ("P: elsize(T) * WIDTH", 8),
    ],
)
def test_constexprs_by_bind(tmp_path, bind, constant):
    assert Bindings(tmp_path, bind=bind).one("P=9") == Bound("P", "constexpr", constant)


# What is refused


def test_a_parameter_that_nothing_binds(everything):
    start = everything.at("kernel: ")
    text = (
        "is not bound: it is no tensor, stride_<tensor>_<dim>, dim, scalar, constexpr, derived number or workspace, "
        "and `bind` does not name it; did you mean "
    )
    for name, nearest in (
        ("strid_x_rows", "stride_x_rows"),
        ("fator", "factor"),
        ("chunk", "chunks"),
        ("partail", "partial"),
    ):
        assert everything.fault(name, "WIDTH") == f"{start}kernel parameter '{name}' {text}'{nearest}'?"


def test_a_constexpr_that_nothing_binds(everything):
    assert everything.fault("BLCOK", "WIDTH") == (
        f"{everything.at('kernel: ')}constexpr parameter 'BLCOK' of the kernel is not bound: no axis, config or "
        "bind of that name; did you mean 'BLOCK'?"
    )


def test_a_default_that_is_no_plain_value(everything):
    binder = Binder(everything.manifest, everything.op, 0, (Parameter("KIND", True, True, object),), "gfx942")
    with pytest.raises(ManifestError, match=r"the default of constexpr parameter 'KIND' is <class 'object'>; a number"):
        binder.bind(everything.variant())


@pytest.mark.parametrize(
    "bind, fragment, message",
    [
        ("fator: 3", "fator", "kernel has no parameter 'fator'; did you mean 'factor'?"),
        ("P: rows", "P: rows", "'rows' is not known at build, but 'P' is a constexpr"),
        ("P: factor > 1", "P: factor", "'factor > 1' is not known at build, but 'P' is a constexpr"),
        (
            "factor: fcator",
            "factor: fc",
            "parameter 'factor': 'fcator' uses undefined name 'fcator'; did you mean 'factor'?",
        ),
        ("P: BLOKC", "P: BLOKC", "parameter 'P': 'BLOKC' uses undefined name 'BLOKC'; did you mean 'BLOCK'?"),
        ("factor: x.T", "factor: x", "parameter 'factor': 'x.T': 'x.T' is not part of the expression language"),
        (
            "factor: mode",
            "factor: mode",
            "parameter 'factor': 'mode' is text, which a kernel cannot take at run time; "
            "make it a constexpr, picked by it, or give its choices numbers",
        ),
        (
            'factor: "stride(y, 0)"',
            'factor: "',
            "parameter 'factor': 'stride(y, 0)': stride(y): 'y' is no tensor; known: bias, out, top, x",
        ),
        (
            'factor: "stride(x, depth)"',
            'factor: "',
            "parameter 'factor': stride(x, depth): 'depth' names no single dim of 'x' [rows, cols]",
        ),
        (
            'factor: "stride(x, 2) + 1"',
            'factor: "',
            "parameter 'factor': stride(x, 2): '2' names no single dim of 'x' [rows, cols]",
        ),
        (
            "P: 1 // (BLOCK - 16)",
            "P: 1",
            "parameter 'P': '1 // (BLOCK - 16)' cannot be evaluated: integer division or modulo by zero",
        ),
        (
            "factor: 1 // (BLOCK - 16)",
            "factor: 1",
            "parameter 'factor': '1 // (BLOCK - 16)' cannot be evaluated: integer division or modulo by zero",
        ),
    ],
)
def test_binds_that_are_refused(tmp_path, bind, fragment, message):
    bindings = Bindings(tmp_path, bind=bind)
    assert bindings.fault("factor", "P=1", "WIDTH") == bindings.at(fragment) + message


def test_a_stride_name_that_fits_two_dims(tmp_path):
    bindings = Bindings(tmp_path, edit(SCALE, ("x: {shape: [rows, cols]", "x: {shape: [rows, rows, cols]")))
    assert bindings.fault("stride_x_rows") == (
        f"{bindings.at('kernel: ')}parameter 'stride_x_rows': stride(x, rows): 'rows' names no single dim of 'x' "
        "[rows, rows, cols]"
    )
    assert bindings.one("stride_x_1").value == "stride(x, 1)"


@pytest.mark.parametrize("key, nearest", [("WIDHT", "WIDTH"), ("BLOKC", "BLOCK")])
def test_a_block_that_is_no_constexpr(tmp_path, key, nearest):
    text = edit(EVERYTHING, ("WIDTH: 4}", f"WIDTH: 4, {key}: 2}}"))
    bindings = Bindings(tmp_path, text)
    assert bindings.fault("x", "BLOCK", "WIDTH") == (
        f"{position(bindings.path, key + ': 2')}: op 'scale': config 'wide': '{key}' is no constexpr parameter of "
        f"'k.py:scale_rows'; did you mean '{nearest}'?"
    )


def test_such_a_key_of_a_tuning_file_has_its_place_there(tmp_path):
    path = tmp_path / "tuning" / "scale.yaml"
    path.parent.mkdir()
    path.write_text(tuning("{scale_rows: [{name: base, blocks: {WIDHT: 3}}]}"))
    found = Bindings(tmp_path).fault("x", "WIDTH")
    assert found.startswith(f"{position(path, 'WIDHT')}: op 'scale': config 'base': 'WIDHT' is no constexpr")


def test_a_run_time_parameter_cannot_be_tuned(everything):
    """`WIDTH` is in the configs, so the kernel's parameter must be a constexpr."""
    binder = Binder(everything.manifest, everything.op, 0, (Parameter("WIDTH", False),), "gfx942")
    with pytest.raises(ManifestError, match="config 'wide': 'WIDTH' is no constexpr parameter of"):
        binder.check()
