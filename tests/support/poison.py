"""Arrays on a device with poison around them: what reads past their ends gives itself away."""

from __future__ import annotations

import numpy as np

from aot_runtime import Bundle, DeviceArray


def poisoned(bundle: Bundle, host: np.ndarray) -> DeviceArray:
    """`host` on the device with NaN, or 127, around it, and a view of it."""
    fill = 127 if host.dtype.kind in "iu" else np.nan
    whole = np.full([extent + 4 for extent in host.shape[:-1]] + [host.shape[-1] + 16], fill, host.dtype)
    inner = (*(slice(2, -2) for _ in host.shape[:-1]), slice(0, host.shape[-1]))
    whole[inner] = host
    return bundle.device.array(whole)[inner]
