"""Combinations of the peers' tests that an op takes directly, drawn with a seed, by the tolerances of their suites.

PEERS_SEED and PEERS_COUNT in the environment choose another draw, and how many. A combination that takes more work than
LIMITS is drawn again, up to ATTEMPTS times; then the test is skipped, and says so.
"""

from __future__ import annotations

import os
from functools import cache

import ml_dtypes
import numpy as np
import pytest

from aot.manifest.loading import load_manifest
from aot.manifest.schema import OpSpec
from tests.peers.calls import CALLS, maker
from tests.peers.draws import Call, Draw, TooLargeError
from tests.peers.grids import Combination, Function, combination, read_suites
from tests.peers.rules import MANIFESTS, RULES, Contracts, Needs, Rule, Verdict, contracts, largest, verdict
from tests.support.dtypes import eight_bits
from tests.support.op_bundles import OpBundles
from tests.support.poison import into_poison

SEED, COUNT = (int(os.environ.get(f"PEERS_{name}", default)) for name, default in (("SEED", 1), ("COUNT", 60)))
LIMITS = {"emulator": 1e8, "rocm": 1e8, "gpu": 1e10}
"""Maximum number of multiplications of a call, by device."""
ATTEMPTS = 30
FNUZ = np.dtype(ml_dtypes.float8_e4m3fnuz)


@cache
def functions() -> dict[str, list[Function]]:
    """Return the functions whose calls can be made, by suite."""
    made = {
        suite: [item for item in found if maker(item) and not item.counted] for suite, found in read_suites().items()
    }
    return {suite: found for suite, found in made.items() if found}


@cache
def known() -> Contracts:
    return contracts()


@cache
def bundle_of(op: str) -> str:
    (stem,) = (path.stem for path in MANIFESTS.glob("*.yaml") if op in load_manifest(path).spec.ops)
    return stem


def draw_function(rng: np.random.Generator) -> Function:
    """Draw a suite, and a function of it."""
    suites = functions()
    suite = suites[sorted(suites)[rng.integers(len(suites))]]
    return suite[rng.integers(len(suite))]


def draw(function: Function, rng: np.random.Generator) -> Combination:
    """Draw a combination that is not skipped."""
    while True:
        values = tuple(choices[rng.integers(len(choices))] for choices in function.axes.values())
        if not function.skip.holds(found := combination(function.axes, values)):
            return found


def drawn(index: int, limit: float, float8: np.dtype) -> tuple[Function, Combination, Call]:
    """Return a call of a combination that is taken directly. Raises TooLargeError if none is small enough."""
    rng = np.random.default_rng((SEED, index))
    function = draw_function(rng)
    make = maker(function)
    assert make is not None
    for _ in range(ATTEMPTS):
        values = draw(function, rng)
        if verdict(function.op, function.requests(values), known())[0] is not Verdict.DIRECT:
            continue
        try:
            return function, values, make(Draw(function, values, limit, float8, rng))
        except TooLargeError:
            continue
    raise TooLargeError(f"{function.name}: no combination of {ATTEMPTS} is taken directly and takes up to {limit:.0e}")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("index", range(COUNT))
def test_drawn_calls_are_right(op_bundles: OpBundles, index: int):
    float8 = eight_bits(op_bundles, "e4m3")
    try:
        function, values, call = drawn(index, LIMITS[op_bundles.on], float8)
    except TooLargeError as error:
        pytest.skip(str(error))
    print(f"{function.file}::{function.name} {values}")
    bundle = op_bundles.open(bundle_of(call.op))
    placed = {name: bundle.device.array(x, order=order_of(x)) for name, x in call.tensors.items()}
    name, shape, dtype = call.out
    result = into_poison(
        bundle, shape, dtype, lambda out: getattr(bundle, call.op)(**placed, **call.scalars, **{name: out})
    )
    call.tolerance.check(result, *call.expected())


def order_of(x: np.ndarray) -> tuple[int, ...]:
    """Return the dims of an array, the outermost in memory first."""
    return tuple(sorted(range(x.ndim), key=lambda dim: -x.strides[dim]))


def taken(call: Call) -> bool:
    """Tell whether a contract has the arguments of a call, and takes their dims and dtypes."""
    op = known()[call.op]
    extents = (("HEAD_DIM", "q"), ("HEAD_DIM_V", "v"), ("head_dim_v", "v"))
    return (
        call.tensors.keys() | call.scalars.keys() <= op.tensors.keys() | op.scalars.keys()
        and all(len(op.tensors[name].shape) == x.ndim for name, x in call.tensors.items())
        and all(str(x.dtype) in dtypes_of(op, op.tensors[name].dtype) for name, x in call.tensors.items())
        and all(largest(op, axis) >= call.tensors[name].shape[-1]
                for axis, name in extents if largest(op, axis) and name in call.tensors)
        and dims_agree(op, call)
    )  # fmt: skip


def dims_agree(op: OpSpec, call: Call) -> bool:
    """Tell whether each dim that a contract names has one extent in all tensors of a call."""
    found: dict[str, set[int]] = {}
    for name, x in call.tensors.items():
        for dim, extent in zip(op.tensors[name].shape, x.shape, strict=True):
            found.setdefault(str(dim), set()).add(extent)
    return all(len(extents) == 1 for dim, extents in found.items() if "|" not in dim)


def dtypes_of(op: OpSpec, dtype: str) -> list[str]:
    return op.dtypes.get(dtype, dtype.split("|"))


@pytest.mark.parametrize("suite", sorted(functions()), ids=lambda suite: suite.replace(" ", "_"))
def test_rules_agree_with_calls(suite: str):
    """The contract has the arguments of a combination's call if its requests are met, and only then."""
    rng = np.random.default_rng(SEED)
    for function in functions()[suite]:
        make = maker(function)
        assert make is not None
        seen: set[tuple[str, ...]] = set()
        for _ in range(10 * ATTEMPTS):
            values = draw(function, rng)
            requests = function.requests(values)
            missing = [request for request in requests if RULES[request].verdict(known()) is not Verdict.DIRECT]
            if requests in seen:
                continue
            try:
                call = make(Draw(function, values, 3e7, FNUZ, rng))
            except TooLargeError:
                continue
            seen.add(requests)
            if any((needs := RULES[request].needs) is None or needs.op != call.op for request in missing):
                continue  # which the arguments of the op do not show
            assert taken(call) == (not missing), (function.name, values, requests, call.scalars, list(call.tensors))


WRONG = {
    "attention: rotation": ("flashinfer", "flash_attention_varlen"),
}
"""Requests for arguments that no op has, with a suite that makes them, and an op whose contract does not show them."""


@pytest.mark.parametrize("request_, suite, op", [(name, *where) for name, where in WRONG.items()])
def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch, request_: str, suite: str, op: str):
    monkeypatch.setitem(RULES, request_, Rule(Needs(op, "q")))
    with pytest.raises(AssertionError):
        test_rules_agree_with_calls(suite)


def test_every_maker_has_a_function():
    made = {(function.suite, maker(function)) for found in read_suites().values() for function in found}
    assert {(suite, make) for (suite, _), make in CALLS.items()} <= made
