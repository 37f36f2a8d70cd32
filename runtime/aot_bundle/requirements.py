"""Requirements on the code of a bundle's variants: expressions over registers, spills, loops and axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from aot_runtime.contract.arch import HIP
from aot_runtime.contract.expressions import Expression, parse
from aot_runtime.contract.names import axis_names
from aot_runtime.contract.partial_evaluation import evaluate
from aot_runtime.contract.records import Index, Op, Value, Variant
from aot_runtime.errors import BundleError
from aot_runtime.formats import axis_values_text, cut

from .isa import CodeFacts, code_facts, read_instructions

_OF_CODE: Mapping[str, type] = {"load_bits": float, "matrix": str, "loop_instructions": int}
_FIXED: Mapping[str, type] = {
    "op": str, "kernel": str, "config": str, "aligned": bool,
    "vgprs": int, "agprs": int, "sgprs": int, "spills": int, "vgpr_spills": int, "sgpr_spills": int,
    "scratch_bytes": int, "lds_bytes": int, "waves_per_simd": float, "code_bytes": int, **_OF_CODE,
}  # fmt: skip
"""Names available for every variant, with the types of their values. `isa` describes those of code."""


class Unmet(msgspec.Struct, frozen=True):
    """A requirement that a variant does not meet, with the values of its names."""

    variant: Variant
    requirement: str
    values: dict[str, Any]


class Code:
    """Cached facts about the code objects of a bundle. `image_of` returns a blob's bytes by key."""

    def __init__(self, index: Index, image_of: Callable[[str], bytes]):
        self._backend, self._image_of = index.target.backend, image_of
        self._facts: dict[tuple[str, str], CodeFacts] = {}

    def facts(self, variant: Variant) -> CodeFacts:
        """Return the facts of a variant's kernel. Raises `BundleError` and `DeviceError`, as `read_instructions`."""
        if self._backend != HIP.name:
            raise BundleError("reading the instructions of cubins is not supported")
        key = variant.code, variant.symbol
        if key not in self._facts:
            self._facts[key] = code_facts(read_instructions(self._image_of(variant.code), variant.symbol))
        return self._facts[key]


def parse_requirements(texts: Iterable[str], ops: Sequence[Op]) -> tuple[Expression, ...]:
    """Parse requirements on the variants of ops. Raises `ExpressionError` for a name that no op has."""
    names = {**_axis_types(ops), **_FIXED}
    found = tuple(map(parse, texts))
    for requirement in found:
        requirement.check_names(names)
    return found


def _axis_types(ops: Iterable[Op]) -> dict[str, type]:
    types: dict[str, type] = {}
    for op in ops:
        types |= dict.fromkeys(op.dtypes, str) | {axis.name: type(axis.values[0]) for axis in op.axes if axis.values}
    return types


def unmet_requirements(index: Index, requirements: Sequence[Expression], code: Code) -> Iterator[Unmet]:
    """Yield the variants that do not meet a requirement. Ops without an axis that it reads are exempt.

    Raises:
        BundleError: a requirement cannot be evaluated for a variant, or its instructions cannot be read.
    """
    ops = {op.name: op for op in index.ops}
    for variant in index.variants:
        known = {*_FIXED, *axis_names(ops[variant.op])}
        for requirement in requirements:
            if not requirement.names <= known:
                continue
            values = _values(ops[variant.op], variant)
            if requirement.names & _OF_CODE.keys():
                values |= _code_values(code.facts(variant))
            if not evaluate(requirement, values):
                yield Unmet(variant, requirement.text, {name: values[name] for name in sorted(requirement.names)})


def _values(op: Op, variant: Variant) -> dict[str, Value]:
    """Return the values of a variant's names. Spills are left out for a cubin, which does not record them."""
    launch, used = op.launches[variant.launch], variant.resources
    values: dict[str, Any] = {
        **variant.axis_values, "op": op.name, "kernel": launch.kernel, "aligned": variant.aligned,
        "config": launch.configs[variant.config].name or str(variant.config), "vgprs": used.vgprs, "agprs": used.agprs,
        "sgprs": used.sgprs, "scratch_bytes": used.scratch_bytes, "lds_bytes": variant.lds_bytes,
        "waves_per_simd": used.waves_per_simd, "code_bytes": used.code_bytes,
    }  # fmt: skip
    if used.vgpr_spills is not None:
        vector, scalar = used.vgpr_spills, used.sgpr_spills or 0
        values |= {"vgpr_spills": vector, "sgpr_spills": scalar, "spills": vector + scalar}
    return values


def _code_values(facts: CodeFacts) -> dict[str, Value]:
    load_bits = math.inf if facts.load_bits is None else facts.load_bits
    return {"load_bits": load_bits, "matrix": facts.matrix, "loop_instructions": facts.loop_instructions}


def unmet_lines(index: Index, unmet: Sequence[Unmet]) -> Iterator[str]:
    """List each unmet requirement with the variants that fail it, and the total of failing variants."""
    for requirement in dict.fromkeys(item.requirement for item in unmet):
        yield f"{requirement}: not met by"
        for item in unmet:
            if item.requirement == requirement:
                values = ", ".join(f"{name} = {value}" for name, value in item.values.items())
                yield f"  {variant_text(index, item.variant)}: {values}"
    failing = len({id(item.variant) for item in unmet})
    yield f"{failing} of {len(index.variants)} variants fail" if unmet else "every variant meets the requirements"


def variant_text(index: Index, variant: Variant) -> str:
    """Describe a variant."""
    op = next(op for op in index.ops if op.name == variant.op)
    launch = op.launches[variant.launch]
    config = launch.configs[variant.config].name or str(variant.config)
    kind = "aligned" if variant.aligned else "general"
    values = {name: variant.axis_values[name] for name in axis_names(op)}
    return cut(f"{variant.op}[{axis_values_text(values)}] {kind}, {launch.kernel} {config}")
