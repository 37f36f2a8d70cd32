"""The rules for calls, on layouts without memory: tensors, dims, scalars, outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime.call.launches import kernarg_image
from aot_runtime.contract import records
from aot_runtime.contract.layout import Layout
from aot_runtime.errors import ArgumentError
from tests.support.contracts import decide, launch, layout, op, planner, refused, tensor

pair = planner("x: T[rows, cols]; y: T[rows, cols]; out: T[rows, cols] output", dtypes={"T": ("float16", "float32")})
L = layout(3, 5)
SELF = "argument 'out' is written to, but may overlap itself"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x": None}, "op: argument 'x' is missing"),
        ({"x": layout(3, 5, 1)}, "argument 'x' has 3 dims [3, 5, 1]; it takes 2: [rows, cols]"),
        ({"x": layout()}, "argument 'x' has 0 dims []"),
        ({"x": layout(3, 5, dtype="int8")}, "argument 'x' is int8; allowed: float16, float32"),
        ({"x": layout(3, 5, dtype="float16")}, "argument 'y' is float32, but 'x' is float16; both are T"),
        (
            {"y": layout(3, 6)},
            "argument 'y' has shape [3, 6]: dim 1 (cols) is 6, but must be 5 to agree with the other",
        ),
        ({"y": layout(1, 5)}, "argument 'y' has shape [1, 5]: dim 0"),
        (
            {"x": layout(3, 5, strides=(1, 3))},
            "argument 'x' has stride 3 in dim 1 (cols); it must be 1: that dim is con",
        ),
        ({"x": layout(3, 5, strides=(5, -1))}, "argument 'x' has stride -1 in dim 1"),
        ({"x": layout(0, 5), "y": layout(0, 5)}, "rows is 0; allowed: 1 to 2147483647"),
        ({"x": layout(2**31, 5), "y": layout(2**31, 5)}, "rows is 2147483648"),
        ({"y": layout(3, 5, device=("hip", 1))}, "argument 'y' is on hip:1, but 'x' is on hip:0"),
        ({"out": layout(3, 5, device=("cuda", 0))}, "argument 'out' is on cuda:0"),
        ({"out": layout(3, 4)}, "argument 'out' has shape [3, 4]: dim 1"),
        ({"out": layout(5)}, "argument 'out' has 1 dims"),
        ({"out": layout(3, 5, dtype="float16")}, "argument 'out' is float16, but 'x' is float32"),
        ({"out": layout(3, 5, strides=(0, 1))}, f"{SELF}: strides [0, 1]"),
        ({"out": layout(3, 5, strides=(4, 1))}, SELF),
        ({"out": layout(3, 5, strides=(-1, 1))}, SELF),
    ],
)
def test_wrong_tensors(arguments: dict[str, Layout | None], words: str):
    given = {"x": L, "y": L} | arguments
    refused(words, pair, **{name: value for name, value in given.items() if value is not None})


def test_layouts_of_inputs_and_outputs():
    assert decide(pair, x=layout(3, 5, strides=(100, 1)), y=L).layouts["out"] is L
    given = layout(3, 5, strides=(32, 1))
    assert decide(pair, x=L, y=L, out=given).layouts["out"] is given
    assert decide(pair, x=layout(3, 5, strides=(0, 1)), y=layout(3, 5, strides=(1, 1))), "inputs may overlap themselves"
    assert decide(pair, x=layout(3, 1, strides=(7, 9)), y=layout(3, 1), out=layout(3, 1, strides=(2, 5))), "any stride"
    transposed = planner(op(tensor("x", "rows", "cols"), tensor("out", "rows", "cols", role="output", contiguous=(0,))))
    assert decide(transposed, x=L).layouts["out"].strides == (1, 3)
    state = planner("state: float32[n, m] inout")
    decide(state, state=layout(3, 4, strides=(9, 1)))
    refused("'state' is written to, but may overlap itself", state, state=layout(3, 4, strides=(2, 1)))


def test_several_contiguous_dims_are_packed_innermost_last():
    planned = planner(op(tensor("x", "a", "b", "c", contiguous=(2, 1))))
    decide(planned, x=layout(2, 3, 4, strides=(50, 1, 3)))
    refused("'x' has stride 4 in dim 2 (c); it must be 3", planned, x=layout(2, 3, 4, strides=(50, 1, 4)))
    decide(planner(op(tensor("x", "a", "b", contiguous=()))), x=layout(2, 3, strides=(5, 7)))


def test_outputs_may_be_declared_before_inputs():
    text = "out: T[n] output when flag; x: T[n]; last: T[n] output; flag: flag = False"
    planned, x = planner(text, dtypes={"T": ("int8", "int16")}), layout(2, dtype="int8")
    assert set(decide(planned, x=x).layouts) == {"x", "last"}
    assert set(decide(planned, x=x, flag=True).layouts) == {"out", "x", "last"}
    refused("argument 'last' is int16, but 'x' is int8", planned, x=x, last=layout(2, dtype="int16"))


masked = planner(
    "x: float32[batch, rows, cols]; bias: float32[batch|1, rows|1, cols] optional; "
    "extra: float32[rows] output when more and rows > 1; more: flag = False",
    "bias: *float32; s0: i32 = stride(bias, 0); s1: i64 = stride(bias, 1); size: i32 = elsize(bias) + elsize(x)",
    axes=(records.Axis("HAS_BIAS", (False, True), "given(bias)"),),
)
X = layout(2, 3, 4)


@pytest.mark.parametrize(
    ("bias", "strides"),
    [
        (None, [0, 0]),
        (layout(2, 3, 4), [12, 4]),
        (layout(1, 3, 4), [0, 4]),
        (layout(2, 1, 4, strides=(8, 5, 1)), [8, 0]),
    ],
)
def test_strides_are_0_where_there_is_nothing_to_step_over(bias: Layout | None, strides: list[int]):
    found = decide(masked, x=X, **({"bias": bias} if bias else {}))
    assert found.names["HAS_BIAS"] is (bias is not None) and ("bias" in found.layouts) == (bias is not None)
    texts = ("stride(bias, 0)", "stride(bias, 1)", "elsize(bias) + elsize(x)")
    assert [found.launches[0].values[text] for text in texts] == [*strides, 8]


def test_broadcast_dims_and_outputs_with_a_condition():
    refused("dim 0 (batch) is 3, but must be 2 or 1", masked, x=X, bias=layout(3, 3, 4))
    refused("dim 2 (cols) is 1, but must be 4 to agree", masked, x=X, bias=layout(2, 3, 1))
    assert decide(masked, x=X, more=True).layouts["extra"] is layout(3)
    refused("argument 'extra' is given, but exists only when more and rows > 1", masked, x=X, extra=layout(3))
    refused("exists only when", masked, x=layout(2, 1, 4), more=True, extra=layout(1))


def test_dims_are_solved_and_then_checked():
    planned = planner("starts: int8[batch + 1]; x: int8[groups * 4]; y: int8[wide // 2]; z: int8[batch, n - 1]")
    right = {name: layout(*shape, dtype="int8") for name, shape in {"starts": [6], "x": [12], "y": [5]}.items()}
    right["z"] = layout(5, 8, dtype="int8")
    names = decide(planned, **right).names
    assert [names[name] for name in ("batch", "groups", "wide", "n")] == [5, 3, 10, 9]
    refused("dim 0 (groups * 4) is 13, but must be 12", planned, **right | {"x": layout(13, dtype="int8")})
    refused("dim 0 (batch + 1) is 7, but must be 6", planned, **right | {"starts": layout(7, dtype="int8")})


def test_a_solved_dim_is_in_its_range_too():
    refused("batch is 0; allowed: 1 to", planner("starts: float32[batch + 1]"), starts=layout(1))
    zero = planner("starts: float32[batch + 1]", dims=(records.DimLimit("batch", min=0, max=3),))
    assert decide(zero, starts=layout(1)).names["batch"] == 0
    refused("batch is 4; allowed: 0 to 3", zero, starts=layout(5))


def test_a_dim_of_an_optional_tensor_is_0_without_it():
    planned = planner("x: float32[n]; ids: float32[count] optional", "count: i32")
    for arguments, count in (({}, 0), ({"ids": layout(7)}, 7)):
        assert decide(planned, x=layout(2), **arguments).launches[0].values["count"] == count
    refused("count is 0", planned, x=layout(2), ids=layout(0))


def test_extents_may_be_constants_scalars_and_expressions():
    text = "x: float32[n, 3]; y: float32[k, n * 2 + k]; sums: float32[blocks]; out: float32[cdiv(n, 2), k] output"
    planned = planner(f"{text}; k: i32; blocks = cdiv(n, 2)")
    right = {"x": layout(5, 3), "y": layout(4, 14), "sums": layout(3), "k": 4}
    assert decide(planned, **right).layouts["out"].shape == (3, 4)
    for words, wrong in (
        ("'x' has shape [5, 4]: dim 1 (3) is 4, but must be 3", {"x": layout(5, 4)}),
        ("dim 1 (n * 2 + k) is 13, but must be 14", {"y": layout(4, 13)}),
        ("dim 0 (k) is 4, but must be 5", {"y": layout(4, 15), "k": 5}),
        ("'sums' has shape [4]: dim 0 (blocks) is 4, but must be 3", {"sums": layout(4)}),
    ):
        refused(words, planned, **right | wrong)
    inputless = planner("out: float32[3, k] output; k: i32")
    assert decide(inputless, k=5).layouts["out"] is L
    refused("the shape of output 'out' would be [3, -1]", inputless, k=-1)
    sized = planner("x: T[n]; out: int8[n * elsize(T)] output", dtypes={"T": ("float16", "float64")})
    for dtype, extent in (("float64", 24), ("float16", 6)):
        assert decide(sized, x=layout(3, dtype=dtype)).layouts["out"].shape == (extent,)


def test_requirements_and_derived_values():
    text = "q: float32[heads]; k: float32[heads_kv]; group = heads // heads_kv; twice = group * 2"
    planned = planner(text, require=("heads % heads_kv == 0",), launches=(launch("twice"),))
    assert decide(planned, q=layout(8), k=layout(2)).launches[0].grid == (8, 1, 1)
    refused("requires heads % heads_kv == 0; given: heads=8, heads_kv=3", planned, q=layout(8), k=layout(3))
    one_way = planner("x: float32[n]; bias: float32[n] optional", require=("not given(bias)",))
    with pytest.raises(ArgumentError, match=r"requires not given\(bias\)$"):
        decide(one_way, x=layout(3), bias=layout(3))


def test_derived_values_stay_small():
    powers = "; ".join(f"l{i} = {f'l{i - 1}' if i else 'n'} ** 16" for i in range(12))
    refused("l1 would be", planner(f"x: float32[n]; {powers}"), x=layout(15))
    refused("l0 would be", planner(f"x: float32[n]; {powers}"), x=layout(2**31 - 1))
    refused("a would be 'x'; a number", planner("x: float32[n]; a = 'x' if n else 'y'; b = a * n"), x=layout(3))


def scalar(kind: str, **fields: Any) -> Any:
    return planner("x: float32[n]", f"s: {kind}", scalars=(records.Scalar("s", kind, **fields),))


INTEGER, NUMBER = "{!r}; an integer is allowed", "{!r}; a number is allowed"
WRONG: list[tuple[str, str, list[Any]]] = [("i32", INTEGER, [1.0, "1", np.float32(1), [1]])]
WRONG += [("fp32", NUMBER, ["1.5", b"1", 1j])]
WRONG += [("i32", "{}; allowed: -2147483648 to 2147483647 (i32)", [2**31, -(2**31) - 1])]
WRONG += [(kind, "{}; allowed: ", [value]) for kind, value in (("u32", -1), ("u8", 256), ("i64", 2**63))]


@pytest.mark.parametrize(("kind", "words", "values"), WRONG)
def test_wrong_scalars(kind: str, words: str, values: list[Any]):
    refused("argument 's' is missing", scalar(kind), x=layout(2))
    for value in values:
        refused(f"argument 's' is {words.format(value)}", scalar(kind), x=layout(2), s=value)


RIGHT: list[tuple[str, str, list[Any]]] = [("i32", "<i4", [2**31 - 1, -(2**31), np.int64(5), True])]
RIGHT += [("u64", "<u8", [2**64 - 1]), ("i8", "<i1", [np.uint8(7)]), ("fp64", "<f8", [-1e300])]
RIGHT += [("fp32", "<f4", [3, np.float16(0.5), float("inf")])]


@pytest.mark.parametrize(("kind", "dtype", "values"), RIGHT)
def test_right_scalars(kind: str, dtype: str, values: list[Any]):
    for value in values:
        found = decide(scalar(kind), x=layout(2), s=value).launches[0]
        assert found.values["s"] == value
        assert np.frombuffer(kernarg_image(pair.op, found.variant, found.values, frozenset()), dtype)[0] == value


def test_ranges_of_scalars():
    planned = scalar("i32", min=1, max=8)
    for value in (1, 8):
        decide(planned, x=layout(2), s=value)
    for value in (0, 9):
        refused(f"argument 's' is {value}; allowed: 1 to 8", planned, x=layout(2), s=value)
    refused("allowed: 0.0 to inf (fp32)", scalar("fp32", min=0.0), x=layout(2), s=-1e-30)
    refused("'s' is nan", scalar("fp32", min=0.0), x=layout(2), s=float("nan"))


def test_flags_and_choices():
    flag = records.Scalar("flag", "flag", "n > 4")
    mode = records.Scalar("mode", "choice", "'a' if flag else 'b'", ("a", "b"))
    axes = (records.Axis("MODE", ("a", "b"), "mode"),)
    planned, x = planner("x: float32[n]", scalars=(flag, mode), axes=axes), layout(5)
    names = decide(planned, x=x).names
    assert (names["flag"], names["mode"], names["MODE"]) == (True, "a", "a")
    assert decide(planned, x=x, flag=np.bool_(False)).names["mode"] == "b"
    assert decide(planned, x=x, flag=0).names["flag"] is False
    for value in (2, "yes"):
        refused(f"argument 'flag' is {value!r}; True or False is allowed", planned, x=x, flag=value)
    for value in ("c", 1):
        refused(f"argument 'mode' is {value!r}; allowed: a, b", planned, x=x, mode=value)


def test_defaults_may_use_dims_and_earlier_scalars():
    planned = planner("x: float32[n]; scale: fp32 = n ** -0.5; twice: fp32 = scale * 2", "scale: fp32; twice: fp32")
    assert decide(planned, x=layout(16)).launches[0].values == {"scale": 0.25, "twice": 0.5}
    assert decide(planned, x=layout(16), scale=3).launches[0].values["twice"] == 6
