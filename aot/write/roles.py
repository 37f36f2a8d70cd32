"""Check that kernels use tensors as their roles in the manifest allow.

Only definite faults are reported (see `aot.compile.accesses`): a store through exactly one parameter, and an output
that no kernel of a call can write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from aot.compile.accesses import DESCRIBED, MAYBE, READ, UPDATE, WRITE
from aot.compile.jobs import CompiledKernel
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import PlannedBundle, PlannedVariant
from aot_runtime.contract import records
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import parse, query_name
from aot_runtime.contract.partial_evaluation import partial_value

Kernels = Mapping[str, CompiledKernel]
Kinds = frozenset[str]
"""The kinds of access that a kernel makes to a tensor."""


def check_roles(bundle: PlannedBundle, kernels: Kernels) -> None:
    """Check the tensors of all kernels.

    Args:
        kernels: key of a variant → its compiled kernel.

    Raises:
        ManifestError: a kernel accesses a tensor in a way that its role does not allow; lists all such tensors.
    """
    faults: dict[str, None] = {}
    manifests = {source.name: source.manifest for source in bundle.manifest.sources}
    for op in bundle.ops:
        for tensor, text in _faults(op, _variants(bundle, op), kernels):
            path = ("ops", op.name, "tensors", tensor, "role")
            faults |= dict.fromkeys(manifests[op.name].error(path, f"op '{op.name}': {text}").messages)
    if faults:
        raise ManifestError(faults)


def with_pointer_roles(bundle: PlannedBundle, kernels: Kernels) -> PlannedBundle:
    """Return the bundle with the role of each pointer: an inout if some kernel may write through it, else an input."""
    ops = []
    for op in bundle.ops:
        written: set[str] = set()
        for variant in _variants(bundle, op):
            written |= {n for n, kinds in _accesses(variant, kernels).items() if kinds & {WRITE, UPDATE, MAYBE}}
        tensors = tuple(
            msgspec.structs.replace(tensor, role="inout") if tensor.pointer and tensor.name in written else tensor
            for tensor in op.tensors
        )
        ops.append(msgspec.structs.replace(op, tensors=tensors))
    return dataclasses.replace(bundle, ops=tuple(ops))


def keys_at_fault(bundle: PlannedBundle, kernels: Kernels) -> set[str]:
    """Return the keys of the kernels of the ops for which `check_roles` finds a fault."""
    at_fault = [op for op in bundle.ops if any(_faults(op, _variants(bundle, op), kernels))]
    return {variant.key for op in at_fault for variant in _variants(bundle, op)}


def _variants(bundle: PlannedBundle, op: records.Op) -> list[PlannedVariant]:
    return [variant for variant in bundle.variants if variant.spec.op == op.name]


def _faults(op: records.Op, variants: Iterable[PlannedVariant], kernels: Kernels) -> Iterator[tuple[str, str]]:
    calls: dict[object, list[PlannedVariant]] = {}
    inputs = {tensor.name for tensor in op.tensors if tensor.role == "input"}
    loose = {tensor.name for tensor in op.tensors if not tensor.align_strides}
    strided = {tensor.name for tensor in op.tensors if not tensor.pointer}  # workspaces are aligned
    for variant in variants:
        calls.setdefault((variant.spec.aligned, variant.spec.point), []).append(variant)
        for name, kinds in _accesses(variant, kernels).items():
            if name in inputs and kinds & {WRITE, UPDATE}:
                yield name, f"kernel {_kernel(variant)} writes to '{name}', which is an input; is it `role: inout`?"
            is_anywhere = not variant.spec.aligned or name in loose
            if DESCRIBED in kinds and is_anywhere and name in strided and (text := _unaligned(variant, name)):
                yield name, text
    for launched in calls.values():
        for tensor in _written(op, launched):
            if text := _output_fault(tensor, launched, kernels):
                yield tensor.name, text


def _unaligned(variant: PlannedVariant, tensor: str) -> str:
    """Return the reason why a kernel that makes a descriptor needs its tensor aligned; empty if it does not."""
    align = ARCHITECTURES[variant.job.arch].descriptor_align
    if align == 1:
        return ""
    return (
        f"kernel {_kernel(variant)} makes a tensor descriptor of '{tensor}', whose address and strides must be "
        f"multiples of {align} bytes on {variant.job.arch}; only the aligned specialisation requires that, for "
        "tensors without `align: false`: write `specialisations: [aligned]`"
    )


def _accesses(variant: PlannedVariant, kernels: Kernels) -> dict[str, Kinds]:
    """Return tensor → kinds of access, possibly none, for all tensors that a variant's kernel gets."""
    found: dict[str, Kinds] = {}
    accesses = kernels[variant.key].accesses
    for bound in variant.bound:
        if bound.dtype:
            found[bound.value] = found.get(bound.value, frozenset()) | frozenset(accesses.get(bound.pointer, ""))
    return found


def _written(op: records.Op, launched: Iterable[PlannedVariant]) -> Iterator[records.Tensor]:
    """Return the outputs of a call that launches these variants; none if it may launch one that is not built."""
    known = dict(next(iter(launched)).spec.constants)
    known |= _sizes(op, known)
    built = {variant.spec.launch for variant in launched}
    if all(
        i in built or partial_value(parse(launch.when or "True"), known) is False
        for i, launch in enumerate(op.launches)
    ):
        picked = {axis.pick: known[axis.name] for axis in op.axes if axis.rule == "equal" and axis.name in known}
        for tensor in op.tensors:
            exists = picked.get(tensor.when, partial_value(parse(tensor.when or "True"), known))
            if tensor.role == "output" and exists is not False:
                yield tensor


def _sizes(op: records.Op, known: Mapping[str, object]) -> dict[str, int]:
    """Return the answers to `elsize` of dtype variables with known values."""
    return {query_name("elsize", name): DTYPES[str(known[name])].size for name in op.dtypes if name in known}


def _output_fault(tensor: records.Tensor, launched: list[PlannedVariant], kernels: Kernels) -> str:
    """Return the fault of the accesses to an output, for any choice of configs; empty if there is none."""
    by_launch: dict[int, Kinds] = {}
    for variant in launched:
        kinds = _accesses(variant, kernels).get(tensor.name, frozenset())
        by_launch[variant.spec.launch] = by_launch.get(variant.spec.launch, frozenset()) | kinds
    if not frozenset().union(*by_launch.values()) & {WRITE, UPDATE, MAYBE}:
        names = " and ".join(dict.fromkeys(map(_kernel, launched)))
        return f"'{tensor.name}' is an output, but kernel {names} never writes to it"
    for number, kinds in sorted(by_launch.items()):
        if tensor.zero or kinds & {WRITE, MAYBE}:
            break
        if kinds & {READ, UPDATE}:
            variant = next(variant for variant in launched if variant.spec.launch == number)
            kernel = _kernel(variant)
            return (
                f"kernel {kernel} reads '{tensor.name}', an output to which nothing was written; is it `zero: true`, "
                "or "
                "`role: inout`?"
            )
    return ""


def _kernel(variant: PlannedVariant) -> str:
    return f"'{variant.job.function}' in {variant.job.source}"
