"""Combinations of the peers' tests that an op takes directly, drawn with a seed, by the tolerances of their suites.

PEERS_SEED and PEERS_COUNT in the environment choose another draw, and how many. A combination that takes more work than
LIMITS is drawn again, up to ATTEMPTS times; then the test is skipped, and says so.
"""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest

from aot.manifest.loading import load_manifest
from tests.peers.calls import CALLS, Call, Draw, TooLargeError
from tests.peers.grids import Combination, Function, combination, read_suites
from tests.peers.rules import MANIFESTS, Contracts, Verdict, contracts, verdict
from tests.support.op_bundles import OpBundles
from tests.support.poison import into_poison, poisoned

SEED, COUNT = (int(os.environ.get(f"PEERS_{name}", default)) for name, default in (("SEED", 1), ("COUNT", 60)))
LIMITS = {"emulator": 3e7, "rocm": 1e7, "gpu": 1e10}
"""Multiplications that a call may take, by device."""
ATTEMPTS = 30


@cache
def functions() -> dict[str, list[Function]]:
    """Return the functions whose calls can be made, by suite."""
    return {
        suite: [item for item in found if (suite, item.name) in CALLS and item.op]
        for suite, found in read_suites().items()
    }


@cache
def known() -> Contracts:
    return contracts()


@cache
def bundle_of(op: str) -> str:
    (stem,) = (path.stem for path in MANIFESTS.glob("*.yaml") if op in load_manifest(path).spec.ops)
    return stem


def draw(rng: np.random.Generator) -> tuple[Function, Combination]:
    """Draw a suite, a function of it, and a combination of its values that is not skipped."""
    suites = functions()
    suite = suites[sorted(suites)[rng.integers(len(suites))]]
    function = suite[rng.integers(len(suite))]
    while True:
        values = tuple(choices[rng.integers(len(choices))] for choices in function.axes.values())
        if not function.skip.holds(found := combination(function.axes, values)):
            return function, found


def drawn(index: int, limit: float) -> tuple[Function, Combination, Call]:
    """Return a call of a combination that is taken directly. Raises TooLargeError if none is small enough."""
    rng = np.random.default_rng((SEED, index))
    for _ in range(ATTEMPTS):
        function, values = draw(rng)
        if verdict(function.op, function.requests(values), known())[0] is not Verdict.DIRECT:
            continue
        try:
            return function, values, CALLS[function.suite, function.name](Draw(function, values, limit, rng))
        except TooLargeError:
            continue
    raise TooLargeError(f"{ATTEMPTS} combinations were drawn, none of up to {limit:.0e} multiplications")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("index", range(COUNT))
def test_drawn_calls_are_right(op_bundles: OpBundles, index: int):
    try:
        function, values, call = drawn(index, LIMITS[op_bundles.on])
    except TooLargeError as error:
        pytest.skip(str(error))
    print(f"{function.file}::{function.name} {values}")
    bundle = op_bundles.open(bundle_of(call.op))
    placed = {
        name: bundle.device.array(x) if x.dtype.kind == "i" and x.ndim < 3 else poisoned(bundle, x)
        for name, x in call.tensors.items()
    }
    name, shape, dtype = call.out
    result = into_poison(
        bundle, shape, dtype, lambda out: getattr(bundle, call.op)(**placed, **call.scalars, **{name: out})
    )
    call.tolerance.check(result, *call.expected())
