"""Look up architectures by the names of GPUs, and the usual size of a GPU of an architecture."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .arch import ARCHITECTURES

GPU_NAMES: Mapping[str, str] = {gpu: row.name for row in ARCHITECTURES.values() for gpu in row.gpus.split()}
"""Name of a GPU → its architecture."""


def arch_of(name: str) -> str:
    """Return the architecture of a GPU (`MI300X`, `RX 7900 XTX`); any other name unchanged."""
    gpu = re.sub(r"[^a-z0-9]|amd|nvidia|instinct|radeon|geforce", "", name.lower())
    return GPU_NAMES.get(gpu, name)


def usual_cus(arch: str) -> int | None:
    """Return the compute units of the architecture's product, else of a large GPU; None if unknown."""
    row = ARCHITECTURES[arch]
    return row.product.num_cus if row.product else row.num_cus
