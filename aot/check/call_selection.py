"""Select the calls of each op, and the variants that they need.

Points of the op's axes with small blocks are preferred. Calls alternate between the general and the aligned
specialisation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from aot.manifest.loading import Manifest
from aot.plan.bundles import PlannedBundle
from aot.plan.cases import Recipe, planning_index
from aot.plan.variants import VariantSpec
from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.records import Op, Variant
from aot_runtime.device.device import Device

from .constraints import Point
from .random_calls import CallSampler, PlanningContext, RandomCall
from .random_values import make_recipe, names_twice

MAX_POINTS = 8
"""Maximum number of points of a specialisation that are tried to find calls."""
CASES_OF_A_POINT = 3


@dataclass(frozen=True)
class PlannedCheck:
    """A call of an op: its tensors packed and strided, and the recipe of their values."""

    number: int
    drawn: RandomCall
    strided: Decision
    recipe: Recipe
    is_referred: bool
    """The op's reference defines the results."""

    @property
    def decisions(self) -> tuple[Decision, Decision]:
        return self.drawn.decision, self.strided

    @property
    def same_launches(self) -> bool:
        """Packed and strided tensors get the same variants and grids, so that the results are the same bytes."""
        first, second = ([(_key(item.variant), item.grid) for item in found.launches] for found in self.decisions)
        return first == second


@dataclass(frozen=True)
class PlannedOp:
    """The calls of one op. `refusal`: why there are none; empty if there are some."""

    manifest: Manifest
    op: Op
    checks: tuple[PlannedCheck, ...]
    refusal: str = ""


def plan_op(bundle: PlannedBundle, manifest: Manifest, op: Op, device: Device, seed: int, count: int) -> PlannedOp:
    """Plan `count` calls of an op, or as many as are found. manifest: the one that declares the op."""
    specs = [variant.spec for variant in bundle.variants if variant.spec.op == op.name]
    index = planning_index(op, specs, bundle.target)
    context = PlanningContext(index, op_planner(index, op.name), device)
    rng = np.random.default_rng([seed, crc32(op.name.encode())])
    points = [group for group in (_points(specs, aligned, rng) for aligned in (False, True)) if group]
    checks: list[PlannedCheck] = []
    refusal = ""
    for number in range(count):
        drawn = None
        while drawn is None and (points := [group for group in points if group]):
            group = points[number % len(points)]
            point = group[number // len(points) // CASES_OF_A_POINT % len(group)]
            sampler = CallSampler(context, op, point, number, rng)
            drawn = sampler.draw()
            if drawn is None:
                refusal = refusal or sampler.refusal
                group.remove(point)
        if drawn is not None:
            recipe = make_recipe(manifest, op, drawn, f"case{number}", rng)
            is_referred = bool(op.reference) and not names_twice(op, recipe)
            checks.append(PlannedCheck(number, drawn, context.plan(drawn.strided), recipe, is_referred))
    return PlannedOp(manifest, op, tuple(checks), "" if checks else refusal)


def _points(specs: Iterable[VariantSpec], aligned: bool, rng: np.random.Generator) -> list[Point]:
    """Choose some points of a specialisation. Points with small blocks come first: they compile and run fastest."""
    found = list(dict.fromkeys(spec.point for spec in specs if spec.aligned == aligned))
    shuffled = [found[i] for i in rng.permutation(len(found))]
    cheapest = sorted(shuffled, key=lambda point: sum(math.log2(v) for _, v in point if type(v) is int and v > 0))
    return [{**dict(point), "aligned": aligned} for point in cheapest[:MAX_POINTS]]


def narrowed(bundle: PlannedBundle, planned: Iterable[PlannedOp]) -> PlannedBundle:
    """Return the part of a bundle that the calls need."""
    wanted = {key for op in planned for key in _keys(op.checks)}
    variants = tuple(item for item in bundle.variants if _spec_key(item.spec) in wanted)
    names = {variant.spec.op for variant in variants}
    ops = tuple(op for op in bundle.ops if op.name in names)
    return dataclasses.replace(bundle, ops=ops, variants=variants, cases=())


_Key = tuple[object, ...]


def _keys(checks: Iterable[PlannedCheck]) -> Iterator[_Key]:
    for check in checks:
        for decision in check.decisions:
            for launch in decision.launches:
                yield _key(launch.variant)


def _key(variant: Variant) -> _Key:
    return variant.op, variant.launch, tuple(variant.axis_values.items()), variant.aligned, variant.config


def _spec_key(spec: VariantSpec) -> _Key:
    return spec.op, spec.launch, spec.point, spec.aligned, spec.config
