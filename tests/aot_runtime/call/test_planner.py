"""Planners of contracts: scalars that decisions depend on, strides in expressions, and free names."""

from __future__ import annotations

import pytest

from aot_runtime.contract import records
from aot_runtime.errors import ExpressionError
from tests.support.contracts import decide, launch, layout, planner, refused


def test_static_scalars_are_those_that_decide():
    text = "x: float32[n]; free: fp32; grid: i32; flag: flag = False; mixed: i32 = 1"
    limited = records.Scalar("limited", "i32", "1", min=1)
    planned = planner(text, "free: fp32; mixed: i32 = mixed * 2", scalars=(limited,), launches=(launch("grid"),))
    assert planned.static == {"grid", "flag", "limited", "mixed"}


def test_what_cannot_be_computed_is_an_argument_error():
    planned = planner("x: float32[n]; k: i32", launches=(launch("n // k"),))
    refused("op: these arguments have no plan", planned, x=layout(3), k=0)


def test_strides_are_meant_by_name_or_position_and_known_from_the_start():
    texts = ("stride(x, rows) * 2", "stride(x, 0) * 2")
    planned = planner(
        "x: float32[rows, cols]; out: float32[rows, stride(x, 0)] output; k: i32 = stride(x, rows); "
        "step = stride(x, 0) // 2",
        "; ".join(f"arg{i}: i32 = {text}" for i, text in enumerate(texts)),
        require=("stride(x, 0) % 2 == 0",),
        launches=(launch("step", "stride(out, 0)"),),
    )
    found = decide(planned, x=layout(3, 4, strides=(10, 1)))
    assert found.names["k"] == 10 and found.layouts["out"].shape == (3, 10)
    assert found.launches[0].grid == (5, 10, 1) and found.launches[0].values == dict.fromkeys(texts, 20)
    refused("requires stride(x, 0) % 2 == 0", planned, x=layout(3, 5))


@pytest.mark.parametrize(
    ("more", "kernarg", "words"),
    [
        ("step = stride(out, 0)", "1", "asks for the layout of output 'out' before it is laid out"),
        ("k: i32 = stride(out, 0)", "1", "asks for the layout of output 'out'"),
        ("z: float32[stride(out, 0)]", "1", "asks for the layout of output 'out'"),
        ("a: i32 = b; b: i32 = 1", "1", "undefined name 'b'"),
        ("k: i32", "stride(x, 2)", "is not a single dim"),
        ("k: i32", "stride(x, depth)", "is not a single dim"),
        ("k: i32", "stride(out, cols)", "is not a single dim"),
    ],
)
def test_what_is_not_known_makes_no_planner(more: str, kernarg: str, words: str):
    with pytest.raises(ExpressionError, match=words):
        planner(f"x: float32[rows, cols]; out: float32[rows] output; {more}", f"s: i32 = {kernarg}")


def test_names_of_builtins_and_of_the_planner_are_free():
    """Contracts name their tensors and dims as they like."""
    space = (records.Workspace("space", ("rows",), "int8"),)
    for chosen in ("tuple", "list", "input", "len", "print", "int", "name", "layout", "isinstance", "dict", "range"):
        cols, divisible = records.Divisible("cols", 16), (records.Divisible(chosen, 16),)
        named = planner(f"{chosen}: float32[rows, cols]; twice = rows * 2", divisible=(cols,), workspace=space)
        assert decide(named, **{chosen: layout(2, 3)}).names["twice"] == 4
        sized = planner(f"x: float32[{chosen}, rows]", divisible=divisible, workspace=space)
        assert decide(sized, x=layout(2, 3)).names[chosen] == 2
