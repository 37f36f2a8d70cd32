"""Constants of costs: the fit, the regret, and where they are written."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aot.tune.fit import Sample, Term, fitted, regret
from aot.tune.overlay import with_fitted
from aot_runtime.contract.expressions import evaluator
from tests.aot.tune.test_overlay import FILE
from tests.support.building.projects import edit

FORMULA = evaluator("start + max(step * n, least)")
TRUE = {(0, "a", "start"): 1.0, (0, "a", "step"): 0.02, (0, "a", "least"): 2.0,
        (0, "b", "start"): 3.0, (0, "b", "step"): 0.005, (0, "b", "least"): 1.0, (1, "c", "step"): 0.5}  # fmt: skip
ROUGH = dict.fromkeys(TRUE, 0.3)


def samples(first: int, noise: float) -> list[Sample]:
    """Return calls of one dim with three ways: configs a and b of a launch, and b with a second launch."""
    rng = np.random.default_rng(first)
    found = []
    for call in range(first, first + 40):
        names = {"n": int(2 ** rng.uniform(0, 11))}
        one, other = (Term(0, config, FORMULA, names) for config in "ab")
        second = Term(1, "c", evaluator("step * 4"), names)
        for way, terms in {"a": (one,), "b": (other,), "b c": (other, second)}.items():
            truth = Sample(call, way, 0, terms).cost(TRUE)
            found.append(Sample(call, way, truth * 1e-6 * math.exp(noise * rng.standard_normal()), terms))
    return found


def test_a_fit_finds_the_constants_of_noisy_times():
    constants = fitted(samples(0, 0.01), ROUGH)
    assert constants == pytest.approx(TRUE, rel=0.1)
    held = samples(100, 0)
    assert regret(held, ROUGH).mean > 0.2 and regret(held, constants).mean < 0.001
    assert max(regret(held, TRUE).parts) == 0


def test_regret_is_that_of_the_way_that_costs_least():
    ways = [Sample(0, way, seconds, (Term(0, way, evaluator("cost"), {}),)) for way, seconds in (("a", 2), ("b", 3))]
    costs = {(0, "a", "cost"): 1.0, (0, "b", "cost"): 0.9}
    assert regret(ways, costs).parts == (0.5,)
    assert regret(ways, costs | {(0, "a", "cost"): 0.8}).parts == (0,)


def test_constants_are_written_in_their_place():
    text = edit(FILE, ("{name: short, when: cols <= 16,", "{name: short, fitted: {start: 1}, when: cols <= 16,"))
    new = with_fitted(text, "gfx942", "scale_rows", "short", {"start": 2.5, "step": 3e-07})
    assert new == edit(text, ("fitted: {start: 1}", "fitted: {start: 2.5, step: 3.0e-07}"))
    for arch, config in (("gfx942", "base"), ("gfx950", "short"), ("gfx942", "long")):
        with pytest.raises(KeyError):
            with_fitted(text, arch, "scale_rows", config, {})
