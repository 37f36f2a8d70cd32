"""The files of a bundle for C and C++ programs."""

from __future__ import annotations

from aot_runtime.contract import records

from .api import header_text
from .packaging import cmake_text, pkg_config_text
from .source import source_text
from .variants import variants_text


def c_files(index: records.Index) -> dict[str, bytes]:
    """Return path in the bundle's folder → content.

    Args:
        index: with its `id` filled in, which each file repeats.
    """
    name = index.name
    texts = {
        f"include/{name}.h": header_text(index),
        f"include/{name}_variants.h": variants_text(index),
        f"src/{name}.c": source_text(index),
        f"lib/cmake/{name}/{name}Config.cmake": cmake_text(index),
        f"lib/pkgconfig/{name}.pc": pkg_config_text(index),
    }
    return {file: text.encode() for file, text in texts.items()}
