"""Whether a compiled kernel takes the tensor maps that its signature makes the runtime make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aot_runtime.contract.tensor_maps import SWIZZLES

from .descriptors import is_map, map_box


def map_faults(signature: Sequence[tuple[str, str]], described: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each difference.

    Args:
        described: the compiler's `tensordesc_meta`, of each descriptor in order.
    """
    maps = [(name, *map_box(type_name)) for name, type_name in signature if is_map(type_name)]
    if len(maps) != len(described):
        yield f"it takes {len(described)} tensor maps, not {len(maps)}"
        return
    for (name, layout, box), found in zip(maps, described, strict=True):
        asked = {
            "boxes": (tuple(found["block_size"]), box),
            "swizzle": (SWIZZLES[found["swizzle"]], layout.swizzle),
            "bytes an element": (found["elem_size"], layout.bits // 8),
            "padding of fp4": (found["fp4_padded"], False),
            "images to columns": (found["is_im2col"], False),
        }
        for what, (actual, expected) in asked.items():
            if actual != expected:
                yield f"the tensor map '{name}' has {what} {actual}, not {expected}"
