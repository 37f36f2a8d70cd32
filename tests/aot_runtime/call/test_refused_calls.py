"""A call of a shipped op that breaks one rule is refused, by an error that names the op and the argument at fault."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import strategies as st

from aot.manifest.loading import load_manifest
from aot.manifest.shipped import shipped_manifests
from aot.plan.bundles import all_option_names
from aot.plan.contract import build_contract
from aot_runtime.call.planner import Planner
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.layout import Layout, make_layout, packed_strides
from aot_runtime.contract.records import Scalar, Target, Tensor
from aot_runtime.errors import ArgumentError, NoVariantError
from tests.support.c_interface.random_calls import RandomCall, RandomCalls
from tests.support.fuzzing import fuzz

pytest.importorskip("triton", reason="the options of configs are Triton's")
CUS, DEVICE, GPU = 304, ("hip", 0), Target("gfx942", "hip", 64)
SOURCES = {
    f"{bundle}.{source.name}": source
    for bundle, path in shipped_manifests().items()
    for source in load_manifest(path).sources
}


@cache
def planner(name: str) -> Planner:
    source = SOURCES[name]
    return Planner(build_contract(source.manifest, source.name, GPU.arch, all_option_names()), [], GPU.backend)


def plan(of: Planner, call: RandomCall, **changes: Any) -> None:
    layouts = {name: changes.get(name, layout) for name, layout in call.layouts.items()}
    scalars = {name: changes.get(name, value) for name, value in call.scalars.items()}
    of.decide(layouts, scalars, DEVICE, CUS, GPU.arch)


def valid_call(of: Planner, source: random.Random) -> RandomCall:
    """Draw calls until one keeps the contract: then only the variants are missing."""
    calls = RandomCalls(of.op, GPU, source)
    while True:
        call = calls.make(CUS)
        try:
            if call is not None:
                plan(of, call)
        except NoVariantError:
            return call
        except ArgumentError:
            continue


def changed(layout: Layout, **new: Any) -> Layout:
    old = {name: getattr(layout, name) for name in ("device", "dtype", "shape", "strides", "aligned", "writeable")}
    return make_layout(**{**old, **new})


def wrong_tensors(tensor: Tensor, layout: Layout, allowed: tuple[str, ...]) -> Iterator[Layout | None]:
    shape, strides = layout.shape, layout.strides
    if tensor.role != "output" and not tensor.optional:
        yield None
    yield changed(layout, shape=(*shape, 2), strides=packed_strides((*shape, 2)))
    yield changed(layout, dtype=next(dtype for dtype in DTYPES if dtype not in allowed))
    if tensor.role != "input":
        yield changed(layout, writeable=False)
    for dim in range(len(shape)):
        if shape[dim] > 1 and (dim in tensor.contiguous or tensor.role != "input"):
            yield changed(layout, strides=(*strides[:dim], 0, *strides[dim + 1 :]))


def wrong_values(scalar: Scalar) -> Iterator[Any]:
    if not scalar.default:
        yield None
    yield from ("no such choice", object(), 10**400)
    if scalar.min is not None:
        yield scalar.min - 1
    if scalar.max is not None:
        yield scalar.max + 1


@fuzz(st.sampled_from(sorted(SOURCES)), st.integers(0, 2**32 - 1))
def test_a_call_that_breaks_one_rule(name: str, seed: int):
    of = planner(name)
    call = valid_call(of, random.Random(seed))
    faults: list[tuple[str, Any]] = [(scalar.name, value) for scalar in of.op.scalars for value in wrong_values(scalar)]
    for tensor in of.op.tensors:
        layout, allowed = call.layouts[tensor.name], of.op.dtypes.get(tensor.dtype, (tensor.dtype,))
        faults += [(tensor.name, wrong) for wrong in wrong_tensors(tensor, layout, allowed)] if layout else []
    for argument, wrong in faults:
        with pytest.raises(ArgumentError, match=rf"^{of.op.name}: .*'{argument}'") as raised:
            plan(of, call, **{argument: wrong})
        assert type(raised.value) is ArgumentError, raised.value
