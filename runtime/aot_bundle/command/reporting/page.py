"""Assemble the report page: one self-contained file that is safe with untrusted text.

A bundle's texts are untrusted. Jinja escapes everything in the template, except for parts made here: charts, written by
an XML library, the style sheet and the script. The page's Content-Security-Policy allows these two by hash, and nothing
else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from aot_bundle.command.comparing.bundles import Differences, OpDifference
from aot_bundle.command.comparing.text import (
    SECTIONS,
    change_row,
    figure_text,
    group_text,
    op_summary,
    shift_text,
    side_text,
)
from aot_bundle.command.listing import Listed
from aot_bundle.command.origin import origin_of
from aot_bundle.command.variants import VariantRow
from aot_bundle.isa import CodeFacts
from aot_bundle.trust.state import SignatureState
from aot_runtime.call.documentation import built_dtypes, bundle_title, call_signature, docstring, summary
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.names import axis_names
from aot_runtime.contract.peaks import PEAKS
from aot_runtime.contract.records import Index, Op
from aot_runtime.formats import axis_values_text, size_text

from . import charts
from .given import Modelled, Profiled, ProfiledLaunch, Tested
from .spreads import Measure, measures

MOST_CHARTED = 12
"""Most profiled launches with a chart of instructions. Tables list all."""
MOST_CHANGED = 100
"""Most differing variants to list per op."""


@dataclass(frozen=True)
class Material:
    """The contents of a report. `code` is in the order of the rows, or None to leave it out."""

    index: Index
    listed: Listed
    rows: Sequence[VariantRow]
    signature: SignatureState
    code: Sequence[CodeFacts] | None = None
    tested: Tested | None = None
    profiled: Sequence[Profiled] = ()
    against: Differences | None = None
    modelled: Sequence[Modelled] = ()


def report_page(material: Material) -> str:
    """Return the page's text. It is reproducible."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies.update({"json.dumps_kwargs": {"separators": (",", ":"), "allow_nan": False}})
    style, script = _own("page.css"), _own("page.js")
    launches = _labelled(material.profiled)
    return environment.from_string(_own("page.html")).render(
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'",
        style=Markup(style), script=Markup(script),
        title=bundle_title(material.index), index=material.index, listed=material.listed,
        ops=[_op(material.index, op) for op in material.index.ops],
        origin=origin_of(material.index), signature=material.signature,
        charts=[_chart(measure) for measure in measures(material.rows)],
        variants=variants_data(material.index, material.rows, material.code),
        spilling=sum(row.spills for row in material.rows),
        spills_recorded=any(row.vgpr_spills is not None for row in material.rows),
        tested=material.tested, modelled=material.modelled, launches=launches,
        roofline=_roofline(material.index, launches),
        differences=_differences(material.against),
        mixes=[_mix(label, op, launch) for label, op, launch in launches[:MOST_CHARTED]], size_text=size_text,
    )  # fmt: skip


def _differences(found: Differences | None) -> dict[str, Any] | None:
    """Return the differences from another bundle for the template, or None."""
    if found is None:
        return None
    sections = [(title.capitalize(), [*map(change_row, changes(found))]) for title, changes in SECTIONS]
    return {
        "old": side_text(found.old),
        "same": found.same,
        "sections": [section for section in sections if section[1]],
        "ops": [_op_difference(op) for op in found.ops],
        "figures": [*map(figure_text, found.figures)],
    }


def _op_difference(op: OpDifference) -> dict[str, Any]:
    groups = [f"new: {group_text(group)}" for group in op.added]
    groups += [f"gone: {group_text(group)}" for group in op.removed]
    changed = [(item.variant, "; ".join([*["other code"] * item.code, *map(str, item.changes)])) for item in op.changed]
    return {
        "op": op.op, "summary": op_summary(op), "contract": [*map(change_row, op.contract)],
        "groups": [*groups, *map(shift_text, op.shifts), *map(str, op.instructions)],
        "changed": changed[:MOST_CHANGED], "left_out": max(len(changed) - MOST_CHANGED, 0),
    }  # fmt: skip


def _own(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _op(index: Index, op: Op) -> dict[str, Any]:
    variants = [variant for variant in index.variants if variant.op == op.name]
    built: dict[str, dict[str, None]] = {name: {} for name in axis_names(op)}
    for variant in variants:
        for name, values in built.items():
            values[str(variant.axis_values[name])] = None
    rules = {axis.name: axis.pick if axis.rule == "equal" else f"{axis.rule} {axis.pick}" for axis in op.axes}
    return {
        "name": op.name,
        "summary": summary(op),
        "signature": f"{op.name}{call_signature(op)}",
        "contract": docstring(op, built_dtypes(op, variants)),
        "variants": len(variants),
        "axes": [(name, ", ".join(built[name]), rules.get(name, "the dtype of its tensors")) for name in built],
        "launches": op.launches,
        "denied": [item for item in op.denied if item.reason],
    }


def variants_data(index: Index, rows: Iterable[VariantRow], code: Sequence[CodeFacts] | None) -> dict[str, Any]:
    """Return the data of the script's table: axes of each op, columns (heading, is numeric), and variants as lists."""
    columns = [(title, number) for title, number, _ in _COLUMNS]
    items = [[value(row) for _, _, value in _COLUMNS] for row in rows]
    if code is not None:
        columns += [("Loop", True), ("Load bits", True), ("Matrix", False)]
        for item, facts in zip(items, code, strict=True):
            item += [facts.loop_instructions, facts.load_bits, facts.matrix]
    return {
        "axes": {op.name: axis_names(op) for op in index.ops},
        "columns": columns,
        "points": [[str(value) for value in row.axis_values.values()] for row in rows],
        "rows": items,
    }


_COLUMNS: tuple[tuple[str, bool, Any], ...] = (
    ("Op", False, lambda row: row.op),
    ("Variant", False, lambda row: axis_values_text(row.axis_values)),
    ("Aligned", False, lambda row: "aligned" if row.aligned else "general"),
    ("Config", False, lambda row: row.config),
    ("VGPRs", True, lambda row: row.vgprs),
    ("AGPRs", True, lambda row: row.agprs),
    ("SGPRs", True, lambda row: row.sgprs),
    ("Spills", True, lambda row: None if row.vgpr_spills is None else row.vgpr_spills + (row.sgpr_spills or 0)),
    ("Scratch", True, lambda row: row.scratch_bytes),
    ("LDS", True, lambda row: row.lds_bytes),
    ("Threads", True, lambda row: row.block_threads),
    ("Waves", True, lambda row: row.waves_per_simd),
    ("Limit", False, lambda row: row.occupancy_limit),
    ("Code", True, lambda row: row.code_bytes),
    ("Kernel", False, lambda row: row.symbol),
    ("File", False, lambda row: row.file),
)
"""(heading, True if numeric, function that returns a variant's value, or None if not recorded)."""


def _chart(measure: Measure) -> dict[str, Any]:
    drawn = Markup("") if measure.nothing else Markup(charts.spread_chart(measure))
    return {"measure": measure, "drawn": drawn}


Labelled = tuple[str, str, ProfiledLaunch]
"""(number on the page, op, launch)."""


def _labelled(profiled: Iterable[Profiled]) -> list[Labelled]:
    launches = [(call.op, launch) for call in profiled for launch in call.launches]
    return [(str(number), op, launch) for number, (op, launch) in enumerate(launches, 1)]


def _roofline(index: Index, launches: Iterable[Labelled]) -> dict[str, Any] | None:
    """Draw the roofline; None if the architecture is not emulated, or if no launch has matrix operations."""
    arch = ARCHITECTURES.get(index.target.arch)
    inside = [(label, launch) for label, _, launch in launches if launch.in_roofline]
    if arch is None or arch.product is None or not inside:
        return None
    product = arch.product
    drawn = charts.roofline_chart(inside, PEAKS[arch.name], product.num_cus, f"Roofline of the {product.title}")
    return {"product": product.title, "drawn": Markup(drawn)}


def _mix(label: str, op: str, launch: ProfiledLaunch) -> dict[str, Any]:
    title = f"Instruction mix of launch {label}"
    drawn = charts.mix_chart(launch, f"mix{label}-", title)
    return {"label": label, "op": op, "launch": launch, "drawn": Markup(drawn)}
