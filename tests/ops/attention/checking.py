"""Runs calls of the attention ops and holds what they give against the references."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot_runtime import Bundle, DeviceArray
from kernels.tolerance import assert_close
from tests.ops.attention.cases import Call, Placed, expected

FLOORS = {"out": 1e-6, "lse": 1e-5}


def check(bundle: Bundle, call: Call) -> None:
    """Run a call; raise AssertionError where a result is wrong, or anything beside it was written to."""
    wholes = {id(item.whole): bundle.device.array(item.whole) for item in _placed(call)}

    def on_device(item: Placed | np.ndarray) -> DeviceArray | np.ndarray:
        return item.place(wholes[id(item.whole)]) if isinstance(item, Placed) else item

    arguments: dict[str, Any] = {name: on_device(item) for name, item in (call.inputs | call.outputs).items()}
    result = getattr(bundle, call.op)(**arguments, **call.scalars)
    assert all(given is arguments[name] for name, given in zip(call.outputs, _as_tuple(result), strict=True))
    for name, exact, same_dtype in zip(("out", "lse"), *expected(call), strict=True):
        if name in call.outputs:
            item = call.outputs[name]
            whole = wholes[id(item.whole)].numpy()
            assert_close(item.place(whole), exact, same_dtype, FLOORS[name], name)
            assert item.is_alone(whole), f"written beside {name}"


def _placed(call: Call) -> list[Placed]:
    return [item for item in (*call.inputs.values(), *call.outputs.values()) if isinstance(item, Placed)]


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)
