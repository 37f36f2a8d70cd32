"""Facts about the code of a bundle's variants, and their unmet requirements, as text or data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from aot_bundle.isa import CodeFacts
from aot_bundle.requirements import Code, Unmet, variant_text
from aot_bundle.text_table import table_lines
from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.reading import read_blob
from aot_runtime.contract.index_encoding import spelled
from aot_runtime.contract.records import Index
from aot_runtime.formats import axis_values_text
from aot_runtime.texts import ID_LENGTH

from .variants import VariantRow, variant_rows


@dataclass(frozen=True)
class CodeRow:
    """A variant's row in the output of `isa`."""

    variant: VariantRow
    code: CodeFacts


def bundle_code(folder: Path, index: Index) -> Code:
    """Return the code of a bundle in a folder or archive."""
    source = source_of(folder)
    return Code(index, lambda key: read_blob(source, index.blobs[key], index.target.arch))


def code_rows(index: Index, code: Code) -> list[CodeRow]:
    """Return the rows of all variants. Raises `BundleError` and `DeviceError` if code cannot be read."""
    rows = zip(variant_rows(index), index.variants, strict=True)
    return [CodeRow(row, code.facts(variant)) for row, variant in rows]


def code_data(rows: Iterable[CodeRow]) -> Iterator[Any]:
    """Yield variants as data for `write_json`."""
    for row in rows:
        yield msgspec.to_builtins(spelled({**asdict(row.variant), **msgspec.structs.asdict(row.code)}))


_HEADINGS = ("VARIANT", "ALIGNED", "CONFIG", "SPILLS", "SCRATCH", "LDS", "LOOP", "LOADS", "MATRIX")


def code_lines(index: Index, rows: Sequence[CodeRow], width: int) -> Iterator[str]:
    """Format a table of variants for each op."""
    yield f"bundle {index.name} for {index.target.arch}, id {index.id[:ID_LENGTH]}"
    for op in dict.fromkeys(row.variant.op for row in rows):
        cells = [_HEADINGS, *(_cells(row) for row in rows if row.variant.op == op)]
        yield from ("", f"{op}:")
        yield from (f"  {line}" for line in table_lines(cells, range(3, 8), width - 2, 1, (0, 8)))


def _cells(row: CodeRow) -> tuple[str, ...]:
    variant, code = row.variant, row.code
    return (
        axis_values_text(variant.axis_values), "yes" if variant.aligned else "no", variant.config,
        str((variant.vgpr_spills or 0) + (variant.sgpr_spills or 0)), str(variant.scratch_bytes),
        str(variant.lds_bytes), str(code.loop_instructions), str(code.load_bits or "-"), code.matrix or "-",
    )  # fmt: skip


def unmet_data(index: Index, unmet: Iterable[Unmet]) -> Iterator[Any]:
    """Yield unmet requirements as data for `write_json`."""
    for item in unmet:
        yield {
            "requirement": item.requirement,
            "variant": variant_text(index, item.variant),
            "file": index.blobs[item.variant.code].file,
            "values": msgspec.to_builtins(spelled(item.values)),
        }
