"""List a kpack archive as a table or as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aot_bundle.kpack import Kpack
from aot_bundle.text_table import table_lines
from aot_runtime.formats import size_text


def kpack_lines(archive: Kpack, width: int) -> Iterator[str]:
    """Format a line about the archive and a table of its names."""
    contents = archive.contents
    rows = [("NAME", "ARCH", "OBJECT", "SIZE", "STORED", "SYMBOL")]
    for name, arch, entry in archive.entries():
        stored = archive.places[entry.ordinal].size
        size = stored if entry.original_size is None else entry.original_size
        rows.append((name, arch, str(entry.ordinal), size_text(size), size_text(stored),
                     entry.said.symbol))  # fmt: skip
    archs = ", ".join(contents.gfx_arches) or "no architecture"
    total = size_text(sum(place.size for place in archive.places))
    yield (
        f"{contents.group_name or 'no group'}, {archs}: {len(rows) - 1} names, {len(archive.places)} code "
        f"objects, {total}, {contents.compression_scheme}"
    )
    yield from table_lines(rows, right=(2, 3, 4), width=width)


def kpack_data(archive: Kpack) -> dict[str, Any]:
    """Return the contents as data for `write_json`, with entries as an iterator."""
    contents = archive.contents
    return {
        "path": str(archive.path),
        "group": contents.group_name,
        "arch_family": contents.gfx_arch_family,
        "archs": list(contents.gfx_arches),
        "scheme": contents.compression_scheme,
        "entries": (
            {
                "name": name,
                "arch": arch,
                "object": entry.ordinal,
                "bytes": entry.original_size,
                "stored_bytes": archive.places[entry.ordinal].size,
                "symbol": entry.said.symbol,
                "sha256": entry.said.sha256,
            }
            for name, arch, entry in archive.entries()
        ),
    }
