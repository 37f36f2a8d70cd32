"""Data on each variant, for `show`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from aot_runtime.contract.expressions import nearest
from aot_runtime.contract.index_encoding import spelled
from aot_runtime.contract.names import axis_names
from aot_runtime.contract.provenance import decode_provenance
from aot_runtime.contract.records import Index, Op, Value, Variant
from aot_runtime.errors import ArgumentError


@dataclass(frozen=True)
class VariantRow:
    """Resources of a variant. Registers are per lane (SGPRs per wave); sizes are in bytes.

    Spills are None if the code object does not record them (cubins).
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


def only(index: Index, op_name: str | None) -> Index:
    """Restrict a bundle to one op, or return it unchanged if `op` is None. Raises `ArgumentError`."""
    if op_name is None:
        return index
    names = tuple(op.name for op in index.ops)
    if op_name not in names:
        raise ArgumentError(f"bundle '{index.name}' has no op '{op_name}'{nearest(op_name, names)}")
    ops = tuple(op for op in index.ops if op.name == op_name)
    variants = tuple(variant for variant in index.variants if variant.op == op_name)
    return msgspec.structs.replace(index, ops=ops, variants=variants)


def variant_rows(index: Index) -> list[VariantRow]:
    """Return the resources of all variants."""
    ops = {op.name: op for op in index.ops}
    return [_row(index, ops[variant.op], variant) for variant in index.variants]


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
    """Return a bundle as data for `write_json`, with variants as an iterator."""
    return {
        "name": index.name,
        "id": index.id,
        "arch": index.target.arch,
        "backend": index.target.backend,
        "format": index.format,
        "toolchain": index.toolchain,
        "provenance": _plain(decode_provenance(index)),
        "variants": (_plain(asdict(row)) for row in rows),
        "selftest": _plain(index.selftest),
    }


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(spelled(value))
