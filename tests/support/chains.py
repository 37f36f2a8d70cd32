"""Chains of calls for kernels that begin before earlier launches have ended.

Each call reads what the one before has just written. The result must be the same as with a wait after each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aot_runtime import DeviceArray

Layer = Callable[[DeviceArray], DeviceArray]
"""A call whose result is as its argument is; it may be of several ops, and enqueues on the chain's stream."""


def assert_links_wait(first: DeviceArray, layers: Sequence[Layer], stream: Any, times: int = 8) -> None:
    """Assert that all chains of the layers, `times` one after the other, give the same bits."""

    def run(between: Callable[[], None]) -> np.ndarray:
        x = first
        for layer in layers * times:
            x = layer(x)
            between()
        stream.synchronize()
        return x.numpy().view(np.uint16)

    apart = run(stream.synchronize)
    assert np.unique(apart).size > 100, "the layers pass something on"
    for _ in range(5):
        assert np.array_equal(run(lambda: None), apart)
