from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot.manifest.yamlfile import ManifestError
from aot.plan.bind_parameters import Binder
from aot.plan.bound_parameter import BoundParameter, kernarg_values
from aot.source.constants import Dtype
from aot.source.kernel_source import Parameter
from tests.support.building.bindings import Bindings, binding, with_bind
from tests.support.building.projects import EVERYTHING, SCALE, check_fault, edit, rows, tuning, unmarked

KERNEL = "op 'scale', kernel 'k.py:scale_rows': "


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Bindings:
    return Bindings(tmp_path_factory.mktemp("everything"))


def constant(value: Any) -> BoundParameter:
    return BoundParameter("", "constexpr", value)


def number(kind: str, value: str, divisible: int = 1) -> BoundParameter:
    return BoundParameter("", kind, None, value, "", divisible)


STRIDE = number("i32", "stride(x, 0)", 8)
PARTIAL = replace(BoundParameter("", "*fp32", None, "partial", "float32", 16), specialised=True)
X = BoundParameter("", "*fp16", None, "x", "float16", 16, True)
# What a parameter is in the aligned specialisation, by its name.
BY_NAME = {
    "x": X, "partial": PARTIAL, "stride_x_rows": STRIDE, "stride_x_0": STRIDE,
    "stride_x_cols": constant(1), "stride_x_1": constant(1),
    "rows": number("i32", "rows"), "cols": number("i32", "cols", 8),
    "factor": number("fp32", "factor"), "return_top": number("i1", "return_top"),
    "chunks": number("i32", "chunks"), "num_cus": number("i32", "num_cus"),
    "BLOCK": constant(16), "T": constant("float16"), "WIDTH": constant(4),
    "SIZE=7": constant(7), "NONE=None": constant(None), "BLOCK=7": constant(16), "shift=3": constant(3),
}  # fmt: skip


def test_by_name(everything: Bindings):
    found = everything.bind(*BY_NAME)
    assert found == [replace(bound, name=name.partition("=")[0]) for name, bound in BY_NAME.items()]
    general = [replace(item, type="i64") if "stride" in item.value else item for item in found]
    assert everything.bind(*BY_NAME, aligned=False) == general


def test_what_is_absent_is_none_and_its_strides_are_zero(everything: Bindings):
    names = ("bias", "stride_bias_cols", "stride_bias_0", "top", "BIASED")
    absent = everything.bind(*names, BIASED=False)
    assert [(item.type, item.constant) for item in absent] == [("constexpr", c) for c in (None, 0, 0, None, False)]
    there = everything.bind(*names, BIASED=True, T="float32")
    assert [item.type for item in there] == ["*fp32", "constexpr", "i32", "constexpr", "constexpr"]
    assert there[2] == BoundParameter("stride_bias_0", "i32", value="stride(bias, 0)", divisible=4)
    assert everything.bind("top", TOP=True)[0].type == "*fp32"


@pytest.mark.parametrize(
    ("shape", "types", "divisible"),
    [
        ("contiguous: [cols, rows], shape: [rows, cols]", ["constexpr", "i32"], [1]),
        ("contiguous: [], shape: [rows, cols]", ["i32", "i32"], [0, 1]),
        ("shape: [rows, cols|1]", ["i32", "i32"], [0]),  # it is 1, or 0: neither a constant nor a multiple of 16
        ("align: false, shape: [rows, cols]", ["i32", "constexpr"], []),
    ],
)
def test_strides(tmp_path: Path, shape: str, types: list[str], divisible: list[int]):
    """The stride of the innermost contiguous dim is 1."""
    text = edit(SCALE, ("out: {shape", "y: {shape: [rows, cols], dtype: T}\n      out: {shape"))
    bindings = Bindings(tmp_path, edit(text, ("x: {shape: [rows, cols]", f"x: {{{shape}")))
    found = bindings.bind("stride_x_0", "stride_x_1", "x", "stride_out_0")
    assert [item.type for item in found[:2]] == types
    assert [i for i, item in enumerate(found[:2]) if item.divisible > 1] == divisible
    address = 1 if "align" in shape else 16
    assert [(item.divisible, item.ranged) for item in found[2:]] == [(address, True), (8, False)]


def test_a_compile_job(everything: Bindings):
    """Only the aligned specialisation has hints, except of workspaces; parameters without a constant are kernargs."""
    names = ("x", "stride_x_rows", "stride_x_cols", "partial", "cols", "bias", "factor", "BLOCK")
    aligned, general = (everything.job(*names, aligned=aligned) for aligned in (True, False))
    assert aligned.divisible == (("x", 16), ("stride_x_rows", 8), ("partial", 16), ("cols", 8))
    assert aligned.pointer_range_32 == ("x",)
    assert (general.divisible, general.pointer_range_32) == ((("partial", 16),), ())
    types = ("*fp16", "i32", "constexpr", "*fp32", "i32", "constexpr", "fp32", "constexpr")
    assert aligned.signature == tuple(zip(names, types, strict=True))
    assert dict(general.signature) == dict(aligned.signature) | {"stride_x_rows": "i64"}
    assert aligned.constants == (("stride_x_cols", 1), ("bias", None), ("BLOCK", 16))
    assert (aligned.source, aligned.function, aligned.options) == ("k.py", "scale_rows", (("num_warps", 8),))
    assert list(kernarg_values(tuple(everything.bind(*names)))) == [
        ("x", "*float16", "x"),
        ("stride_x_rows", "i32", "stride(x, 0)"),
        ("partial", "*float32", "partial"),
        ("cols", "i32", "cols"),
        ("factor", "fp32", "factor"),
    ]


# By `bind`

BY_BIND = {
    "x": X, "partial": PARTIAL, "bias": constant(None), "3": constant(3), "1.5": constant(1.5), "true": constant(True),
    "BLOCK": constant(16), "WIDTH": constant(4), "arch": constant("gfx942"), "aligned": constant(True),
    "BLOCK * 2": constant(32), "BLOCK if given(bias) else 0": constant(0), "elsize(x)": constant(2),
    "cols": number("i32", "cols", 8), "rows*cols": number("i32", "rows * cols"),
    "factor * 1.5": number("fp32", "factor * 1.5"), "rows / 2": number("fp32", "rows / 2"),
    "rows ** -1": number("fp32", "rows ** (-1)"), "rows // 2": number("i32", "rows // 2"),
    "rows if return_top else factor": number("fp32", "rows if return_top else factor"),
    "rows > 2 and return_top": number("i1", "rows > 2 and return_top"),
    "not return_top": number("i1", "not return_top"), "mode == 'fast'": number("i1", "mode == 'fast'"),
    '"min(rows, 8)"': number("i32", "min(rows, 8)"), "2 * factor": number("fp32", "2 * factor"),
    '"8 * cdiv(rows, 8)"': replace(number("i32", "8 * cdiv(rows, 8)", 8), specialised=True),
    '"stride(x, rows)"': STRIDE, '"stride(x, cols)"': constant(1),
    '"stride(x, rows) * 2"': number("i32", "stride(x, 0) * 2"),
    "{value: rows, type: i64}": number("i64", "rows"), "{value: factor, type: fp64}": number("fp64", "factor"),
    "{value: 1, type: i64}": number("i64", "1"), "{value: BLOCK * 2, type: u64}": number("u64", "32"),
    '{value: "stride(x, cols)", type: i64}': number("i64", "stride(x, 1)"),
    '{value: "stride(x, 0)", type: i64}': number("i64", "stride(x, 0)", 8),
    "{value: rows}": number("i32", "rows"), "[]": constant(()),
    "null": constant(None), "x if TOP else bias": constant(None), "null if BIASED else x": X,
    "bias if BIASED else rows": number("i32", "rows"), '"rows if TOP else (partial if BLOCK == 16 else null)"': PARTIAL,
    # Derived numbers have the types of their values.
    "root": number("fp32", "root"), "wide": number("i1", "wide"), "twice": number("i32", "twice"),
}  # fmt: skip
CONSTEXPRS = {
    "3": 3, "BLOCK // 2": 8, "T == 'float16'": True, "64 if arch == 'gfx942' else 32": 64, "given(bias)": False,
    "{value: 2.5}": 2.5, "elsize(T) * WIDTH": 8, "null": None, "null if TOP else 4": 4, "{dtype: T}": Dtype("fp16"),
    "[BLOCK, 2, null, {dtype: T}]": (16, 2, None, Dtype("fp16")), "[]": (),
    "{dtype: bool}": Dtype("i1"), "{dtype: 'T if TOP else \"uint8\"'}": Dtype("u8"),
}  # fmt: skip


def test_by_bind(tmp_path: Path):
    binds = [f"p{i}: {text}" for i, text in enumerate(BY_BIND)] + [f"P{i}: {text}" for i, text in enumerate(CONSTEXPRS)]
    derived = 'root: "cols ** -0.5", wide: cols > 16, twice: cols * 2'
    text = edit(EVERYTHING, ('{chunks: "cdiv(cols, 16)"}', f'{{chunks: "cdiv(cols, 16)", {derived}}}'))
    bindings = Bindings(tmp_path, with_bind(", ".join(binds), text))
    found = [replace(b, name="") for b in bindings.bind(*(f"p{i}" for i in range(len(BY_BIND))))]
    assert dict(zip(BY_BIND, found, strict=True)) == BY_BIND
    found = bindings.bind(*(f"P{i}=None" for i in range(len(CONSTEXPRS))))
    assert {text: bound.constant for text, bound in zip(CONSTEXPRS, found, strict=True)} == CONSTEXPRS
    (wide,) = bindings.bind(f"p{list(BY_BIND).index(STRIDES)}", aligned=False)
    assert wide.type == "i64", "an expression of strides, in the general specialisation"


STRIDES = '"stride(x, rows) * 2"'


@pytest.mark.parametrize(("blocks", "expected"), [("", 8), ("num_warps: 2, ", 2)])
def test_a_parameter_that_is_called_as_an_option(tmp_path: Path, blocks: str, expected: int):
    """It is bound to the option, overrides included, unless `blocks` or a default says otherwise."""
    text = edit(EVERYTHING, ("blocks: {WIDTH: 4}", f"blocks: {{{blocks}WIDTH: 4}}"))
    bindings = Bindings(tmp_path, text)
    parameters = (Parameter("num_warps", True), Parameter("num_stages", True, True, 5))
    binder = Binder(bindings.manifest, bindings.op, 0, parameters, "gfx942")
    for variant, stages in ((bindings.variant(), 5), (bindings.variant(BLOCK=64), 1)):
        assert [bound.constant for bound in binder.bind(variant)] == [expected, stages]
        assert dict(variant.options)["num_warps"] == 8


def test_elements_of_a_tuple(tmp_path: Path):
    """An element is bound as a separate parameter would be; a default may be a tuple, too."""
    bindings = Bindings(tmp_path, with_bind('p: [x, "stride(x, rows)", bias, 3, {value: rows, type: i64}]'))
    *found, default = bindings.bind("p", "SHAPE=(1, (2, None))")
    expected = (X, STRIDE, constant(None), constant(3), number("i64", "rows"))
    assert found == [replace(bound, name=f"p.{i}") for i, bound in enumerate(expected)]
    assert default == BoundParameter("SHAPE", "constexpr", constant=(1, (2, None)))
    bound = bindings.bind("p", BIASED=True)
    assert [item.type for item in bound] == ["*fp16", "i32", "*fp16", "constexpr", "i64"]


# What is refused: an entry of `bind` of parameters `factor` and `P`, with an @ where the fault is.
FAULTS = r"""
@fator: 3 -> kernel has no parameter 'fator'; did you mean 'factor'?
factor: stride(x, @rows) -> kernel has no parameter 'rows)': inside braces, quote an expression that contains a comma:
 factor: "stride(x, rows)"
@factor: bais -> parameter 'factor': 'bais' uses undefined name 'bais'; did you mean 'bias'?
@P: zzz -> parameter 'P': 'zzz' uses undefined name 'zzz'; known: BIASED, BLOCK, T, TOP, WIDTH, aligned, bias, chunks,
 cols, factor, mode, num_cus, out, partial, return_top, rows, top, x
@P: rows -> 'rows' is not known when a variant is built, but 'P' is a constexpr
@P: factor > 1 -> 'factor > 1' is not known when a variant is built, but 'P' is a constexpr
@factor: fcator -> parameter 'factor': 'fcator' uses undefined name 'fcator'; did you mean 'factor'?
@P: BLOKC -> parameter 'P': 'BLOKC' uses undefined name 'BLOKC'; did you mean 'BLOCK'?
@factor: x.T -> parameter 'factor': 'x.T': 'x.T' is not part of the expression language
@factor: mode -> parameter 'factor': 'mode' is text, which a kernel cannot take at run time; use a constexpr that
 it picks, or give its choices numbers
@factor: "stride(y, 0)" -> parameter 'factor': 'stride(y, 0)': stride(y): unknown tensor 'y'; known: bias, out, top, x
@factor: "stride(x, depth)" -> parameter 'factor': stride(x, depth): 'depth' is not a single dim of 'x' [rows, cols]
@factor: "stride(x, 2) + 1" -> parameter 'factor': stride(x, 2): '2' is not a single dim of 'x' [rows, cols]
@P: 1 // (BLOCK - 16) -> parameter 'P': '1 // (BLOCK - 16)' cannot be evaluated: integer division or modulo by zero
@factor: 1 // (BLOCK - 16)
 -> parameter 'factor': '1 // (BLOCK - 16)' cannot be evaluated: integer division or modulo by zero
@factor: {value: 1e999 - 1e999, type: fp32} -> parameter 'factor': '1e309 - 1e309' is NaN
@factor: {dims: [rows]} -> parameter 'factor' is not a tuple, so it has no `dims`
@P: {function: 'k.py:f', operands: [rows]} -> parameter 'P' is not a tuple, so it has no `operands`
@factor: 'k.py:f' -> 'k.py:f' is a function, but 'factor' is not a constexpr
@factor: {dtype: T}
 -> a dtype is bound to 'factor', which is not a constexpr: a kernel takes no dtype at run time
@P: {dtype: T} -> parameter 'P': its default is 1, so it must be a number, not the dtype fp16
@P: {dtype: flaot32} -> parameter 'P': 'flaot32' is not a dtype; did you mean 'float32'?
@P: {dtype: mode} -> 'mode' is not known when a variant is built, but 'P' is a constexpr
@P: {dtype: BLOCK + 1} -> parameter 'P': 'BLOCK + 1' is 17, which is not a dtype; known: T, bfloat16,
 bool, float16, float32, float64, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, int16, int32, int64,
 int8, uint16, uint32, uint64, uint8
@P: float16 -> parameter 'P': 'float16' is a dtype: write {dtype: float16}
@factor: x if return_top else 1 -> parameter 'factor': whether 'x if return_top else 1' is 'x' must be known when a
 variant is built: by axes, dtype variables, `aligned`, or `given` of what has an axis
factor: [rows, @fcator] -> parameter 'factor.1': 'fcator' uses undefined name 'fcator'; did you mean 'factor'?
P: [1, @rows] -> 'rows' is not known when a variant is built, but 'P.1' is a constexpr
@P: ['k.py:f'] -> 'k.py:f' is a function, which no element of a tuple can be
@P: {value: x, block: [8]} -> parameter 'P' is a constexpr, and a descriptor, which has a `block`, is none
@factor: {value: rows, block: [8]} -> parameter 'factor': 'rows' has a `block`, but is not a tensor
@factor: {value: x, block: [8]} -> parameter 'factor': its block has 1 extents, but 'x' has 2 dims
@factor: {value: x, block: [8, 24]} -> parameter 'factor': the extents of a block must be powers of two, not 24
@factor: {value: x, block: [8, rows]} -> 'rows' is not known when a variant is built, but 'factor' is a constexpr
@factor: {value: bias, block: [8, 8]}
 -> parameter 'factor': 'bias' needs a contiguous last dim and no broadcast dim for a descriptor
@factor: x if BLOKC else 1 -> parameter 'factor': 'BLOKC' uses undefined name 'BLOKC'; did you mean 'BLOCK'?
"""


@pytest.mark.parametrize(("bind", "message"), rows(FAULTS))
def test_binds_that_are_refused(tmp_path: Path, bind: str, message: str):
    check_fault(tmp_path, with_bind(bind), KERNEL + message, binding("factor", "P=1"))


UNBOUND = (
    "is not bound: it is not a tensor, stride_<tensor>_<dim>, dim, scalar, constexpr, derived number or workspace, "
    "and `bind` does not name it; did you mean"
)
NO_BLOCK = "is not bound: no axis, block, option of the config or entry of `bind` has this name; did you mean 'BLOCK'?"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("strid_x_rows", f"kernel parameter 'strid_x_rows' {UNBOUND} 'stride_x_rows'?"),
        ("fator", f"kernel parameter 'fator' {UNBOUND} 'factor'?"),
        ("chunk", f"kernel parameter 'chunk' {UNBOUND} 'chunks'?"),
        ("partail", f"kernel parameter 'partail' {UNBOUND} 'partial'?"),
        ("BLCOK", f"constexpr parameter 'BLCOK' of the kernel {NO_BLOCK}"),
        (
            "stride_x_rows",
            "parameter 'stride_x_rows': stride(x, rows): 'rows' is not a single dim of 'x' [rows, rows]",
        ),
        (
            "KIND=object",
            "the default of constexpr parameter 'KIND' is <class 'object'>; a number, a boolean, text, a dtype, "
            "None or a tuple of these is allowed: bind the parameter",
        ),
    ],
)
def test_parameters_that_nothing_binds(tmp_path: Path, name: str, message: str):
    text = edit(EVERYTHING, ("- kernel:", "- @kernel:"))
    if name == "stride_x_rows":
        text = edit(text, ("x: {shape: [rows, cols]", "x: {shape: [rows, rows]"))
    check_fault(tmp_path, text, KERNEL + message, binding(name))


def test_a_name_that_is_a_stride_of_two_tensors(tmp_path: Path):
    more = "y: {shape: [left_n], dtype: T, optional: true}\n      y_left: {shape: [n], dtype: T, optional: true}"
    text = edit(EVERYTHING, ("- kernel:", "- @kernel:"), ("      out:", f"      {more}\n      out:"))
    said = "kernel parameter 'stride_y_left_n' may be stride(y, left_n) or stride(y_left, n): name one in `bind`"
    check_fault(tmp_path, text, KERNEL + said, binding("stride_y_left_n"))


def test_all_that_nothing_binds_is_told_at_once(tmp_path: Path):
    bindings = Bindings(tmp_path)
    with pytest.raises(ManifestError) as caught:
        bindings.bind("partail", "x", "fator", "BLCOK")
    told = [message.partition(KERNEL)[2].partition(" is not")[0] for message in caught.value.messages]
    unbound = "kernel parameter 'partail'", "kernel parameter 'fator'", "constexpr parameter 'BLCOK' of the kernel"
    assert told == list(unbound)


def test_a_config_that_leaves_a_constexpr_without_a_value_is_named(tmp_path: Path):
    text = edit(EVERYTHING, ("- {name: wide, when: cols > 32, blocks: {WIDTH: 4}", "- @{name: wide, when: cols > 32"))
    said = "op 'scale': config 'wide' gives constexpr parameter 'WIDTH' no value, as config 'base' does"
    check_fault(tmp_path, text, said, binding("BLOCK"))


@pytest.mark.parametrize(("key", "nearest"), [("WIDHT", "WIDTH"), ("BLOKC", "BLOCK")])
def test_a_block_that_is_no_constexpr(tmp_path: Path, key: str, nearest: str):
    text = edit(EVERYTHING, ("WIDTH: 4}", f"WIDTH: 4, @{key}: 2}}"))
    said = f"'{key}' is not a constexpr parameter of 'k.py:scale_rows'; did you mean '{nearest}'?"
    said = f"op 'scale': config 'wide': {said}"
    check_fault(tmp_path, text, said, binding("BLOCK"))


def test_such_a_key_of_a_tuning_file_has_its_place_there(tmp_path: Path):
    """`WIDTH` is in the configs, so the kernel's parameter must be a constexpr."""
    path = tmp_path / "tuning" / "scale.yaml"
    path.parent.mkdir()
    place, text = unmarked(tuning("{scale_rows: [{name: base, blocks: {@WIDTH: 3}}]}"))
    path.write_text(text)
    bindings = Bindings(tmp_path, edit(EVERYTHING, ("blocks: {WIDTH: 4}, ", "")))
    with pytest.raises(ManifestError) as caught:
        Binder(bindings.manifest, bindings.op, 0, (Parameter("WIDTH", False),), "gfx942").check()
    assert caught.value.messages[0].startswith(f"{path}:{place}: op 'scale': config 'base': 'WIDTH' is not a constexpr")
