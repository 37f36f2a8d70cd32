"""What is in a bundle, as text that fits a terminal, or as data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.expressions import nearest
from aot_runtime.contract.names import axis_names
from aot_runtime.contract.records import INDEX, Index, Op, Value, Variant, spelled
from aot_runtime.errors import ArgumentError, BundleError
from aot_runtime.texts import ID_LENGTH, aligned_rows, axis_values_text, size_text

WIDTH = 120
"""Columns that a table takes at most."""


@dataclass(frozen=True)
class VariantRow:
    """What `show` tells of a variant. Registers are per lane (SGPRs per wave); sizes in bytes.

    Spills are None where the code object does not record them (cubins).
    """

    op: str
    launch: int
    kernel: str
    axis_values: dict[str, Value]
    aligned: bool
    config: str
    settings: dict[str, Value]
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int | None
    sgpr_spills: int | None
    scratch_bytes: int
    lds_bytes: int
    block_threads: int
    waves_per_simd: float
    occupancy_limit: str
    code_bytes: int
    symbol: str
    file: str

    @property
    def spills(self) -> bool:
        return bool(self.vgpr_spills or self.sgpr_spills)


def find_bundles(paths: Iterable[Path]) -> list[Path]:
    """The bundles that paths name: each is a bundle's folder, or a folder of bundles. Raises `BundleError`."""
    found: list[Path] = []
    for path in paths:
        inside = [path] if os.path.lexists(path / INDEX) else sorted(index.parent for index in path.glob(f"*/{INDEX}"))
        if not inside:
            raise BundleError(f"{path} is no bundle, and has none in it" if path.exists() else f"{path} does not exist")
        found += inside
    return list(dict.fromkeys(found))


def list_bundles(folders: Iterable[Path]) -> tuple[str, list[str]]:
    """(a table of bundles and their ops, the faults of those that cannot be read)."""
    rows: list[Sequence[str]] = [("BUNDLE", "ARCH", "VARIANTS", "CODE OBJECTS", "SIZE", "ID")]
    faults = []
    for folder in folders:
        try:
            rows += _bundle_lines(folder, read_index(folder))
        except BundleError as error:
            rows.append((str(folder), "unreadable", "", "", "", ""))
            faults.append(str(error))
    return "\n".join(aligned_rows(rows, right=(2, 3, 4))), faults


def _bundle_lines(folder: Path, index: Index) -> Iterator[Sequence[str]]:
    yield str(folder), index.target.arch, *_counts(index, index.variants), index.id[:ID_LENGTH]
    for op in index.ops:
        mine = [variant for variant in index.variants if variant.op == op.name]
        yield f"  {op.name}", "", *_counts(index, mine), ""


def _counts(index: Index, variants: Sequence[Variant]) -> tuple[str, str, str]:
    codes = {variant.code for variant in variants}
    return str(len(variants)), str(len(codes)), size_text(sum(index.blobs[code].size for code in codes))


def variant_rows(index: Index, op_name: str | None = None) -> list[VariantRow]:
    """Every variant of a bundle, or of one op. Raises `ArgumentError` if there is no such op."""
    ops = {op.name: op for op in index.ops}
    if op_name is not None and op_name not in ops:
        raise ArgumentError(f"bundle '{index.name}' has no op '{op_name}'{nearest(op_name, tuple(ops))}")
    return [_row(index, ops[variant.op], variant) for variant in index.variants if op_name in (None, variant.op)]


def _row(index: Index, op: Op, variant: Variant) -> VariantRow:
    launch = op.launches[variant.launch]
    config = launch.configs[variant.config]
    used = variant.resources
    return VariantRow(
        op=op.name,
        launch=variant.launch,
        kernel=launch.kernel,
        axis_values={name: variant.axis_values[name] for name in axis_names(op)},
        aligned=variant.aligned,
        config=config.name or str(variant.config),
        settings={**config.values, **config.options},
        vgprs=used.vgprs,
        agprs=used.agprs,
        sgprs=used.sgprs,
        vgpr_spills=used.vgpr_spills,
        sgpr_spills=used.sgpr_spills,
        scratch_bytes=used.scratch_bytes,
        lds_bytes=variant.lds_bytes,
        block_threads=variant.num_warps * variant.warp_size,
        waves_per_simd=used.waves_per_simd,
        occupancy_limit=used.occupancy_limit,
        code_bytes=used.code_bytes,
        symbol=variant.symbol,
        file=index.blobs[variant.code].file,
    )


def bundle_data(index: Index, rows: Iterable[VariantRow]) -> dict[str, Any]:
    """A bundle and its variants as plain data, ready for JSON."""
    data = {
        "name": index.name,
        "id": index.id,
        "arch": index.target.arch,
        "backend": index.target.backend,
        "format": index.format,
        "toolchain": index.toolchain,
        "variants": [asdict(row) for row in rows],
        "selftest": list(index.selftest),
    }
    return msgspec.to_builtins(spelled(data))


def bundle_text(index: Index, rows: Sequence[VariantRow]) -> str:
    """A table of variants per launch, totals per op, and a warning for variants that spill."""
    compiler = index.toolchain.get("compiler", "unknown compiler")
    lines = [f"bundle {index.name} for {index.target.arch}, id {index.id[:ID_LENGTH]}, {compiler}"]
    for op in dict.fromkeys(row.op for row in rows):
        mine = [row for row in rows if row.op == op]
        for launch in sorted({row.launch for row in mine}):
            lines += ["", *_launch([row for row in mine if row.launch == launch])]
        sizes = {row.file: row.code_bytes for row in mine}
        lines.append(f"{op}: {len(mine)} variants, {len(sizes)} code objects, {size_text(sum(sizes.values()))} of code")
        cases = [case.name for case in index.selftest if case.op == op]
        lines += [f"{op}: selftest cases {', '.join(cases)}"] if cases else []
    return "\n".join([*lines, *_warnings(rows)])


_HEADINGS = ("VARIANT", "ALIGNED", "CONFIG", "VGPR", "AGPR", "SGPR", "SPILLS", "SCRATCH", "LDS", "THREADS", "WAVES",
             "CODE", "FILE")  # fmt: skip


def _launch(rows: Sequence[VariantRow]) -> Iterator[str]:
    symbols = ", ".join(dict.fromkeys(row.symbol for row in rows))
    yield f"{rows[0].op}, launch {rows[0].launch}: {symbols}"
    cells = [_HEADINGS, *(_cells(row) for row in rows)]
    yield from (f"  {line}" for line in aligned_rows(cells, right=range(3, 12), gap=1, width=WIDTH - 2))


def _cells(row: VariantRow) -> tuple[str, ...]:
    return (
        axis_values_text(row.axis_values), "yes" if row.aligned else "no", row.config, str(row.vgprs), str(row.agprs),
        str(row.sgprs), _spills(row), str(row.scratch_bytes),
        str(row.lds_bytes), str(row.block_threads), f"{row.waves_per_simd:g} {row.occupancy_limit}".rstrip(),
        str(row.code_bytes), Path(row.file).stem[:8],
    )  # fmt: skip


def _spills(row: VariantRow) -> str:
    """VGPRs and SGPRs that are spilled; a dash where the code object does not record it."""
    if row.vgpr_spills is None:
        return "-"
    return f"{row.vgpr_spills}+{row.sgpr_spills or 0}" if row.spills else "0"


def _warnings(rows: Sequence[VariantRow]) -> Iterator[str]:
    spilling = [row for row in rows if row.spills]
    if spilling:
        yield f"warning: {len(spilling)} of {len(rows)} variants spill registers:"
        for row in spilling:
            name = f"{row.op}[{axis_values_text(row.axis_values)}] {'aligned' if row.aligned else 'general'}"
            yield f"  {name}, {row.config}: {row.vgpr_spills or 0} VGPRs, {row.sgpr_spills or 0} SGPRs"
