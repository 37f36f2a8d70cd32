"""Values of index tensors, checked in host memory, and on the device if requested."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aot_runtime import ArgumentError, open_bundle

X, FACTORS = np.ones((6, 5), np.float32), np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("starts", "longest", "message"),
    [
        ([0, 4, 2, 6], None, "'starts' decreases at 2, from 4 to 2"),
        ([-1, 2, 2, 6], None, "'starts' begins with -1"),
        ([0, 2, 2, 7], None, "'starts' ends with 7, but tokens is 6"),
        ([0, 1, 5, 6], 3, "'starts' gives sequence 1 a length of 4, but longest is 3"),
    ],
)
def test_offsets(small_bundle: Path, starts: list[int], longest: int | None, message: str):
    small = open_bundle(small_bundle, "emulator")
    looking = open_bundle(small_bundle, "emulator", check_contents=True)
    on_device = small.device.array
    wrong, right = np.array(starts, np.int32), np.array([0, 2, 2, 4], np.int32)
    for bundle, x, offsets in ((small, X, wrong), (small, on_device(X), wrong), (looking, X, on_device(wrong))):
        for _ in range(2):  # the second call has a plan
            with pytest.raises(ArgumentError, match=message):
                bundle.scale_segments(x, offsets, FACTORS, longest=longest)
    for offsets in (right, on_device(right)):
        small.scale_segments(X, offsets, FACTORS, longest=longest)
    assert "*float32  0, as largest is absent\n" in small.explain("scale_segments", X, right, FACTORS)
    looking.scale_segments(X, on_device(right), FACTORS, longest=longest)
