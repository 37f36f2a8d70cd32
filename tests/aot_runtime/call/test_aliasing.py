"""Written tensors of a call share no memory with other arguments, unless the contract allows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle, DeviceArray, open_bundle
from aot_runtime.call.aliasing import overlap_lines
from aot_runtime.call.launches import define
from aot_runtime.contract.layout import make_layout
from aot_runtime.contract.records import Dim, Index, Op, Tensor
from aot_runtime.contract.validate import structure_faults
from tests.support.hip_double.double import in_double
from tests.support.op_bundles import OpBundles
from tests.support.producers import Interface

X = np.random.default_rng(0).standard_normal((12, 64)).astype(np.float16)


@pytest.fixture(scope="module")
def rows(op_bundles: OpBundles) -> Bundle:
    return op_bundles.open("rows", "op=softmax|rms_norm|silu_mul,T=float16")


@pytest.fixture(params=("device", "numpy"))
def take(request: pytest.FixtureRequest, rows: Bundle) -> Callable[[np.ndarray], Any]:
    """Return a copy of a numpy array, on the device or not."""
    return rows.device.array if request.param == "device" else np.copy


def host(array: Any) -> np.ndarray:
    return array.numpy() if isinstance(array, DeviceArray) else array


def refused(first: str, second: str) -> Any:
    return pytest.raises(ArgumentError, match=f"arguments '{first}' and '{second}' may overlap in memory")


def test_windows_of_one_buffer_are_refused(rows: Bundle, take: Callable[[np.ndarray], Any]):
    big, apart = take(X), take(X)
    rows.softmax(big[:8], out=apart[4:])  # so that the plan is known to the next call
    with refused("out", "x"):
        rows.softmax(big[:8], out=big[4:])
    with refused("out", "x"):
        rows.softmax(big[:8], out=big[:8, ::-1][:, ::-1][::-1])
    assert np.array_equal(host(big), X)


def test_elements_decide_and_not_the_range_of_addresses(rows: Bundle, take: Callable[[np.ndarray], Any]):
    big = take(X)
    wanted = rows.softmax(X[::2])
    rows.softmax(big[::2], out=big[1::2])
    assert np.array_equal(host(big)[1::2], wanted) and np.array_equal(host(big)[::2], X[::2])


def test_in_place_is_what_the_contract_allows(rows: Bundle, take: Callable[[np.ndarray], Any]):
    wanted = rows.silu_mul(X, X[::-1])
    for position in (0, 1):
        given = [take(X), take(X[::-1].copy())]
        rows.silu_mul(*given, out=given[position])
        assert np.array_equal(host(given[position]), wanted)
    one = take(X)
    rows.softmax(one, out=one)
    assert np.array_equal(host(one), rows.softmax(X))


def test_what_is_read_and_written_overlaps_nothing(rows: Bundle, take: Callable[[np.ndarray], Any]):
    x, total, weight = take(X), take(X), take(X[0])
    with refused("residual", "x"):
        rows.rms_norm(x, weight, residual=x, eps=1e-6)
    with refused("residual", "out"):
        rows.rms_norm(x, weight, residual=total, eps=1e-6, out=total)
    with refused("residual", "weight"):
        rows.rms_norm(x, total[3], residual=total, eps=1e-6)
    rows.rms_norm(x, x[0], eps=1e-6)  # what is only read may overlap


def test_a_host_array_that_overlaps_itself(rows: Bundle):
    out = np.lib.stride_tricks.as_strided(np.zeros(64, np.float16), X.shape, (0, 2))
    with pytest.raises(ArgumentError, match="argument 'out' is written to, but may overlap itself"):
        rows.softmax(X, out=out)


def test_masked_arrays(rows: Bundle):
    with pytest.raises(ArgumentError, match="argument 'x' is a masked array"):
        rows.softmax(np.ma.masked_less(X, 0))


def foreign(array: DeviceArray) -> Interface:
    """Return another library's array over an array's memory."""
    return Interface(**array.__cuda_array_interface__)


@in_double()
def test_memory_of_other_libraries(rows_bundle: Path):
    rows = open_bundle(rows_bundle, "hip:0")
    device = rows.device
    big, apart = device.array(X), device.empty(X.shape, X.dtype)
    views = device.wrap(foreign(big[:8])), device.wrap(foreign(big[4:]))
    for source, target in (views, (views[0], big[4:]), (big[:8], views[1])):
        rows.softmax(source, out=apart[4:])
        with refused("out", "x"):
            rows.softmax(source, out=target)
    rows.softmax(device.wrap(foreign(big)), out=big)


def test_names_that_are_one_when_they_are_joined():
    """`out` and `q_scale`, `out_q` and `scale`: the bounds of each pair are kept apart."""

    def tensor(name: str, dim: str, role: str = "input") -> Tensor:
        return Tensor(name, (Dim(dim),), "float32", role)

    op = Op("f", (tensor("q_scale", "n"), tensor("scale", "m"), tensor("out", "n", "output"),
                  tensor("out_q", "m", "output")), (), ())  # fmt: skip
    extents = {"q_scale": 1000, "scale": 1, "out": 1000, "out_q": 1}
    layouts = {name: make_layout(("hip", 0), "float32", (n,), (1,), True, True, True) for name, n in extents.items()}
    namespace: dict[str, Any] = {}
    lines = overlap_lines(op, layouts, frozenset(layouts), namespace)
    examined: list[str] = []
    for name in [name for name in namespace if name.startswith("_require_apart_")]:
        namespace[name] = lambda *_, name=name: examined.append(name)
    check: Any = define("f", "\n".join([f"def f({', '.join(extents)}):", *lines, ""]), "<test>", namespace)
    base, far = 1 << 20, 1 << 16
    places = {"q_scale": base, "scale": base + far, "out": base + 2000, "out_q": base + 2 * far}
    check(**{name: SimpleNamespace(ptr=place, owner=object()) for name, place in places.items()})
    assert examined == ["_require_apart_out"]


@pytest.mark.parametrize(
    "tensor, other, text",
    [
        ("total", "total", "'total': it lists inputs that an output may be"),
        ("total", "none", "'none': it lists inputs that an output may be"),
        ("x", "x", "'x': it lists inputs that an output may be"),
        ("total", "x", "'x' has another dtype or number of dims than 'total'"),
    ],
)
def test_contracts_that_name_what_cannot_be_in_place(sample: Index, tensor: str, other: str, text: str):
    op = sample.ops[0]
    tensors = (msgspec.structs.replace(t, in_place=(other,) * (t.name == tensor)) for t in op.tensors)
    faults = structure_faults(msgspec.structs.replace(op, tensors=tuple(tensors)))
    assert [(fault.path, fault.text) for fault in faults] == [(("tensors", tensor, "in_place"), text)]
