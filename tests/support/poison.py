"""Arrays on a device surrounded by poison, which exposes reads and writes past their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot_runtime import Bundle, DeviceArray


def poisoned(bundle: Bundle, host: np.ndarray, margin: int = 16) -> DeviceArray:
    """Return a view with `host` on the device, in NaN, 127 or True.

    margin: elements behind each row; a multiple of 16 keeps rows aligned.
    """
    fill = 127 if host.dtype.kind in "iu" else np.nan
    whole = np.full([extent + 4 for extent in host.shape[:-1]] + [host.shape[-1] + margin], fill, host.dtype)
    inner = (*(slice(2, -2) for _ in host.shape[:-1]), slice(0, host.shape[-1]))
    whole[inner] = host
    return bundle.device.array(whole)[inner]


def into_poison(
    bundle: Bundle, shape: tuple[int, ...], dtype: np.dtype, call: Callable[[DeviceArray], Any]
) -> np.ndarray:
    """Return the output of a call into an array filled with and surrounded by NaN or 77. Checks the surroundings."""
    poison = np.array(77 if dtype.kind in "iu" else np.nan, dtype)
    margin = [(8, 3)] * (len(shape) - 1) + [(16, 16)]  # the address is a multiple of 16 bytes, unless rows are of bytes
    before = np.full([n + low + high for n, (low, high) in zip(shape, margin, strict=True)], poison)
    inner = tuple(slice(low, low + n) for n, (low, _) in zip(shape, margin, strict=True))
    whole = bundle.device.array(before)
    call(whole[inner])
    after = whole.numpy()
    result = after[inner].copy()
    after[inner] = poison
    assert np.array_equal(after.view(np.uint8), before.view(np.uint8)), "written outside"
    return result
