"""Calls files: the calls that a program makes, for `aotbuild --for`. `aot_runtime.record` writes them.

An entry has the fields of `aot_bundle.callspec.CallSpec`. `aot.plan.calls` checks them against the op.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from aot_runtime.contract.expressions import nearest

from .faults import validated
from .loading import Manifest
from .schema import ArchName, DtypeName, Name, Number, Spec
from .yamlfile import Key, ManifestError, YamlFile, read_yaml

Extent = Annotated[int, Field(ge=0, lt=2**63)]
Stride = Annotated[int, Field(gt=-(2**63), lt=2**63)]


class CallEntrySpec(Spec):
    """A call of an op, described without arrays."""

    bundle: Name | None = Field(None, description="The bundle that is called; by default any that has the op.")
    op: Name = Field(description="The op that is called.")
    count: int = Field(1, ge=1, description="How often the call was made; it decides nothing.")
    arch: list[ArchName] = Field([], description="Architectures that the call is made on; by default on all.")
    shapes: dict[Name, list[Extent]] = Field({}, description="Tensor → its shape.")
    dims: dict[Name, Extent] = Field({}, description="Dim → its extent; shapes every required input without `shapes`.")
    given: list[Name] = Field([], description="Optional inputs that are passed, too, shaped by `dims`.")
    dtypes: dict[Name, DtypeName] = Field({}, description="Dtype variable, or a tensor that has it → dtype.")
    strides: dict[Name, list[Stride]] = Field({}, description="Tensor → strides in elements; by default it is packed.")
    innermost: dict[Name, int] = Field({}, description="Tensor → position of its dim with stride 1, if several may be.")
    unaligned: list[Name] = Field([], description="Tensors whose address is no multiple of 16 bytes.")
    scalars: dict[Name, bool | int | Number | str] = Field(
        {}, description="Scalar → its value. One that no decision depends on need not be there."
    )
    num_cus: int | None = Field(None, ge=1, description="Compute units of the device; by default a whole GPU's.")
    num_xcds: int | None = Field(None, ge=1, description="Its XCDs; by default a whole GPU's.")


class CallsSpec(Spec):
    """The calls that a program makes."""

    calls: list[CallEntrySpec]


@dataclass(frozen=True)
class CallsFile:
    """A calls file that follows the schema, with its file for error positions."""

    file: YamlFile
    spec: CallsSpec

    def locate(self, position: int, *path: Key) -> str:
        """`file:line:column` of an entry, or of a key of it."""
        return self.file.locate(("calls", position, *path))


@dataclass(frozen=True)
class CallEntry:
    """An entry of a calls file."""

    file: CallsFile
    position: int

    @property
    def spec(self) -> CallEntrySpec:
        return self.file.spec.calls[self.position]

    def locate(self, *path: Key) -> str:
        """`file:line:column` of the entry, or of a key of it."""
        return self.file.locate(self.position, *path)

    def may_call(self, bundle: str) -> bool:
        """Return True if the entry is for this bundle or for any."""
        return self.spec.bundle in (None, bundle)


def load_calls(path: Path) -> CallsFile:
    """Read and validate a calls file. Raises `ManifestError` with every fault, each at its file:line:column."""
    file = read_yaml(path)
    return CallsFile(file, validated(file, CallsSpec))


def entries(files: Iterable[CallsFile]) -> tuple[CallEntry, ...]:
    """Return the entries of all files, in order."""
    return tuple(CallEntry(file, position) for file in files for position in range(len(file.spec.calls)))


def entry_faults(found: Iterable[CallEntry], manifests: Iterable[Manifest]) -> Iterator[str]:
    """Yield faults of entries for a build of manifests: calls of unknown ops, and manifests without calls.

    Entries for other bundles are allowed, as a file may serve several builds.
    """
    called, bundles = list(found), list(manifests)
    ops = {manifest.spec.bundle: [source.name for source in manifest.sources] for manifest in bundles}
    for entry in called:
        known = {op for bundle, names in ops.items() if entry.may_call(bundle) for op in names}
        if entry.spec.op not in known and (entry.spec.bundle is None or entry.spec.bundle in ops):
            of = f"bundle '{entry.spec.bundle}'" if entry.spec.bundle else "none of these manifests"
            what = f"{of} has {'no' if entry.spec.bundle else 'an'} op '{entry.spec.op}'"
            yield f"{entry.locate('op')}: {what}{nearest(entry.spec.op, sorted(known))}"
    for manifest in bundles:
        bundle = manifest.spec.bundle
        if not any(entry.may_call(bundle) and entry.spec.op in ops[bundle] for entry in called):
            others = sorted({entry.spec.bundle for entry in called if entry.spec.bundle})
            where = ", ".join(dict.fromkeys(str(entry.file.file.path) for entry in called))
            of = f"; their calls are of {', '.join(others)}" if others else ""
            yield f"{manifest.file.path}: --for: no call is for bundle '{bundle}'{f' in {where}' if where else ''}{of}"


def check_entries(found: Iterable[CallEntry], manifests: Iterable[Manifest]) -> None:
    """Raise `ManifestError` with all `entry_faults`, if any."""
    if faults := list(entry_faults(found, manifests)):
        raise ManifestError(faults)
