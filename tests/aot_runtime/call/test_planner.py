"""What calls become: every rule of a contract, on layouts without memory."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from aot_runtime.call.launches import kernarg_image
from aot_runtime.call.planner import Planner
from aot_runtime.call.rules import pick_value
from aot_runtime.contract import records
from aot_runtime.contract.layout import Layout
from aot_runtime.errors import ArgumentError, ExpressionError, NoVariantError
from tests.support.contracts import HERE, decide, dims, launch, layout, op, planner, tensor, variants


def refused(words: str, planned: Any, kind: type[Exception] = ArgumentError, **arguments: Any) -> None:
    with pytest.raises(kind) as raised:
        decide(planned, **arguments)
    assert words in str(raised.value), str(raised.value)


# Tensors.

PAIR = op(
    tensor("x", "rows", "cols", dtype="T"),
    tensor("y", "rows", "cols", dtype="T"),
    tensor("out", "rows", "cols", dtype="T", role="output"),
    dtypes={"T": ("float16", "float32")},
)
pair = planner(PAIR)


def test_an_output_is_laid_out_like_its_contract():
    out = decide(pair, x=layout(3, 5, strides=(100, 1)), y=layout(3, 5)).layouts["out"]
    assert out is layout(3, 5)
    transposed = op(tensor("x", "rows", "cols"), tensor("out", "rows", "cols", role="output", contiguous=(0,)))
    assert decide(planner(transposed), x=layout(3, 5)).layouts["out"].strides == (1, 3)


def test_outputs_may_be_declared_before_inputs():
    contract = op(
        tensor("out", "n", dtype="T", role="output", when="flag"), tensor("x", "n", dtype="T"),
        tensor("last", "n", dtype="T", role="output"), dtypes={"T": ("int8", "int16")},
        scalars=(records.Scalar("flag", "flag", "False"),),
    )  # fmt: skip
    planned = planner(contract)
    assert set(decide(planned, x=layout(2, dtype="int8")).layouts) == {"x", "last"}
    assert set(decide(planned, x=layout(2, dtype="int8"), flag=True).layouts) == {"out", "x", "last"}
    refused(
        "argument 'last' is int16, but 'x' is int8", planned, x=layout(2, dtype="int8"), last=layout(2, dtype="int16")
    )


def test_a_given_output_keeps_its_strides():
    given = layout(3, 5, strides=(32, 1))
    assert decide(pair, x=layout(3, 5), y=layout(3, 5), out=given).layouts["out"] is given


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"y": layout(3, 5)}, "op: argument 'x' is missing"),
        ({"x": layout(3, 5, 1), "y": layout(3, 5)}, "argument 'x' has 3 dims [3, 5, 1]; it takes 2: [rows, cols]"),
        ({"x": layout(), "y": layout(3, 5)}, "argument 'x' has 0 dims []; it takes 2"),
        ({"x": layout(3, 5, dtype="int8"), "y": layout(3, 5)}, "argument 'x' is int8; allowed: float16, float32"),
        ({"x": layout(3, 5, dtype="float16"), "y": layout(3, 5)},
         "argument 'y' is float32, but 'x' is float16; both are T"),
        ({"x": layout(3, 5), "y": layout(3, 6)},
         "argument 'y' has shape [3, 6]: dim 1 (cols) is 6, but must be 5 to agree with the other arguments"),
        ({"x": layout(3, 5), "y": layout(1, 5)}, "dim 0 (rows) is 1, but must be 3"),
        ({"x": layout(3, 5, strides=(1, 3)), "y": layout(3, 5)},
         "argument 'x' has stride 3 in dim 1 (cols); it must be 1: that dim is contiguous"),
        ({"x": layout(3, 5, strides=(5, -1)), "y": layout(3, 5)}, "stride -1 in dim 1"),
        ({"x": layout(0, 5), "y": layout(0, 5)}, "rows is 0; allowed: 1 to 2147483647"),
        ({"x": layout(3, 0), "y": layout(3, 0)}, "cols is 0; allowed: 1 to 2147483647"),
        ({"x": layout(2**31, 5), "y": layout(2**31, 5)}, "rows is 2147483648; allowed: 1 to 2147483647"),
        ({"x": layout(3, 5), "y": layout(3, 5, device=("hip", 1))}, "argument 'y' is on hip:1, but 'x' is on hip:0"),
        ({"x": layout(3, 5), "y": layout(3, 5), "out": layout(3, 5, device=("cuda", 0))}, "'out' is on cuda:0"),
        ({"x": layout(3, 5), "y": layout(3, 5), "out": layout(3, 4)}, "argument 'out' has shape [3, 4]: dim 1"),
        ({"x": layout(3, 5), "y": layout(3, 5), "out": layout(5)}, "argument 'out' has 1 dims"),
        ({"x": layout(3, 5), "y": layout(3, 5), "out": layout(3, 5, dtype="float16")},
         "argument 'out' is float16, but 'x' is float32; both are T"),
        ({"x": layout(3, 5), "y": layout(3, 5), "out": layout(3, 5, strides=(0, 1))},
         "argument 'out' is written to, but overlaps itself: strides [0, 1]"),
        ({"x": layout(3, 5), "y": layout(3, 5), "out": layout(3, 5, strides=(4, 1))}, "overlaps itself"),
        ({"x": layout(3, 5), "y": layout(3, 5), "out": layout(3, 5, strides=(-1, 1))}, "overlaps itself"),
    ],
)  # fmt: skip
def test_wrong_tensors(arguments: dict[str, Layout], words: str):
    refused(words, pair, **arguments)


def test_an_input_may_overlap_itself():
    assert decide(pair, x=layout(3, 5, strides=(0, 1)), y=layout(3, 5, strides=(1, 1)))


def test_the_stride_of_a_single_element_is_free():
    assert decide(pair, x=layout(3, 1, strides=(7, 9)), y=layout(3, 1), out=layout(3, 1, strides=(2, 5)))


def test_several_contiguous_dims_are_packed_innermost_last():
    planned = planner(op(tensor("x", "a", "b", "c", contiguous=(2, 1))))
    decide(planned, x=layout(2, 3, 4, strides=(50, 1, 3)))
    refused("argument 'x' has stride 4 in dim 2 (c); it must be 3", planned, x=layout(2, 3, 4, strides=(50, 1, 4)))
    free = planner(op(tensor("x", "a", "b", contiguous=())))
    decide(free, x=layout(2, 3, strides=(5, 7)))


def test_an_inout_tensor_does_not_overlap_itself():
    planned = planner(op(tensor("state", "n", "m", role="inout")))
    decide(planned, state=layout(3, 4, strides=(9, 1)))
    refused("'state' is written to, but overlaps itself", planned, state=layout(3, 4, strides=(2, 1)))


# Broadcast and optional tensors, and outputs that need not be.

MASKED = op(
    tensor("x", "batch", "rows", "cols"),
    tensor("bias", "batch|1", "rows|1", "cols", optional=True),
    tensor("out", "batch", "rows", "cols", role="output"),
    tensor("extra", "rows", role="output", when="return_extra and rows > 1"),
    scalars=(records.Scalar("return_extra", "flag", "False"),),
    axes=(records.Axis("HAS_BIAS", (False, True), "given(bias)"),),
)
masked = planner(MASKED, {
    "bias": ("*float32", "bias"), "s0": ("i32", "stride(bias, 0)"), "s1": ("i64", "stride(bias, 1)"),
    "has": ("i1", "given(bias)"), "size": ("i32", "elsize(bias) + elsize(x)"),
})  # fmt: skip


def test_a_broadcast_dim_has_stride_0():
    x = layout(2, 3, 4)
    found = decide(masked, x=x, bias=layout(1, 3, 4))
    assert found.launches[0].values["stride(bias, 0)"] == 0
    assert found.launches[0].values["stride(bias, 1)"] == 4
    found = decide(masked, x=x, bias=layout(2, 1, 4, strides=(8, 5, 1)))
    assert (found.launches[0].values["stride(bias, 0)"], found.launches[0].values["stride(bias, 1)"]) == (8, 0)
    assert found.names["HAS_BIAS"] is True
    refused("dim 0 (batch) is 3, but must be 2 or 1", masked, x=x, bias=layout(3, 3, 4))
    refused("dim 2 (cols) is 1, but must be 4 to agree", masked, x=x, bias=layout(2, 3, 1))


def test_an_optional_tensor_may_be_absent():
    found = decide(masked, x=layout(2, 3, 4))
    assert found.names["HAS_BIAS"] is False
    assert found.launches[0].values["stride(bias, 0)"] == 0
    assert found.launches[0].values["elsize(bias) + elsize(x)"] == 8
    assert set(found.layouts) == {"x", "out"}


def test_an_output_exists_where_its_condition_holds():
    x = layout(2, 3, 4)
    assert decide(masked, x=x, return_extra=True).layouts["extra"] is layout(3)
    refused("argument 'extra' is given, but exists only when return_extra and rows > 1", masked, x=x, extra=layout(3))
    refused("exists only when", masked, x=layout(2, 1, 4), return_extra=True, extra=layout(1))


def test_a_dim_of_an_optional_tensor_is_0_without_it():
    planned = planner(op(tensor("x", "n"), tensor("ids", "count", optional=True)), {"count": ("i32", "count")})
    assert decide(planned, x=layout(2)).launches[0].values["count"] == 0
    assert decide(planned, x=layout(2), ids=layout(7)).launches[0].values["count"] == 7
    refused("count is 0", planned, x=layout(2), ids=layout(0))


# Dims that are solved, required, derived.


def test_dims_are_solved_and_then_checked():
    planned = planner(op(
        tensor("starts", "batch + 1"), tensor("x", "groups * 4"), tensor("y", "wide // 2"), tensor("z", "batch",
        "n - 1")
    ))  # fmt: skip
    names = decide(planned, starts=layout(6), x=layout(12), y=layout(5), z=layout(5, 8)).names
    assert {key: names[key] for key in ("batch", "groups", "wide", "n")} == {
        "batch": 5, "groups": 3, "wide": 10, "n": 9,
    }  # fmt: skip
    refused(
        "dim 0 (groups * 4) is 13, but must be 12", planned, starts=layout(6), x=layout(13), y=layout(5), z=layout(5, 8)
    )
    refused(
        "dim 0 (batch + 1) is 7, but must be 6", planned, starts=layout(7), x=layout(12), y=layout(5), z=layout(5, 8)
    )


def test_a_solved_dim_is_in_its_range_too():
    planned = planner(op(tensor("starts", "batch + 1")))
    refused("batch is 0; allowed: 1 to", planned, starts=layout(1))
    zero = planner(op(tensor("starts", "batch + 1"), dims=(records.DimLimit("batch", min=0, max=3),)))
    assert decide(zero, starts=layout(1)).names["batch"] == 0
    refused("batch is 4; allowed: 0 to 3", zero, starts=layout(5))


def test_extents_may_be_constants_scalars_and_expressions():
    planned = planner(op(
        tensor("x", "n", "3"), tensor("y", "k", "n * 2 + k"), tensor("out", "cdiv(n, 2)", "k", role="output"),
        scalars=(records.Scalar("k", "i32"),),
    ))  # fmt: skip
    assert decide(planned, x=layout(5, 3), y=layout(4, 14), k=4).layouts["out"].shape == (3, 4)
    refused("dim 1 (3) is 4, but must be 3", planned, x=layout(5, 4), y=layout(4, 14), k=4)
    refused("dim 1 (n * 2 + k) is 13, but must be 14", planned, x=layout(5, 3), y=layout(4, 13), k=4)
    refused("dim 0 (k) is 4, but must be 5", planned, x=layout(5, 3), y=layout(4, 15), k=5)
    refused("the shape of output 'out' would be [3, -1]",
            planner(op(tensor("x", "n"), tensor("out", "cdiv(n, 2)", "k", role="output"),
                       scalars=(records.Scalar("k", "i32"),))), x=layout(5), k=-1)  # fmt: skip


def test_requirements_and_derived_values():
    contract = op(
        tensor("q", "heads"), tensor("k", "heads_kv"), require=("heads % heads_kv == 0",),
        derived=(records.Derived("group", "heads // heads_kv"), records.Derived("twice", "group * 2")),
        launches=(launch("twice"),),
    )  # fmt: skip
    planned = planner(contract)
    assert decide(planned, q=layout(8), k=layout(2)).launches[0].grid == (8, 1, 1)
    refused("requires heads % heads_kv == 0; given: heads=8, heads_kv=3", planned, q=layout(8), k=layout(3))


def test_derived_values_stay_small():
    lets = tuple(records.Derived(f"l{i}", f"{f'l{i - 1}' if i else 'n'} ** 16") for i in range(12))
    refused("l1 would be", planner(op(tensor("x", "n"), derived=lets[:2])), x=layout(15))
    refused("l0 would be", planner(op(tensor("x", "n"), derived=lets)), x=layout(2**31 - 1))
    text = (records.Derived("a", "'x' if n else 'y'"), records.Derived("b", "a * n"))
    with pytest.raises(ArgumentError, match="a would be 'x'; a number"):
        decide(planner(op(tensor("x", "n"), derived=text)), x=layout(2**31 - 1))


def test_what_cannot_be_computed_is_an_argument_error():
    planned = planner(op(tensor("x", "n"), scalars=(records.Scalar("k", "i32"),), launches=(launch("n // k"),)))
    refused("these arguments have no plan", planned, x=layout(3), k=0)


# Scalars.


def scalar(kind: str, **fields: Any) -> Any:
    return planner(op(tensor("x", "n"), scalars=(records.Scalar("s", kind, **fields),)), {"s": (kind, "s")})


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("i32", None, "argument 's' is missing"),
        ("i32", 1.0, "argument 's' is 1.0; an integer is allowed"),
        ("i32", "1", "argument 's' is '1'; an integer is allowed"),
        ("i32", np.float32(1), "an integer is allowed"),
        ("i32", [1], "argument 's' is [1]; an integer is allowed"),
        ("i32", 2**31, "argument 's' is 2147483648"),
        ("i32", -(2**31) - 1, "argument 's' is -2147483649"),
        ("u32", -1, "argument 's' is -1"),
        ("u8", 256, "argument 's' is 256"),
        ("i64", 2**63, "argument 's' is 9223372036854775808"),
        ("fp32", "1.5", "argument 's' is '1.5'; a number is allowed"),
        ("fp32", b"1", "a number is allowed"),
        ("fp32", 1j, "argument 's' is 1j; a number is allowed"),
        ("fp32", None, "argument 's' is missing"),
    ],
)
def test_wrong_scalars(kind: str, value: Any, words: str):
    refused(words, scalar(kind), x=layout(2), s=value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("i32", 2**31 - 1), ("i32", -(2**31)), ("u64", 2**64 - 1), ("i32", np.int64(5)), ("i8", np.uint8(7)), ("i32",
     True),
     ("fp32", 3), ("fp32", np.float16(0.5)), ("fp64", -1e300), ("fp32", float("inf"))],
)  # fmt: skip
def test_right_scalars(kind: str, value: Any):
    found = decide(scalar(kind), x=layout(2), s=value)
    assert found.launches[0].values["s"] == value
    image = kernarg_image(PAIR, found.launches[0].variant, found.launches[0].values, frozenset())
    dtype = {"fp32": "<f4", "fp64": "<f8"}.get(kind) or np.dtype(kind.replace("i", "<i").replace("u", "<u")[:2]
                                                                + str(int(kind[1:]) // 8))  # fmt: skip
    assert np.frombuffer(image, dtype)[0] == value


def test_ranges_of_scalars():
    planned = scalar("i32", min=1, max=8)
    decide(planned, x=layout(2), s=8)
    refused("argument 's' is 9; allowed: 1 to 8", planned, x=layout(2), s=9)
    refused("argument 's' is 0; allowed: 1 to 8", planned, x=layout(2), s=0)
    refused("allowed: 0.0 to inf (fp32)", scalar("fp32", min=0.0), x=layout(2), s=-1e-30)
    refused("'s' is nan", scalar("fp32", min=0.0), x=layout(2), s=float("nan"))


def test_flags_and_choices():
    contract = op(
        tensor("x", "n"),
        scalars=(
            records.Scalar("flag", "flag", "n > 4"),
            records.Scalar("mode", "choice", "'a' if flag else 'b'", ("a", "b")),
        ),
        axes=(records.Axis("MODE", ("a", "b"), "mode"),),
    )
    planned = planner(contract)
    names = decide(planned, x=layout(5)).names
    assert (names["flag"], names["mode"], names["MODE"]) == (True, "a", "a")
    assert decide(planned, x=layout(5), flag=np.bool_(False)).names["mode"] == "b"
    assert decide(planned, x=layout(5), flag=0).names["flag"] is False
    refused("argument 'flag' is 2; True or False is allowed", planned, x=layout(5), flag=2)
    refused("argument 'flag' is 'yes'; True or False", planned, x=layout(5), flag="yes")
    refused("argument 'mode' is 'c'; allowed: a, b", planned, x=layout(5), mode="c")
    refused("argument 'mode' is 1; allowed: a, b", planned, x=layout(5), mode=1)


def test_defaults_may_use_dims_and_earlier_scalars():
    planned = planner(op(
        tensor("x", "n"),
        scalars=(records.Scalar("scale", "fp32", "n ** -0.5"), records.Scalar("twice", "fp32", "scale * 2")),
    ), {"scale": ("fp32", "scale"), "twice": ("fp32", "twice")})  # fmt: skip
    assert decide(planned, x=layout(16)).launches[0].values == {"scale": 0.25, "twice": 0.5}
    assert decide(planned, x=layout(16), scale=3).launches[0].values["twice"] == 6
    with pytest.raises(ExpressionError, match="undefined name 'later'"):
        planner(
            op(tensor("x", "n"), scalars=(records.Scalar("a", "i32", "later"), records.Scalar("later", "i32", "1")))
        )


def test_static_scalars_are_those_that_decide():
    contract = op(
        tensor("x", "n"),
        scalars=(records.Scalar("free", "fp32"), records.Scalar("grid", "i32"), records.Scalar("flag", "flag", "False"),
                 records.Scalar("limited", "i32", "1", min=1), records.Scalar("mixed", "i32", "1")),
        launches=(launch("grid"),),
    )  # fmt: skip
    planned = planner(contract, {"free": ("fp32", "free"), "mixed": ("i32", "mixed * 2")})
    assert planned.static == {"grid", "flag", "limited", "mixed"}


# Axes.


@pytest.mark.parametrize(
    ("rule", "wanted", "value"),
    [(">=", 64, 64), (">=", 65, 128), (">=", 129, None), (">", 64, 128), (">", 128, None), ("<=", 64, 64), ("<=",
     63, 32),
     ("<=", 31, None), ("<", 64, 32), ("<", 32, None), ("equal", 64, 64), ("equal", 65, None)],
)  # fmt: skip
def test_picking(rule: str, wanted: int, value: int | None):
    assert pick_value(records.Axis("A", (32, 64, 128), "n", rule), wanted) == value


AXES = op(
    tensor("x", "n", dtype="T"),
    scalars=(records.Scalar("causal", "flag", "False"),),
    dtypes={"T": ("float16", "float32")},
    axes=(records.Axis("BLOCK", (32, 64), "n", ">="), records.Axis("CAUSAL", (False, True), "causal")),
    denied=(records.Denied("BLOCK == 64 and CAUSAL", "spills"),),
)


def test_the_point_is_picked_axis_by_axis():
    planned = planner(AXES)
    variant = decide(planned, x=layout(33, dtype="float16"), causal=True).launches[0].variant
    assert variant.axis_values == {"T": "float16", "BLOCK": 64, "CAUSAL": True}
    refused("BLOCK: none of [32, 64] is picked by >= n", planned, NoVariantError, x=layout(65))


def test_no_variant_lists_what_there_is():
    planned = planner(AXES, keep=lambda v: v.axis_values["BLOCK"] == 32 and v.axis_values["T"] == "float16")
    with pytest.raises(NoVariantError) as raised:
        decide(planned, x=layout(40))
    text = str(raised.value)
    assert text.startswith("op: no variant of this bundle fits the call:")
    assert "kernel[T=float32, BLOCK=64, CAUSAL=False], aligned=True: not built" in text
    assert "kernel[T=float32, BLOCK=64, CAUSAL=False], aligned=False: not built" in text
    assert "built: T: float16; BLOCK: 32; CAUSAL: False, True" in text
    assert "left out: BLOCK == 64 and CAUSAL: spills" in text
    assert isinstance(raised.value, ArgumentError)


def test_a_missing_aligned_variant_gives_the_general_one():
    planned = planner(AXES, keep=lambda v: not v.aligned)
    found = decide(planned, x=layout(16))
    assert not found.aligned and found.misaligned == ()
    assert not found.launches[0].variant.aligned


# Configs and launches.

BINNED = op(
    tensor("x", "n"),
    launches=(
        launch("cdiv(n, BLOCK)", kernel="first", configs=(
            records.Config("long", {"BLOCK": 256}, {}, "n > 1000"),
            records.Config("mid", {"BLOCK": 128}, {}, "n > 100 and num_cus > 8 and arch == 'gfx942'"),
            records.Config("short", {"BLOCK": 32}, {}),
        )),
        launch("n", "2", "3", kernel="second", when="n % 2 == 0"),
    ),
)  # fmt: skip


def test_the_first_config_that_holds_serves_the_call():
    planned = planner(BINNED, {"n": ("i32", "n")})
    for n, config, grid in ((1001, 0, 4), (1000, 1, 8), (100, 2, 4), (1, 2, 1)):
        launches = decide(planned, x=layout(n)).launches
        assert (launches[0].variant.config, launches[0].grid) == (config, (grid, 1, 1))
        assert [item.index for item in launches] == ([0, 1] if n % 2 == 0 else [0])
        if n % 2 == 0:
            assert (launches[1].grid, launches[1].variant.symbol) == ((n, 2, 3), "second")
    few = planned.decide({"x": layout(200)}, {}, HERE, 8, "gfx942")
    assert few.launches[0].variant.config == 2


def test_a_config_that_was_not_built_gives_way_to_the_next():
    planned = planner(BINNED, keep=lambda v: v.launch == 1 or v.config != 0)
    assert decide(planned, x=layout(5000)).launches[0].variant.config == 1


def test_a_launch_that_was_not_built_is_no_variant():
    planned = planner(BINNED, keep=lambda v: v.launch == 0)
    assert decide(planned, x=layout(3))
    refused("second[], aligned=False: not built", planned, NoVariantError, x=layout(4))


def test_grids_have_limits():
    planned = planner(op(
        tensor("x", "n"), tensor("y", "m"), tensor("z", "k"), launches=(launch("n", "m", "k"),),
        dims=tuple(records.DimLimit(name, 0) for name in "nmk"),
    ))  # fmt: skip
    most = (2**32 - 1) // 256
    for grid in ((most, 1, 1), (1, 65535, 65535), (0, 0, 0)):
        found = decide(planned, x=layout(grid[0]), y=layout(grid[1]), z=layout(grid[2]))
        assert found.launches[0].grid == grid
    for grid, axis in (((most + 1, 1, 1), "x"), ((1, 65536, 1), "y"), ((1, 1, 65536), "z")):
        refused(f"along {axis} 0 to", planned, x=layout(grid[0]), y=layout(grid[1]), z=layout(grid[2]))
    refused("the launch grid would be", planner(op(tensor("x", "n"), launches=(launch("n / 2"),))), x=layout(4))
    refused("the launch grid would be", planner(op(tensor("x", "n"), launches=(launch("n - 9"),))), x=layout(4))


def test_workspaces():
    spaces = (records.Workspace("a", ("n", "2"), "float16"), records.Workspace("b", ("n - 1",), "int64", zero=True))
    planned = planner(op(tensor("x", "n"), workspace=spaces))
    assert decide(planned, x=layout(5)).workspaces == (("a", 20, False), ("b", 32, True))
    assert decide(planned, x=layout(1)).workspaces[1] == ("b", 0, True)
    halved = planner(op(tensor("x", "n"), workspace=(records.Workspace("b", ("n / 2",), "int8"),)))
    refused("workspace 'b' would have shape (2.5,)", halved, x=layout(5))


# Specialisation.

ALIGNED = op(
    tensor("x", "rows", "cols", dtype="float16"),
    tensor("loose", "rows", dtype="float32", align=False, optional=True),
    tensor("out", "rows", "cols", dtype="float16", role="output"),
    divisible=("cols",),
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
        ({"x": x16(3, 32, aligned=False)}, "the address of 'x' is not a multiple of 16"),
        ({"x": x16(3, 32, strides=(40, 1))}, "stride 40 of 'x' in dim 0 is not a multiple of 16"),
        ({"x": x16(3, 32, strides=(-32, 1))}, "has a negative stride"),
        ({"x": x16(3, 24)}, "cols is 24, not a multiple of 16"),
        ({"x": x16(3, 32), "out": x16(3, 32, aligned=False)}, "the address of 'out' is not a multiple of 16"),
        ({"x": x16(3, 32), "out": x16(3, 32, strides=(33, 1))}, "stride 33 of 'out' in dim 0"),
        ({"x": x16(2**25, 32)}, "'x' spans 2147483648 bytes"),
        ({"x": x16(2**25 - 1, 32)}, ""),
        ({"x": x16(2, 32, strides=(2**30 - 16, 1))}, "'x' spans 2147483680 bytes"),
        ({"x": x16(2, 32), "loose": layout(2, strides=(2**30,))}, "argument 'loose' has stride"),
    ],
)
def test_alignment(arguments: dict[str, Layout], reason: str):
    planned = planner(ALIGNED)
    if reason.startswith("argument"):
        return refused(reason, planned, **arguments)
    found = decide(planned, **arguments)
    assert found.aligned == (reason == "") == found.launches[0].variant.aligned
    assert any(reason in text for text in found.misaligned) == (reason != ""), found.misaligned


def test_an_unaligned_tensor_that_may_be_so_still_has_its_range():
    contract = op(tensor("x", "n"), tensor("loose", "n", "m", align=False))
    found = decide(planner(contract), x=layout(2), loose=layout(2, 8, strides=(2**29, 1)))
    assert not found.aligned and "'loose' spans 2147483680 bytes" in found.misaligned[0]


@pytest.mark.parametrize("large", [False, True])
def test_tensors_beyond_2_to_the_31_elements(large: bool):
    contract = op(tensor("x", "rows", "cols", dtype="int8"), wide_offsets=large)
    planned = planner(contract, {"stride": ("i64", "stride(x, 0)")})

    def x8(rows: int, cols: int, step: int) -> Layout:
        return layout(rows, cols, dtype="int8", strides=(step, 1))

    edge = decide(planned, x=x8(2, 16, 2**31 - 17))
    assert not edge.aligned and edge.launches[0].values["stride(x, 0)"] == 2**31 - 17
    for beyond in (x8(2, 16, 2**31), x8(2, 1, -(2**31)), x8(2**17, 2**14, 2**14)):
        if large:
            found = decide(planned, x=beyond)
            assert not found.aligned
            image = kernarg_image(contract, found.launches[0].variant, found.launches[0].values, frozenset())
            assert int.from_bytes(image, "little", signed=True) == beyond.strides[0]
        else:
            refused("argument 'x' reaches over", planned, x=beyond)


def test_a_value_that_its_kernarg_cannot_hold_is_refused():
    contract = op(tensor("x", "n", "m", dtype="int8"), wide_offsets=True)
    planned = planner(contract, {"product": ("i32", "n * m"), "size": ("i32", "n")})
    found = decide(planned, x=layout(2**16, 2**15, dtype="int8"))
    with pytest.raises(
        ArgumentError, match=re.escape("op: n * m is 2147483648; the kernel takes it as i32 ('product')")
    ):
        kernarg_image(contract, found.launches[0].variant, found.launches[0].values, frozenset())


def test_a_stride_is_meant_by_name_or_position_alike():
    planned = planner(op(tensor("x", "rows", "cols")), {
        "by_name": ("i32", "stride(x, rows) * 2"), "by_position": ("i32", "stride(x, 0) * 2"),
    })  # fmt: skip
    values = decide(planned, x=layout(1000, 7)).launches[0].values
    assert values == {"stride(x, rows) * 2": 14, "stride(x, 0) * 2": 14}


def test_strides_of_inputs_are_known_from_the_start():
    contract = op(
        tensor("x", "rows", "cols"), tensor("out", "rows", "stride(x, 0)", role="output"),
        scalars=(records.Scalar("k", "i32", "stride(x, rows)"),), require=("stride(x, 0) % 2 == 0",),
        derived=(records.Derived("step", "stride(x, 0) // 2"),), launches=(launch("step", "stride(out, 0)"),),
    )  # fmt: skip
    found = decide(planner(contract), x=layout(3, 4, strides=(10, 1)))
    assert found.names["k"] == 10 and found.layouts["out"].shape == (3, 10)
    assert found.launches[0].grid == (5, 10, 1)
    refused("requires stride(x, 0) % 2 == 0", planner(contract), x=layout(3, 5))


@pytest.mark.parametrize(
    "fields",
    [
        {"require": ("stride(out, 0) > 1",)},
        {"derived": (records.Derived("k", "stride(out, 0)"),)},
        {"scalars": (records.Scalar("k", "i32", "stride(out, 0)"),)},
    ],
)
def test_strides_of_outputs_are_not(fields: dict[str, Any]):
    with pytest.raises(ExpressionError, match="asks for the layout of output 'out' before it is laid out"):
        planner(op(tensor("x", "rows", "cols"), tensor("out", "rows", "cols", role="output"), **fields))


@pytest.mark.parametrize("stride", ["stride(x, 2)", "stride(x, depth)", "stride(x, cols)"])
def test_a_stride_that_is_not_there_makes_no_planner(stride: str):
    with pytest.raises(ExpressionError, match="names no single dim"):
        planner(op(tensor("x", "rows"), tensor("y", "cols")), {"s": ("i32", stride)})


def test_kernarg_image_bytes():
    """Values where their kernargs are, addresses and what changes from call to call left 0."""
    contract = op(
        tensor("x", "rows", "cols", dtype="float16"),
        scalars=(
            records.Scalar("scale", "fp32", "0.5"),
            records.Scalar("shift", "i16", "-2"),
            records.Scalar("on", "flag", "True"),
        ),
    )
    planned = planner(contract, {
        "x": ("*float16", "x"), "rows": ("i32", "rows"), "scale": ("fp32", "scale"), "shift": ("i16", "shift"),
        "on": ("i1", "on"), "big": ("u64", "cols * 4294967296"), "half": ("fp64", "cols / 2"), "end": ("u8", "3"),
    })  # fmt: skip
    found = decide(planned, x=layout(258, 5, dtype="float16"))
    variant, values = found.launches[0].variant, found.launches[0].values
    expected = (
        bytes(8) + (258).to_bytes(4, "little") + np.float32(0.5).tobytes() + b"\xfe\xff" + b"\x01" + bytes(5)
        + (5 << 32).to_bytes(8, "little") + np.float64(2.5).tobytes() + b"\x03"
    )  # fmt: skip
    assert kernarg_image(contract, variant, values, frozenset()) == expected
    without = bytearray(expected)
    without[12:18] = bytes(6)
    assert kernarg_image(contract, variant, values, frozenset({"scale", "shift"})) == without


# Names.


def test_names_of_builtins_and_of_the_planner_are_free():
    """Contracts name their tensors and dims as they like."""
    names = ("tuple", "list", "input", "len", "print", "int", "name", "layout", "isinstance", "dict", "range", "float")
    for chosen in names:
        contract = op(
            tensor(chosen, "rows", "cols"),
            tensor("out", "rows", role="output"),
            derived=(records.Derived("twice", "rows * 2"),),
            divisible=("cols",),
            workspace=(records.Workspace("space", ("rows",), "int8"),),
        )
        assert decide(planner(contract), **{chosen: layout(2, 3)}).names["twice"] == 4
        sized = op(
            tensor("x", chosen, "cols"), divisible=(chosen,), workspace=(records.Workspace("space", ("cols",), "int8"),)
        )
        assert decide(planner(sized), x=layout(2, 3)).names[chosen] == 2


def test_an_op_may_have_no_input():
    contract = op(tensor("out", "n", role="output"), scalars=(records.Scalar("n", "i32"),), launches=(launch("n"),))
    assert decide(planner(contract), n=3).layouts["out"] is layout(3)
    refused("the shape of output 'out' would be [-1]", planner(contract), n=-1)


def test_the_same_variant_twice_counts_once():
    contract = op(tensor("x", "n"))
    planned = Planner(contract, variants(contract) * 2, "hip")
    assert decide(planned, x=layout(2)).launches[0].variant.aligned


def test_dims_of_a_variable_dtype():
    contract = op(
        tensor("x", "n", dtype="T"), tensor("out", "n * elsize(T)", dtype="int8", role="output"),
        dtypes={"T": ("float16", "float64")},
    )  # fmt: skip
    planned = planner(contract)
    assert decide(planned, x=layout(3, dtype="float64")).layouts["out"].shape == (24,)
    assert decide(planned, x=layout(3, dtype="float16")).layouts["out"].shape == (6,)
    assert dims("n * elsize(T)")[0].extent == "n * elsize(T)"
