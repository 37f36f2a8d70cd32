"""Format a bundle's contents for a terminal: ranges by op and config, or every variant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aot_bundle.text_table import table_lines
from aot_runtime.call.documentation import bundle_title
from aot_runtime.contract.records import Index
from aot_runtime.formats import axis_values_text, cut, size_text
from aot_runtime.texts import ID_LENGTH

from .variants import VariantRow


def head_text(index: Index) -> str:
    """Describe the bundle and its compiler."""
    compiler = index.toolchain.get("compiler", "unknown compiler")
    return f"bundle {bundle_title(index)}, id {index.id[:ID_LENGTH]}, {compiler}"


def summary_lines(index: Index, rows: Sequence[VariantRow], width: int) -> Iterator[str]:
    """Format the number of variants and ranges of their resources, by op and config."""
    cells: list[Sequence[str]] = [("OP, CONFIG", "VARIANTS", "VGPR", "SGPR", "SPILLS", "LDS", "WAVES", "CODE")]
    levels = (lambda row: row.op, lambda row: row.symbol, lambda row: row.config)
    for depth, (name, group) in _nested(rows, levels):
        cells.append((f"{'  ' * depth}{name}", *_ranges(group)))
    yield ""
    yield from table_lines(cells, range(1, 8), width, gap=1)
    yield ""
    for mine in _by(rows, lambda row: row.op):
        yield from _totals(index, mine)
    spilling = sum(row.spills for row in rows)
    if spilling:
        yield f"warning: {spilling} of {len(rows)} variants spill registers; --variants shows which"


def _by(rows: Sequence[VariantRow], key: Callable[[VariantRow], object]) -> list[list[VariantRow]]:
    groups: dict[object, list[VariantRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def _nested(
    rows: Sequence[VariantRow], levels: Sequence[Callable[[VariantRow], str]], depth: int = 0
) -> Iterator[tuple[int, tuple[str, list[VariantRow]]]]:
    """Yield (depth, (name, rows)) of nested groups. A group that equals its parent is left out."""
    if not levels:
        return
    name_of, *inner = levels
    groups = _by(rows, name_of)
    shown = depth == 0 or len(groups) > 1
    for group in groups:
        if shown:
            yield depth, (name_of(group[0]), group)
        yield from _nested(group, inner, depth + shown)


def _ranges(rows: Sequence[VariantRow]) -> tuple[str, ...]:
    spills = [row.vgpr_spills for row in rows if row.vgpr_spills is not None]
    scalar_spills = [row.sgpr_spills or 0 for row in rows]
    spilled = f"{_range(spills, str)}+{_range(scalar_spills, str)}" if any(scalar_spills) else _range(spills, str)
    return (
        str(len(rows)),
        _range([row.vgprs for row in rows], str),
        _range([row.sgprs for row in rows], str),
        spilled if spills else "-",
        _range([row.lds_bytes for row in rows], size_text),
        _range([row.waves_per_simd for row in rows], "{:g}".format),
        _range([row.code_bytes for row in rows], size_text),
    )


def _range(numbers: Sequence[float], text: Callable[[int], str]) -> str:
    if not numbers:
        return ""
    low, high = text(min(numbers)), text(max(numbers))  # type: ignore[arg-type]
    if low == high:
        return low
    unit = low.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}') if unit and high.endswith(f' {unit}') else low}-{high}"


def _totals(index: Index, rows: Sequence[VariantRow]) -> Iterator[str]:
    op, sizes = rows[0].op, {row.file: row.code_bytes for row in rows}
    yield f"{op}: {len(rows)} variants, {len(sizes)} code objects, {size_text(sum(sizes.values()))} of code"
    if cases := [case.name for case in index.selftest if case.op == op]:
        yield f"{op}: selftest cases {', '.join(cases)}"


# Every variant

_COLUMNS: tuple[tuple[str, bool, Callable[[VariantRow], str]], ...] = (
    ("VARIANT", True, lambda row: axis_values_text(row.axis_values)),
    ("ALIGNED", True, lambda row: "yes" if row.aligned else "no"),
    ("CONFIG", True, lambda row: row.config),
    ("VGPR", True, lambda row: str(row.vgprs)),
    ("AGPR", False, lambda row: str(row.agprs)),
    ("SGPR", False, lambda row: str(row.sgprs)),
    ("SPILLS", True, lambda row: _spills(row)),
    ("SCRATCH", False, lambda row: str(row.scratch_bytes)),
    ("LDS", True, lambda row: str(row.lds_bytes)),
    ("THREADS", False, lambda row: str(row.block_threads)),
    ("WAVES", False, lambda row: f"{row.waves_per_simd:g} {row.occupancy_limit}".rstrip()),
    ("CODE", True, lambda row: str(row.code_bytes)),
    ("FILE", False, lambda row: Path(row.file).stem[:8]),
)
"""(heading, shown on narrow terminals, function that formats the cell)."""
_WIDE = 110
"""Least width of a terminal that shows all columns."""


def variants_lines(index: Index, rows: Sequence[VariantRow], width: int) -> Iterator[str]:
    """Format a table of variants per launch, totals per op, and a warning for variants that spill."""
    for mine in _by(rows, lambda row: row.op):
        for group in _by(mine, lambda row: row.launch):
            yield ""
            yield from _launch(group, width)
        yield from _totals(index, mine)
    yield from _warnings(rows)


def _launch(rows: Sequence[VariantRow], width: int) -> Iterator[str]:
    symbols = ", ".join(dict.fromkeys(row.symbol for row in rows))
    yield f"{rows[0].op}, launch {rows[0].launch}: {symbols}"
    columns = [column for column in _COLUMNS if column[1] or width >= _WIDE]
    cells = [[title for title, *_ in columns], *([text(row) for *_, text in columns] for row in rows)]
    numbers = [at for at, (title, *_) in enumerate(columns) if title not in ("VARIANT", "ALIGNED", "CONFIG", "FILE")]
    yield from (f"  {line}" for line in table_lines(cells, numbers, width - 2, gap=1))


def _spills(row: VariantRow) -> str:
    """Format spilled VGPRs and SGPRs; a dash if the code object does not record them."""
    if row.vgpr_spills is None:
        return "-"
    return f"{row.vgpr_spills}+{row.sgpr_spills or 0}" if row.spills else "0"


def _warnings(rows: Sequence[VariantRow]) -> Iterator[str]:
    spilling = [row for row in rows if row.spills]
    if spilling:
        yield f"warning: {len(spilling)} of {len(rows)} variants spill registers:"
        for row in spilling:
            name = f"{row.op}[{axis_values_text(row.axis_values)}] {'aligned' if row.aligned else 'general'}"
            yield f"  {cut(f'{name}, {row.config}')}: {row.vgpr_spills or 0} VGPRs, {row.sgpr_spills or 0} SGPRs"
