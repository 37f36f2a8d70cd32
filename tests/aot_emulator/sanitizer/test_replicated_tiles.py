"""Tiles with fewer elements than a workgroup has lanes, which several wavefronts load and one stores."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot_emulator import Options, Order
from aot_emulator.errors import SanitizerError
from tests.support.emulation.assembled import ORDERS
from tests.support.emulation.launching import run


def double_and_add(size: int, options: Options) -> dict[str, np.ndarray]:
    """Double ones [size] in place by four wavefronts of 64 lanes, then add their sum to 256 zeros."""
    arrays = {"x": np.ones(size, np.float32), "y": np.zeros(256, np.float32)}
    return run("double_and_add", (1,), arrays, {"num_warps": 4}, options, BLOCK=size, WIDE=256)[0]


@ORDERS
def test_a_replicated_tile_that_is_stored_where_it_was_loaded(order: Order):
    with pytest.raises(SanitizerError, match=r"_(store|load)_dword .* by .*wavefront") as caught:
        double_and_add(64, Options(strict=True, order=order))
    assert caught.value.kind == "race"


def test_the_race_changes_results():
    """Wavefronts that load after the first one has stored take doubled numbers for the sum."""
    after = double_and_add(64, Options(order=Order.SERIAL, ignored=frozenset({"race"})))
    assert (after["x"] == 2).all() and (after["y"][:64] == 64).all() and (after["y"][64:] == 128).all()


@ORDERS
def test_a_tile_with_an_element_for_each_lane_does_not_race(order: Order):
    after = double_and_add(256, Options(strict=True, order=order))
    assert (after["x"] == 2).all() and (after["y"] == 256).all()
