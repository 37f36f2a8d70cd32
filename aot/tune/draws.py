"""Random calls of an op, as its space declares them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from aot.manifest.spaces import DrawsSpec
from aot_bundle.callspec import CallSpec
from aot_runtime.contract.expressions import parse
from aot_runtime.contract.partial_evaluation import evaluate

Rng = np.random.Generator
T = TypeVar("T")


def drawn_calls(draws: Sequence[DrawsSpec], seed: int, count: int) -> Iterator[CallSpec]:
    """Draw calls. Each has a generator of its own, so that a call does not depend on `count` or on earlier calls."""
    weights = np.array([spec.weight for spec in draws], float)
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        spec = draws[int(rng.choice(len(draws), p=weights / weights.sum()))]
        call = _draw(spec, rng)
        while not all(evaluate(parse(str(text)), dict(call.dims)) for text in spec.require):
            call = _draw(spec, rng)
        yield call


def _draw(spec: DrawsSpec, rng: Rng) -> CallSpec:
    return CallSpec(
        dims={name: _extent(rng, *limits) for name, limits in spec.dims.items()},
        dtypes={name: _one_of(rng, values) for name, values in spec.dtypes.items()},
        innermost={name: _one_of(rng, values) for name, values in spec.innermost.items()},
        given=frozenset(_one_of(rng, spec.given)),
        scalars={name: str(_one_of(rng, values)) for name, values in spec.scalars.items()},
    )


def _extent(rng: Rng, low: int, high: int | None = None, unit: int = 1) -> int:
    if high is None:
        return low
    return max(low, round(math.exp(rng.uniform(math.log(low), math.log(high))) / unit) * unit)


def _one_of(rng: Rng, values: Sequence[T]) -> T:
    return values[int(rng.integers(len(values)))]


def call_text(call: CallSpec) -> str:
    """Return a call in words, which identify it."""
    words = [f"{name}={value}" for group in (call.dims, call.dtypes, call.scalars) for name, value in group.items()]
    words += [f"+{name}" for name in sorted(call.given)]
    return " ".join([*words, *(f"{name}.{dim}" for name, dim in call.innermost.items())])
