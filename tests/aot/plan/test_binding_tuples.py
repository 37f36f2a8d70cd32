"""Kernel parameters that are named tuples: what their members are bound to."""

from __future__ import annotations

import pytest

from aot.compile.kernel_source import Parameter
from aot.manifest.yamlfile import ManifestError
from aot.plan.binding import Binder, Bound, bound_functions, compile_job, kernarg_values
from tests.support.building.bindings import Bindings

MATRIX = ("ptr", "stride_rows", "stride_cols")
CLOSURE = ("function", "operands")
MOD = "mod: {function: 'kernels/mods.py:shifted', operands: [bias, 'stride(x, rows)', cols, factor]}"


def tuple_parameter(name: str, *fields: str, optional: bool = False) -> Parameter:
    """A parameter with these members, None by default if `optional`; `function` and names in capitals are constexprs,
    and a field `name=value` has a default."""
    members = []
    for field in fields:
        field, _, default = field.partition("=")
        constexpr = field == "function" or field.isupper()
        members.append(Parameter(f"{name}.{field}", constexpr, bool(default), eval(default or "None")))
    return Parameter(name, False, optional, None, tuple(members))


def bind(bindings: Bindings, *parameters: Parameter, **wanted) -> list[Bound]:
    binder = Binder(bindings.manifest, bindings.op, 0, parameters, "gfx942")
    return list(binder.bind(bindings.variant(**wanted)))


def fault(bindings: Bindings, *parameters: Parameter) -> str:
    binder = Binder(bindings.manifest, bindings.op, 0, (*parameters, Parameter("WIDTH", True)), "gfx942")
    with pytest.raises(ManifestError) as caught:
        binder.check()
        binder.bind(bindings.variant())
    (message,) = caught.value.messages
    return message


def test_a_tensor_is_its_address_and_its_strides(tmp_path):
    bindings = Bindings(tmp_path)
    assert bind(bindings, tuple_parameter("x", *MATRIX)) == [
        Bound("x.ptr", "*fp16", None, "x", "float16", True, True),
        Bound("x.stride_rows", "i32", None, "stride(x, 0)", "", True),
        Bound("x.stride_cols", "constexpr", 1),
    ]


def test_strides_of_the_general_variant_are_wide(tmp_path):
    found = bind(Bindings(tmp_path), tuple_parameter("x", *MATRIX), aligned=False)
    assert [item.type for item in found] == ["*fp16", "i64", "constexpr"]


def test_the_members_are_those_of_separate_parameters(tmp_path):
    """For every tensor, whether it is there or not."""
    bindings = Bindings(tmp_path)
    for name, dims in (("x", ("rows", "cols")), ("bias", ("0", "cols")), ("out", ("rows", "1")), ("top", ("rows",))):
        fields = ("ptr", *(f"stride_{dim}" for dim in dims))
        for point in ({"BIASED": True}, {"TOP": True}, {"aligned": False, "BLOCK": 64}):
            separate = bindings.bind(name, *(f"stride_{name}_{dim}" for dim in dims), **point)
            members = bind(bindings, tuple_parameter(name, *fields), **point)
            assert [item.name for item in members] == [f"{name}.{field}" for field in fields]
            for one, other in zip(separate, members, strict=True):
                assert Bound("", *list(vars(one).values())[1:]) == Bound("", *list(vars(other).values())[1:])


def test_a_tensor_that_a_variant_has_not(tmp_path):
    parameter = tuple_parameter("bias", "ptr", "stride_0", "stride_cols")
    assert bind(Bindings(tmp_path), parameter, BIASED=False) == [
        Bound("bias.ptr", "constexpr", None),
        Bound("bias.stride_0", "constexpr", 0),
        Bound("bias.stride_cols", "constexpr", 0),
    ]


def test_a_tensor_that_the_op_has_not(tmp_path):
    bindings = Bindings(tmp_path)
    assert bind(bindings, tuple_parameter("y", "ptr", "stride_rows", optional=True)) == [
        Bound("y.ptr", "constexpr", None),
        Bound("y.stride_rows", "constexpr", 0),
    ]
    window = tuple_parameter("window", "left=0", "bottom=False", "rest", optional=True)
    assert [item.constant for item in bind(bindings, window)] == [0, False, None]
    assert fault(bindings, tuple_parameter("y", "ptr", "stride_rows")) == (
        f"{bindings.at('kernel: ')}member 'ptr' of parameter 'y' is not bound: the op has nothing of that name, and "
        "`bind` does not name 'y.ptr'"
    )


def test_strides_by_order(tmp_path):
    """Where a tuple serves tensors whose dims have other names."""
    found = bind(Bindings(tmp_path), tuple_parameter("x", "ptr", "stride_outer", "stride_inner"))
    assert [(item.name, item.value, item.constant) for item in found[1:]] == [
        ("x.stride_outer", "stride(x, 0)", None),
        ("x.stride_inner", "", 1),
    ]


@pytest.mark.parametrize("fields", [("stride_cols", "stride_inner"), ("stride_batch", "stride_rows", "stride_cols")])
def test_strides_that_are_neither_named_nor_in_order(tmp_path, fields):
    bindings = Bindings(tmp_path)
    wrong = next(field for field in fields if field in ("stride_inner", "stride_batch"))
    names = ", ".join(field.removeprefix("stride_") for field in fields)
    assert fault(bindings, tuple_parameter("x", "ptr", *fields)) == (
        f"{bindings.at('kernel: ')}member '{wrong}' of parameter 'x' is no stride of 'x' [rows, cols], and the strides "
        f"{names} are not its dims in order: say which dims they are, `bind: {{x: {{dims: [...]}}}}`"
    )


def test_strides_by_bind(tmp_path):
    bindings = Bindings(tmp_path, bind="x: {dims: [none, 1, rows]}")
    fields = ("ptr", "stride_batch", "stride_columns", "stride_other")
    assert [(item.value, item.constant) for item in bind(bindings, tuple_parameter("x", *fields))] == [
        ("x", None), ("", 0), ("", 1), ("stride(x, 0)", None),
    ]  # fmt: skip
    assert fault(bindings, tuple_parameter("x", "ptr", "stride_rows")) == (
        f"{bindings.at('x: {dims')}parameter 'x': 3 dims for its 1 strides rows"
    )


def test_one_member_by_bind(tmp_path):
    bindings = Bindings(tmp_path, bind="x.stride_batch: 0, x.ptr: out")
    found = bind(bindings, tuple_parameter("x", "ptr", "stride_batch", "stride_rows"))
    assert [(item.value, item.constant) for item in found] == [("out", None), ("", 0), ("stride(x, 0)", None)]


def test_a_tensor_of_another_name(tmp_path):
    for text in ("a: x", "a: {value: x, dims: [rows, cols]}"):
        found = bind(Bindings(tmp_path, bind=text), tuple_parameter("a", "ptr", "stride_rows", "stride_cols"))
        assert [item.value or item.constant for item in found] == ["x", "stride(x, 0)", 1]


def test_other_tuples_by_the_names_of_their_members(tmp_path):
    bindings = Bindings(tmp_path, bind="size.depth: rows * 2")
    found = bind(bindings, tuple_parameter("size", "rows", "depth", "factor", "BLOCK", "extra=3"))
    assert [(item.name, item.type, item.value, item.constant) for item in found] == [
        ("size.rows", "i32", "rows", None),
        ("size.depth", "i32", "rows * 2", None),
        ("size.factor", "fp32", "factor", None),
        ("size.BLOCK", "constexpr", "", 16),
        ("size.extra", "constexpr", "", 3),
    ]


def test_a_function_and_what_it_captures(tmp_path):
    bindings = Bindings(tmp_path, bind=MOD)
    function, *operands = bind(bindings, tuple_parameter("mod", *CLOSURE), BIASED=True)
    assert function == Bound("mod.function", "constexpr", function="kernels/mods.py:shifted")
    assert [(item.name, item.type, item.value) for item in operands] == [
        ("mod.operands.0", "*fp16", "bias"),
        ("mod.operands.1", "i32", "stride(x, 0)"),
        ("mod.operands.2", "i32", "cols"),
        ("mod.operands.3", "fp32", "factor"),
    ]
    launch = bindings.manifest.spec.ops["scale"].launches[0]
    assert bound_functions(launch) == {"mod": "kernels/mods.py:shifted"}


def test_no_function(tmp_path):
    assert bind(Bindings(tmp_path), tuple_parameter("mod", *CLOSURE, optional=True)) == [
        Bound("mod.function", "constexpr", None)
    ]


@pytest.mark.parametrize(
    ("text", "parameter", "message"),
    [
        ("x: {function: 'k.py:f'}", tuple_parameter("x", *MATRIX),
         "parameter 'x' is bound to 'k.py:f', but it is a tuple of ptr, stride_rows, stride_cols: one of function and "
         "operands is needed"),
        ("x: rows", tuple_parameter("x", *MATRIX),
         "parameter 'x' is a tuple of ptr, stride_rows, stride_cols, and 'rows' is no tensor: bind it to a tensor, to "
         "a function, or its members by themselves"),
        ("x: {dims: [rows]}", Parameter("x", False), "parameter 'x' is no tuple, so `dims` mean nothing to it"),
        ("x: {function: 'k.py:f', operands: [rows]}", Parameter("x", True),
         "parameter 'x' is no tuple, so `operands` mean nothing to it"),
        ("x.stride_cosl: 3", tuple_parameter("x", *MATRIX),
         "kernel has no parameter 'x.stride_cosl'; did you mean 'x.stride_cols'?"),
        ("x.stride_rows: 'stride(x, row)'", tuple_parameter("x", *MATRIX),
         "parameter 'x.stride_rows': stride(x, row): 'row' names no single dim of 'x' [rows, cols]"),
        ("x.stride_rows: 'k.py:f'", tuple_parameter("x", *MATRIX),
         "'k.py:f' is a function, but 'x.stride_rows' is no constexpr"),
        ("mod: {function: 'k.py:f', operands: [fator]}", tuple_parameter("mod", *CLOSURE),
         "parameter 'mod.operands.0': 'fator' uses undefined name 'fator'; did you mean 'factor'?"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, text, parameter, message):
    bindings = Bindings(tmp_path, bind=text)
    assert fault(bindings, parameter) == bindings.at(text) + message


def test_a_compile_job_has_members_by_path(tmp_path):
    bindings = Bindings(tmp_path, bind=MOD)
    launch = bindings.manifest.spec.ops["scale"].launches[0]
    parameters = (tuple_parameter("x", *MATRIX), tuple_parameter("mod", *CLOSURE), Parameter("BLOCK", True))
    jobs = {}
    for aligned in (True, False):
        variant = bindings.variant(aligned=aligned, BIASED=True)
        bound = Binder(bindings.manifest, bindings.op, 0, parameters, "gfx942").bind(variant)
        jobs[aligned] = compile_job(bindings.manifest, launch, bound, variant, "gfx942", False)
        assert [name for name, *_ in kernarg_values(bound)][:2] == ["x.ptr", "x.stride_rows"]
    assert [name for name, _ in jobs[True].signature] == [
        "x.ptr", "x.stride_rows", "x.stride_cols", "mod.function", "mod.operands.0", "mod.operands.1",
        "mod.operands.2", "mod.operands.3", "BLOCK",
    ]  # fmt: skip
    assert dict(jobs[False].signature)["mod.operands.1"] == dict(jobs[False].signature)["x.stride_rows"] == "i64"
    assert jobs[True].divisible_by_16 == (
        "x.ptr", "x.stride_rows", "mod.operands.0", "mod.operands.1", "mod.operands.2",
    )  # fmt: skip
    assert (jobs[False].divisible_by_16, jobs[False].pointer_range_32) == ((), ())
    assert jobs[True].constants == (("x.stride_cols", 1), ("BLOCK", 16))
    assert jobs[True].functions == (("mod.function", "kernels/mods.py:shifted"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: {}", "a mapping in `bind` has either `value` (or `dims`) or `function`"),
        ("x: {value: x, function: 'k.py:f'}", "a mapping in `bind` has either `value` (or `dims`) or `function`"),
        ("x: {value: x, operands: [1]}", "`operands` are those of a `function`"),
        ("x: {dims: [rows], type: i64}", "`type` is that of a `value` without `dims`"),
    ],
)
def test_mappings_that_are_refused(tmp_path, text, message):
    with pytest.raises(ManifestError) as caught:
        Bindings(tmp_path, bind=text)
    assert any(message in line for line in caught.value.messages), caught.value.messages
