"""What is in a kpack archive, as a table and as plain data."""

from __future__ import annotations

from typing import Any

from aot_runtime.bundle.kpack import Kpack
from aot_runtime.text_table import table_lines
from aot_runtime.texts import printable, size_text


def kpack_text(archive: Kpack, width: int) -> str:
    """A line about the archive, and a table of its names. In texts of others what cannot be printed is a space."""
    contents = archive.contents
    rows = [("NAME", "ARCH", "OBJECT", "SIZE", "STORED", "SYMBOL")]
    for name, arch, entry in archive.entries():
        stored = archive.places[entry.ordinal].size
        size = stored if entry.original_size is None else entry.original_size
        rows.append((_line(name), _line(arch), str(entry.ordinal), size_text(size), size_text(stored),
                     _line(entry.said.symbol)))  # fmt: skip
    archs = ", ".join(map(_line, contents.gfx_arches)) or "no architecture"
    total = size_text(sum(place.size for place in archive.places))
    about = (
        f"{_line(contents.group_name) or 'no group'}, {archs}: {len(rows) - 1} names, {len(archive.places)} code "
        f"objects, {total}, {contents.compression_scheme}"
    )
    return "\n".join([about, *table_lines(rows, right=(2, 3, 4), width=width)])


def _line(text: str) -> str:
    return printable(text).replace("\n", " ")


def kpack_data(archive: Kpack) -> dict[str, Any]:
    """The same as plain data, ready for JSON."""
    contents = archive.contents
    return {
        "path": str(archive.path),
        "group": contents.group_name,
        "arch_family": contents.gfx_arch_family,
        "archs": list(contents.gfx_arches),
        "scheme": contents.compression_scheme,
        "entries": [
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
        ],
    }
