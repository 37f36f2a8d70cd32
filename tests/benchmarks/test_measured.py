"""Choice of peers on a GPU, with graphs and times that stand in for a device's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aot_bundle.callspec import CallSpec
from benchmarks.families.family import Asked, Call, Drawn, Family, Part, Peaks, Tensors, Ways
from tests.support.session_builds import ROOT

PEAKS = Peaks(bandwidth=1e12, flops=1e15)


def call(m: int, op: str = "matmul") -> Call:
    """A call whose time at the peaks is m µs."""
    return Call(op, CallSpec(dims={"m": m}), flops=1e9 * m, nbytes=1.0)


DRAWN = Drawn("odd", call(3), call(4), padded=call(128))


def family(**changes: Any) -> Family:
    made = Family("products", Asked(1, 1, 1), ("matmul",), lambda rng, offer: DRAWN, "e", lambda call, where: Part({}))
    return replace(made, **changes)


def refusing(torch: Any, tensors: Tensors, call: Call) -> Ways:
    """A way of torch that takes multiples of 128 only."""

    def product() -> None:
        if call.spec.dims["m"] % 128:
            raise RuntimeError("mat1 has to be aligned")

    return {"torch": product}


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that measures `DRAWN` if a replay of each way takes so many seconds."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from benchmarks.families import measured

    def measure(family: Family, drawn: Drawn, seconds: Mapping[str, float]) -> Any:
        monkeypatch.setattr(
            measured, "device_times", lambda bundle, ways, rounds: {name: seconds[name] for name in ways}
        )
        return Untimed(torch=None, bundles=BUNDLES, rounds=1).measure(family, drawn)

    class Untimed(measured.Gpu):
        """Graphs of two calls each, of tensors that are not there."""

        peaks = PEAKS

        def _copies(self, call: Call, decision: Any) -> Sequence[Tensors]:
            return [{}, {}]

        def _our_graph(self, call: Call, copies: Any = None) -> Any:
            return lambda: None, 2

        def _copy(self, nbytes: float) -> Any:
            return lambda: None

    monkeypatch.setattr(measured, "plan", lambda bundle, call: None)
    monkeypatch.setattr(measured, "wrong", lambda *arguments: "")
    monkeypatch.setattr(measured, "peer_graph", lambda torch, calls: (lambda: None, len(calls)))
    return measure


OP = SimpleNamespace(planner=SimpleNamespace(op=None))
BUNDLES: Any = {"matmul": {"matmul": OP}}


def test_a_copy_is_the_peer_of_what_torch_lacks(measure: Any):
    found = measure(family(), DRAWN, {"ours": 4e-6, "copy": 2e-6})
    assert (found.ours, found.peer, found.peer_name) == (2e-6, 1e-6, "copy")


def test_operations_may_bound_a_copy(measure: Any):
    found = measure(family(rate=lambda peaks: peaks.flops), DRAWN, {"ours": 4e-6, "copy": 2e-6})
    assert (found.peer, found.peer_name) == (pytest.approx(3e-6), "peak")


def test_refused_products_are_scaled_from_the_next_multiples_of_128(measure: Any):
    found = measure(family(peers=refusing), DRAWN, {"ours": 4e-6, "torch, by 128": 256e-6})
    assert (found.peer, found.peer_name) == (pytest.approx(3e-6), "torch, by 128")


def test_our_own_padded_product_is_the_last_resort(measure: Any):
    found = measure(family(peers=lambda torch, tensors, call: {}), DRAWN, {"ours": 4e-6, "ours, by 128": 512e-6})
    assert (found.peer, found.peer_name) == (pytest.approx(6e-6), "ours, by 128")


def test_torch_is_not_scaled_where_it_takes_the_call(measure: Any):
    drawn = replace(DRAWN, call=call(128))
    found = measure(family(peers=refusing), drawn, {"ours": 4e-6, "torch": 8e-6})
    assert (found.peer, found.peer_name) == (4e-6, "torch")


def test_our_plain_call_is_the_peer_of_features(measure: Any):
    found = measure(family(), replace(DRAWN, plain=call(3)), {"ours": 4e-6, "ours, plain": 3e-6})
    assert (found.peer, found.peer_name) == (1.5e-6, "ours, plain")


def test_a_call_without_a_peer_is_still_timed(measure: Any, capsys: pytest.CaptureFixture[str]):
    found = measure(family(peers=refusing), replace(DRAWN, padded=None), {"ours": 4e-6})
    assert found.ours == 2e-6 and found.peer != found.peer
    assert "mat1 has to be aligned" in capsys.readouterr().out
