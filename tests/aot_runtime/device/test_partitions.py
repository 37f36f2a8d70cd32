"""Compute units and XCDs come from the device: partitions and other products differ from the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from aot_bundle.command.main import main
from aot_runtime import get_device
from aot_runtime.call.op import build_op
from aot_runtime.contract import records
from aot_runtime.contract.arch import likely_num_xcds
from aot_runtime.device.code import Code
from aot_runtime.device.drivers.hip import HipDriver
from tests.support.contracts import decide, launch, layout, op, planner, tensor
from tests.support.hip_double.double import DoubleLibrary, in_double

SPREAD = op(
    tensor("x", "n"),
    tensor("out", "n", role="output"),
    axes=(records.Axis("BY_DIE", (False, True), "num_xcds > 1 and num_cus > 38"),),
    derived=(records.Derived("runs", "num_xcds * 2"),),
    launches=(launch("num_cus", "num_xcds"),),
)


# What a device says.


def properties(cus: int, xcds: int) -> None:
    found = HipDriver().properties(0)
    assert (found.num_cus, found.num_xcds) == (cus, xcds)


@pytest.mark.parametrize(
    ("environment", "cus", "xcds"),
    [
        ({"HIP_DOUBLE_CUS": 304, "HIP_DOUBLE_XCCS": 8}, 304, 8),
        ({"HIP_DOUBLE_CUS": 228, "HIP_DOUBLE_XCCS": 6}, 228, 6),  # MI300A
        ({"HIP_DOUBLE_CUS": 80, "HIP_DOUBLE_XCCS": 4}, 80, 4),  # MI308X
        ({"HIP_DOUBLE_CUS": 38, "HIP_DOUBLE_XCCS": 1}, 38, 1),  # CPX
        ({"HIP_DOUBLE_CUS": 38}, 38, 1),  # CPX, and a library that does not know
        ({"HIP_DOUBLE_ARCH": "gfx950", "HIP_DOUBLE_CUS": 128}, 128, 4),  # DPX
        ({"HIP_DOUBLE_ARCH": "gfx1100", "HIP_DOUBLE_CUS": 48}, 96, 1),  # HIP counts work-group processors
    ],
)
def test_a_device_says_what_it_has(hip_double: DoubleLibrary, environment: dict[str, object], cus: int, xcds: int):
    hip_double.run(properties, cus, xcds, **environment)


def without_the_attribute() -> None:
    """Ask for the XCDs through a binding without the attribute, such as hip-python 6."""
    driver = HipDriver()
    driver._binding = Older(driver._binding)
    assert driver.properties(0).num_xcds == 6


class Older:
    """A binding without the attribute that asks for XCDs."""

    hipDeviceAttribute_t = object

    def __init__(self, binding: object):
        self._binding = binding

    def __getattr__(self, name: str) -> object:
        return getattr(self._binding, name)

    @property
    def __name__(self) -> str:
        return self._binding.__name__


def test_a_binding_that_cannot_ask(hip_double: DoubleLibrary):
    hip_double.run(without_the_attribute, HIP_DOUBLE_CUS=228, HIP_DOUBLE_XCCS=1)


@pytest.mark.parametrize(
    ("arch", "cus", "xcds"), [("gfx942", 304, 8), ("gfx942", 228, 6), ("gfx942", 152, 4), ("gfx942", 1, 1),
                              ("gfx90a", 110, 1), ("gfx1103", 12, 1), ("gfx9999", 64, 1)],
)  # fmt: skip
def test_dies_by_compute_units(arch: str, cus: int, xcds: int):
    assert likely_num_xcds(arch, cus) == xcds


# What reads it.


def test_planning_goes_by_the_device():
    planned = planner(SPREAD)
    whole = decide(planned, x=layout(64))
    assert (whole.names["num_xcds"], whole.names["runs"], whole.launches[0].grid) == (8, 16, (304, 8, 1))
    assert whole.names["BY_DIE"] is True
    partition = planned.decide({"x": layout(64)}, {}, ("hip", 0), 38, "gfx942", 1)
    assert (partition.names["num_xcds"], partition.names["runs"], partition.launches[0].grid) == (1, 2, (38, 1, 1))
    assert partition.names["BY_DIE"] is False


@in_double(HIP_DOUBLE_CUS=228, HIP_DOUBLE_XCCS=6)
def test_a_call_goes_by_its_device():
    device = get_device("hip:0")
    spread = build_op(planner(SPREAD), device, Code(device, lambda name: b"", Path))
    assert spread.decide({"x": layout(64)}, {}).launches[0].grid == (228, 6, 1)


def test_explain_of_a_partition(rows_bundle):
    command = ["explain", str(rows_bundle), "softmax", "--dim", "rows=8", "--dim", "cols=1000", "--dtype", "T=float16"]
    first = [
        CliRunner().invoke(main, [*command, *options]).output.splitlines()[0]
        for options in (["--num-cus", "304"], ["--num-cus", "38", "--num-xcds", "1"])
    ]
    assert first == [
        "softmax on gfx942 with 304 compute units", "softmax on gfx942 with 38 compute units and 1 of 8 XCDs",
    ]  # fmt: skip
