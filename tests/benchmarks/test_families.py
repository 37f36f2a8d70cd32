"""Families of random calls: draws are valid calls, parts are those of the whole, and results are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from aot_bundle.callspec import plan_call
from aot_runtime import Bundle
from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import Planner, op_planner
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.dtypes import numpy_dtype
from aot_runtime.contract.records import Index
from benchmarks.families import FAMILIES
from benchmarks.families.checks import references, wrong
from benchmarks.families.family import FLOAT8, Call, Drawn, Family, Offer, tensor_bytes
from benchmarks.families.modelled import values_of, wrong_on
from tests.support.emulation.bundling import on_demand
from tests.support.plans import planned

MANIFESTS = ("gemm", "attention", "attention_quantised", "decode", "moe", "rows")
ARCHS = ("gfx942", pytest.param("sm_90", marks=pytest.mark.slow))
SMALL_FLOPS, SMALL_BYTES = 2e7, 4e6
"""Limits of a call that takes no time on the emulator."""

some = pytest.mark.parametrize(
    ("seed", "count"), [(1, 20), pytest.param(2, 200, marks=pytest.mark.slow)], ids=["some", "many"]
)
of_families = pytest.mark.parametrize("name", FAMILIES)


@cache
def indices(arch: str) -> dict[str, Index]:
    """Return the index that has an op, of bundles of which nothing is compiled."""
    from tests.support.on_demand import index_of

    planned_bundles = [index_of(planned(arch, manifest)) for manifest in MANIFESTS]
    return {op.name: index for index in planned_bundles for op in index.ops}


def offer_of(arch: str) -> Offer:
    return Offer(frozenset(indices(arch)), FLOAT8[ARCHITECTURES[arch].fp8])


@cache
def planner(arch: str, op: str) -> Planner:
    return op_planner(indices(arch)[op], op)


def decide(arch: str, call: Call) -> Decision:
    return plan_call(indices(arch)[call.op], planner(arch, call.op), call.spec, None)


def small_calls(family: Family, arch: str, seed: int, count: int, times: float = 1) -> Iterator[Drawn]:
    """Draw calls until as many were small. times: factor of the limits."""
    number = 0
    while count:
        drawn = family.drawn(offer_of(arch), seed, number)
        number += 1
        nbytes = tensor_bytes(decide(arch, drawn.call))
        if drawn.call.flops <= times * SMALL_FLOPS and nbytes <= times * SMALL_BYTES:
            count -= 1
            yield drawn


@some
@of_families
@pytest.mark.parametrize("arch", ARCHS)
def test_no_call_is_refused(arch: str, name: str, seed: int, count: int):
    for number in range(count):
        drawn = FAMILIES[name].drawn(offer_of(arch), seed, number)
        for call in filter(None, (drawn.call, drawn.neighbour, drawn.padded, drawn.plain)):
            assert decide(arch, call).launches, f"{number}: {call}"


@of_families
def test_a_call_does_not_depend_on_others(name: str):
    family, offer = FAMILIES[name], offer_of("gfx942")
    first = [str(family.drawn(offer, 3, number).call) for number in range(4)]
    assert str(family.drawn(offer, 3, 2).call) == first[2]
    assert len(set(first)) > 1


@some
@of_families
def test_results_are_right(name: str, seed: int, count: int):
    for drawn in small_calls(FAMILIES[name], "gfx942", seed, 1 if count == 20 else 8):
        bundle = emulated(drawn.call.op)
        assert wrong_on(bundle, FAMILIES[name], drawn.call) == "", drawn.call


def emulated(op: str) -> Bundle:
    manifest = next(name for name in MANIFESTS if any(each.name == op for each in planned("gfx942", name).ops))
    return on_demand(manifest)


@of_families
def test_parts_are_those_of_the_whole(name: str):
    """The reference of a part is a part of the reference, wherever it is; and faults are found."""
    family = FAMILIES[name]
    count, times = (6, 4) if name.startswith("attention") else (2, 1)  # of attention some have more than 64 queries
    for drawn in small_calls(family, "sm_90", 5, count, times):
        call, decision, op = drawn.call, decide("sm_90", drawn.call), planner("sm_90", drawn.call.op).op
        tensors = whole(call, decision)
        inputs = {tensor.name: tensors[tensor.name] for tensor in op.tensors
                  if tensor.role != "output" and tensor.name in tensors}  # fmt: skip
        tensors[family.output] = references(op, inputs, decision.names)[1]
        for where in (0.0, 0.4, 0.999):
            check = partial_check(family, where)
            assert check(op, decision, call, tensors) == "", f"{where}: {call}"
            faulty = {**tensors, family.output: tensors[family.output] + tensors[family.output].dtype.type(100)}
            assert check(op, decision, call, faulty), f"{where}: {call}"


def whole(call: Call, decision: Decision) -> dict[str, np.ndarray]:
    rng, made = np.random.default_rng(0), values_of(call, decision)
    return {
        name: made[name].astype(numpy_dtype(layout.dtype)) if name in made
        else rng.standard_normal(layout.shape).astype(numpy_dtype(layout.dtype))
        for name, layout in decision.layouts.items()
    }  # fmt: skip


def partial_check(family: Family, where: float) -> Callable[..., str]:
    def part(call: Call, _: float) -> Any:
        return family.part(call, where)

    fixed = replace(family, part=part)
    return lambda op, decision, call, tensors: wrong(fixed, op, decision, call, tensors, lambda x, dtype: x)
