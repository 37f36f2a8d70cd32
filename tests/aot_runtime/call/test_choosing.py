"""Choices for a call: values of axes, configs, grids, workspaces, and the aligned or general specialisation."""

from __future__ import annotations

from typing import Any

import pytest

from aot_runtime.call.rules import pick_value
from aot_runtime.contract import records
from aot_runtime.contract.layout import Layout
from aot_runtime.errors import NoVariantError
from tests.support.contracts import HERE, contract, decide, launch, layout, planner, refused

PICKED = {">=": {64: 64, 65: 128, 129: None}, ">": {64: 128, 128: None}, "equal": {64: 64, 65: None}}
PICKED |= {"<=": {64: 64, 63: 32, 31: None}, "<": {64: 32, 32: None}}


@pytest.mark.parametrize("rule", PICKED)
def test_picking(rule: str):
    axis = records.Axis("A", (32, 128, 64), "n", rule)
    assert {wanted: pick_value(axis, wanted) for wanted in PICKED[rule]} == PICKED[rule]


AXES = contract(
    "x: T[n]; causal: flag = False",
    dtypes={"T": ("float16", "float32")},
    axes=(records.Axis("BLOCK", (32, 64), "n", ">="), records.Axis("CAUSAL", (False, True), "causal")),
    denied=(records.Denied("config == 'wide'", ""), records.Denied("BLOCK == 64 and CAUSAL", "spills")),
)


def test_the_point_is_picked_axis_by_axis():
    planned = planner(AXES)
    variant = decide(planned, x=layout(33, dtype="float16"), causal=True).launches[0].variant
    assert variant.axis_values == {"T": "float16", "BLOCK": 64, "CAUSAL": True}
    refused("BLOCK: none of [32, 64] is picked by >= n", planned, NoVariantError, x=layout(65))


def test_no_variant_lists_what_there_is():
    planned = planner(AXES, keep=lambda v: v.axis_values["BLOCK"] == 32 and v.axis_values["T"] == "float16")
    text = """op: no variant of this bundle fits the call:
  kernel[T=float32, BLOCK=64, CAUSAL=False], aligned=True: not built
  kernel[T=float32, BLOCK=64, CAUSAL=False], aligned=False: not built
  built: T: float16; BLOCK: 32; CAUSAL: False, True
  left out: BLOCK == 64 and CAUSAL: spills
  advice: it is built for the same call with x of float16 and n (dim 0 of x) of 32"""
    refused(text, planned, NoVariantError, x=layout(40))


def test_no_variant_says_how_to_have_it_built():
    there = planner(AXES, keep=lambda v: not v.axis_values["CAUSAL"], bundle="tiny")
    remedy = """
  to have it built: `aotbuild --arch gfx942 --for calls.yaml -o for-calls tiny`, \
with this in calls.yaml:
    calls:
      - bundle: tiny
        op: op
        shapes: {x: [30]}
        dtypes: {T: float32}
        unaligned: [x]
        scalars: {causal: true}"""
    refused(remedy, there, NoVariantError, x=layout(30, aligned=False), causal=True)
    with pytest.raises(NoVariantError) as raised:
        decide(there, x=layout(40), causal=True)
    assert "to have it built" not in str(raised.value), "the manifest leaves that out"


def test_no_variant_tells_which_argument_to_change():
    there = planner(AXES, keep=lambda v: not v.axis_values["CAUSAL"])
    advice = (
        "aligned=False: not built\n  built: T: float16, float32; BLOCK: 32, 64; CAUSAL: False\n"
        "  left out: BLOCK == 64 and CAUSAL: spills\n  advice: it is built for the same call with causal=False"
    )
    refused(advice, there, NoVariantError, x=layout(40), causal=True)
    only_aligned = planner(AXES, keep=lambda v: v.aligned)
    advice = "advice: it is built for aligned calls only: the address of 'x' is not a multiple of 16"
    refused(advice, only_aligned, NoVariantError, x=layout(40, aligned=False))


FOLLOWING = contract(
    "x: T[n, m]; b: T[n] optional; window: i32 = -1; causal: flag = False; bounded = window >= 0",
    dtypes={"T": ("float16", "bfloat16", "float32")},
    scalars=(records.Scalar("mode", "choice", "'a'", ("a", "b", "c")),),
    require=("not causal or window < 0",),
    axes=(
        records.Axis("PLAIN", (True, False), "aligned and T != 'float32' and not given(b) and not bounded"),
        records.Axis("HEAD", (32, 64), "m", ">="),
        records.Axis("PADDED", (False, True), "not PLAIN or m < HEAD"),
        records.Axis("BOUND", (False, True), "not PLAIN or causal or mode == 'c'"),
    ),
)  # fmt: skip


SAME = "it is built for the same call with "


@pytest.mark.parametrize(
    ("arguments", "advice", "followed"),
    [
        ({"window": 4}, SAME + "window=-1", {"window": -1}),
        ({"b": layout(16, dtype="float16")}, SAME + "no b", {"b": None}),
        ({"mode": "c"}, SAME + "mode=a or b", {"mode": "b"}),
        ({"dtype": "float32"}, SAME + "x of float16 or bfloat16", {"dtype": "bfloat16"}),
        ({"dtype": "float32", "causal": True}, SAME + "x of float16 or bfloat16 and causal=False",
         {"dtype": "float16", "causal": False}),
        ({"m": 64}, SAME + "m (dim 1 of x) of 32", {"m": 32}),
        ({"aligned": False}, "it is built for aligned calls only: the address of 'x' is not a multiple of 16",
         {"aligned": True}),
        ({"aligned": False, "causal": True},
         SAME + "aligned arguments (the address of 'x' is not a multiple of 16) and causal=False",
         {"aligned": True, "causal": False}),
    ],
)  # fmt: skip
def test_advice_names_the_arguments_that_decide_axes_which_follow(
    arguments: dict[str, Any], advice: str, followed: dict[str, Any]
):
    """Axes that follow from derived names and other axes are not named; a caller who follows the advice is served."""
    there = planner(FOLLOWING, keep=lambda v: (*list(v.axis_values.values())[1:],) == (True, 32, False, False))

    def call(**given: Any) -> None:
        x = layout(16, given.pop("m"), dtype=given.pop("dtype"), aligned=given.pop("aligned"))
        decide(there, x=x, **{name: value for name, value in given.items() if value is not None})

    given = {"dtype": "float16", "aligned": True, "m": 32} | arguments
    with pytest.raises(NoVariantError) as raised:
        call(**given)
    assert [line for line in str(raised.value).split("\n") if "advice" in line] == [f"  advice: {advice}"]
    call(**given | followed)


def test_a_call_that_nothing_near_is_built_for_is_told_what_decides():
    nothing = planner(FOLLOWING, keep=lambda v: False)
    decided = "advice: built variants differ in the dtype of x, mode, window, causal, m (dim 1 of x)"
    refused(decided, nothing, NoVariantError, x=layout(16, 32, dtype="float16"))


def test_a_missing_aligned_variant_gives_the_general_one():
    found = decide(planner(AXES, keep=lambda v: not v.aligned), x=layout(16))
    assert not found.aligned and found.misaligned == () and not found.launches[0].variant.aligned


CONFIGS = (
    records.Config("long", {"BLOCK": 256}, {}, "n > 1000"),
    records.Config("mid", {"BLOCK": 128}, {}, "n > 100 and num_cus > 8 and arch == 'gfx942'"),
    records.Config("short", {"BLOCK": 32}, {}),
)
FIRST = launch("cdiv(n, BLOCK)", kernel="first", configs=CONFIGS)
SECOND = launch("n", "2", "3", kernel="second", when="n % 2 == 0")
BINNED = contract("x: float32[n]", launches=(FIRST, SECOND))


def test_the_first_config_that_holds_serves_the_call():
    planned = planner(BINNED, "n: i32")
    for n, config, grid in ((1001, 0, 4), (1000, 1, 8), (100, 2, 4), (1, 2, 1)):
        launches = decide(planned, x=layout(n)).launches
        assert (launches[0].variant.config, launches[0].grid) == (config, (grid, 1, 1))
        assert [item.index for item in launches] == ([0, 1] if n % 2 == 0 else [0])
        if n % 2 == 0:
            assert (launches[1].grid, launches[1].variant.symbol) == ((n, 2, 3), "second")
    few = planned.decide({"x": layout(200)}, {}, HERE, 8, "gfx942")
    assert few.launches[0].variant.config == 2


def test_what_was_not_built_gives_way_to_the_next_config_or_is_no_variant():
    assert decide(planner(BINNED, keep=lambda v: v.config or v.launch), x=layout(5000)).launches[0].variant.config == 1
    only_first = planner(BINNED, keep=lambda v: v.launch == 0)
    assert decide(only_first, x=layout(3))
    refused("second[], aligned=False: not built", only_first, NoVariantError, x=layout(4))


PRICED = (
    records.Config("tiny", {"BLOCK": 8}, {}, "n <= 8"),
    records.Config("small", {"BLOCK": 32}, {}, "n <= 500", "1.0 + 0.1 * cdiv(n, 32)"),
    records.Config("large", {"BLOCK": 256}, {}, "", "2.0 + 0.25 * cdiv(n, 256)"),
    records.Config("other", {"BLOCK": 64}, {}, "n % 2 == 0"),
)


def at_cost(kernel: str, cost: str, when: str) -> records.Launch:
    return launch("1", kernel=kernel, when=when, configs=(records.Config("base", {}, {}, "", cost),))


ALTERNATIVES = contract(
    "x: float32[n]",
    alternatives=(records.Alternatives("parts", ("1", "min(4, n // 100)", "4")),),
    axes=(records.Axis("SPLIT", (False, True), "parts > 1"),),
    launches=(
        at_cost("whole", "n / 100", "not SPLIT"),
        at_cost("part", "n / parts / 100", "SPLIT"),
        at_cost("sum", "parts / 2", "SPLIT"),
    ),
)


def test_the_cheapest_config_serves_the_call_if_the_first_that_holds_has_a_cost():
    made = contract("x: float32[n]", launches=(launch("cdiv(n, BLOCK)", configs=PRICED),))
    chosen = {n: decide(planner(made), x=layout(n)).launches[0] for n in (8, 256, 500, 502)}
    assert {n: item.tried[-1].config.name for n, item in chosen.items()} == {
        8: "tiny", 256: "small", 500: "large", 502: "large",
    }  # fmt: skip
    assert [(item.config.name, item.holds, item.cost) for item in chosen[500].tried] == [
        ("tiny", False, None), ("small", True, 1 + 0.1 * 16), ("large", True, 2.5),
    ]  # fmt: skip
    without = {missing: planner(made, keep=lambda v, missing=missing: v.config != missing) for missing in (1, 2)}
    served = {at: decide(there, x=layout(256)).launches[0] for at, there in without.items()}
    assert [item.tried[-1].config.name for item in served.values()] == ["large", "small"]
    assert [[config.name for config in item.missed] for item in served.values()] == [["small"], []]


def test_the_cheapest_alternative_is_taken_of_those_that_are_built():
    planned = planner(ALTERNATIVES)
    for n, costs in {100: {1: 1, 4: 2.25}, 300: {1: 3, 3: 2.5, 4: 2.75}, 900: {1: 9, 4: 4.25}}.items():
        found = decide(planned, x=layout(n))
        assert {values["parts"]: cost for values, cost in found.alternatives} == pytest.approx(costs)
        assert found.names["parts"] == min(costs, key=costs.__getitem__)
        assert [item.variant.symbol for item in found.launches] == (["whole"] if n == 100 else ["part", "sum"])
    whole = decide(planner(ALTERNATIVES, keep=lambda v: not v.axis_values["SPLIT"]), x=layout(900))
    assert (whole.names["parts"], [cost for _, cost in whole.alternatives]) == (1, [9, None])
    nothing = planner(ALTERNATIVES, keep=lambda v: False)
    refused("whole[SPLIT=False], aligned=False: not built\n  built", nothing, NoVariantError, x=layout(900))


def test_float8_of_the_other_flavour_is_refused_with_its_cast():
    ocp, fnuz = flavours = "float8_e4m3fn", "float8_e4m3fnuz"
    op = contract("x: T[n]", dtypes={"T": (*flavours, "float16")})
    there = planner(op, keep=lambda v: v.axis_values["T"] == fnuz)
    cast = f"T is {ocp}: aot_models.float8.cast makes it {fnuz}, which is built"
    refused(cast, there, NoVariantError, x=layout(4, dtype=ocp))
    neither = planner(op, keep=lambda v: v.axis_values["T"] == "float16")
    for planned, dtype in ((there, "float16"), (neither, ocp)):
        with pytest.raises(NoVariantError) as raised:
            decide(planned, x=layout(4, dtype=dtype))
        assert "cast" not in str(raised.value)


def test_grids_have_limits():
    limits = tuple(records.DimLimit(name, 0) for name in "nmk")
    planned = planner("x: int8[n]; y: int8[m]; z: int8[k]", launches=(launch("n", "m", "k"),), dims=limits)
    most = (2**32 - 1) // 256

    def arguments(*grid: int) -> dict[str, Layout]:
        return {name: layout(extent, dtype="int8") for name, extent in zip("xyz", grid, strict=True)}

    for grid in ((most, 1, 1), (1, 65535, 65535), (0, 0, 0)):
        assert decide(planned, **arguments(*grid)).launches[0].grid == grid
    for axis, grid in (("x", (most + 1, 1, 1)), ("y", (1, 65536, 1)), ("z", (1, 1, 65536))):
        refused(f"along {axis} 0 to", planned, **arguments(*grid))
    for extent in ("n / 2", "n - 9"):
        refused("the launch grid would be", planner("x: float32[n]", launches=(launch(extent),)), x=layout(4))


def test_workspaces():
    spaces = (records.Workspace("a", ("n", "2"), "float16"), records.Workspace("b", ("n - 1",), "int64", zero=True))
    planned = planner("x: float32[n]", workspace=spaces)
    assert decide(planned, x=layout(5)).workspaces == (("a", 20, False), ("b", 32, True))
    assert decide(planned, x=layout(1)).workspaces[1] == ("b", 0, True)
    halved = planner("x: float32[n]", workspace=(records.Workspace("b", ("n / 2",), "int8"),))
    refused("workspace 'b' would have shape (2.5,)", halved, x=layout(5))


aligned = planner(
    "x: float16[rows, cols]; loose: float32[rows] optional loose; free: float32[rows, m] optional loose; "
    "tall: float16[rows, w] optional loose rows; out: float16[rows, cols] output",
    divisible=(records.Divisible("cols", 0, ("x",)),),
)


def x16(*shape: int, **fields: Any) -> Layout:
    return layout(*shape, dtype="float16", **fields)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x": x16(3, 32)}, ""),
        ({"x": x16(3, 32, strides=(48, 1))}, ""),
        ({"x": x16(1, 32, strides=(7, 1))}, ""),
        ({"x": x16(3, 32), "loose": layout(3, aligned=False)}, ""),
        ({"x": x16(3, 32), "tall": x16(3, 7)}, ""),
        ({"x": x16(3, 32), "tall": x16(3, 7, aligned=False)}, "the address of 'tall' is not a multiple of 16"),
        ({"x": x16(3, 32, aligned=False)}, "the address of 'x' is not a multiple of 16"),
        ({"x": x16(3, 32, strides=(40, 1))}, ""),
        ({"x": x16(3, 32, strides=(44, 1))}, "stride 44 of 'x' in dim 0 is not a multiple of 8"),
        ({"x": x16(3, 32, strides=(-32, 1))}, "has a negative stride"),
        ({"x": x16(3, 24)}, ""),
        ({"x": x16(3, 24, strides=(32, 1))}, ""),
        ({"x": x16(3, 20, strides=(32, 1))}, "cols is 20, not a multiple of 8"),
        ({"x": x16(3, 32), "out": x16(3, 32, aligned=False)}, "the address of 'out' is not a multiple of 16"),
        ({"x": x16(3, 32), "out": x16(3, 32, strides=(33, 1))}, "stride 33 of 'out' in dim 0"),
        ({"x": x16(2**25, 32)}, "'x' spans 2147483648 bytes"),
        ({"x": x16(2**25 - 1, 32)}, ""),
        ({"x": x16(2, 32, strides=(2**30 - 16, 1))}, "'x' spans 2147483680 bytes"),
        ({"x": x16(2, 32), "free": layout(2, 8, strides=(2**29, 1))}, "'free' spans 2147483680 bytes"),
    ],
)
def test_alignment(arguments: dict[str, Layout], reason: str):
    found = decide(aligned, **arguments)
    assert found.aligned == (reason == "") == found.launches[0].variant.aligned
    assert any(reason in text for text in found.misaligned) == (reason != ""), found.misaligned


def test_tensors_beyond_2_to_the_31_elements():
    narrow, wide = (planner("x: int8[rows, cols]", wide_offsets=large) for large in (False, True))
    x = layout(2, 16, dtype="int8", strides=(2**31 - 17, 1))
    assert not decide(narrow, x=x).aligned
    for shape, stride in (((2, 16), 2**31), ((2, 1), -(2**31)), ((2**17, 2**14), 2**14)):
        x = layout(*shape, dtype="int8", strides=(stride, 1))
        refused("argument 'x' reaches over", narrow, x=x)
        assert not decide(wide, x=x).aligned
