"""Read the request of a run of tuning: a space, an op and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aot.build import Request
from aot.manifest.calls import CallEntrySpec, load_calls
from aot.manifest.loading import Manifest, OpSource, load_manifest
from aot.manifest.shipped import shipped_manifests
from aot.manifest.spaces import Space, load_space
from aot.targets import Target, parse_arch
from aot_runtime.contract.expressions import nearest
from aot_runtime.errors import AotError

from .calls import TunedCall, call_of_command, calls_of_file, calls_of_space
from .candidates import Group, read_groups


class TuningError(AotError):
    """A run of tuning cannot go on, or has nothing to choose from."""


@dataclass(frozen=True)
class TuneRequest:
    """The options of a run of tuning on the command line.

    Attributes:
        op: the op's name; None: that of the space.
        build: how candidates are compiled, the manifest of the op (if given), and the one target to tune for.
        device: name of a device; None: the model of time.
        space: the file of the space; None: the op's own.
        call: a call to compare on instead of the space's.
        calls: files of calls to compare on instead of the space's.
        content: content of tensors.
        results: the file of times.
        output: the tuning file to write; None: the op's own.
        shortlist: the file to write a shortlist to, with `keep` candidates a group.
        margin: the part of its time that a config has to save to replace another; None: enough to tell them apart.
    """

    op: str | None
    build: Request
    device: str | None = None
    space: Path | None = None
    call: CallEntrySpec | None = None
    calls: tuple[Path, ...] = ()
    content: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    results: Path | None = None
    output: Path | None = None
    shortlist: Path | None = None
    keep: int = 16
    margin: float | None = None
    rounds: int = 5
    dry_run: bool = False

    @property
    def target(self) -> Target:
        return self.build.targets[0]

    @property
    def resolved(self) -> TuneRequest:
        """The request with the architecture of the shortlist, if that has one only. Raises as `subject_of` does."""
        if self.build.targets:
            return self
        assert self.space is not None
        archs = {name for group in load_space(self.space).spec.groups for name in group.arch}
        if len(archs) != 1:
            raise TuningError(f"{self.space} is for {', '.join(sorted(archs)) or 'any architecture'}: pass --arch")
        return replace(self, build=replace(self.build, targets=(parse_arch(*archs),)))


@dataclass(frozen=True)
class Subject:
    """The subject of a run: an op, its groups of candidates (from a space), and calls to compare on."""

    source: OpSource
    space: Space
    groups: tuple[Group, ...]
    calls: tuple[TunedCall, ...]


def subject_of(request: TuneRequest) -> Subject:
    """Read the files that a request names. Raises `ManifestError` and `TuningError`."""
    space, source = space_and_op(request)
    groups = _wanted_groups(request, read_groups(space, source, request.target.arch))
    return Subject(source, space, groups, _calls(request, space, source, groups))


def space_and_op(request: TuneRequest) -> tuple[Space, OpSource]:
    if request.space is not None:
        space = load_space(request.space)
        op = request.op or space.spec.op
        return space, _source(request, op, space)
    assert request.op is not None
    source = _source(request, request.op, None)
    path = source.manifest.tuning_path(source.name).parent / "spaces" / f"{source.name}.yaml"
    if not path.is_file():
        raise TuningError(
            f"op '{source.name}' has no space of candidates: {path} does not exist; write it, or give --space"
        )
    return load_space(path), source


def _source(request: TuneRequest, op: str, space: Space | None) -> OpSource:
    if request.build.manifests:
        (path,) = request.build.manifests
        return _op_of([load_manifest(path)], op)
    if space is not None and space.spec.manifest:
        beside = space.file.path.parent / space.spec.manifest
        return _op_of([load_manifest(beside if beside.is_file() else Path(space.spec.manifest))], op)
    return _op_of([load_manifest(path) for path in shipped_manifests().values()], op)


def _op_of(manifests: Sequence[Manifest], op: str) -> OpSource:
    sources = {source.name: source for manifest in manifests for source in manifest.sources}
    declared = {source.name: source for source in sources.values()}
    for manifest in manifests:  # where it is declared comes before where it is included
        declared |= {source.name: source for source in manifest.sources if source.manifest is manifest}
    if op not in declared:
        where = str(manifests[0].file.path) if len(manifests) == 1 else "the shipped manifests"
        raise TuningError(f"no op '{op}' in {where}{nearest(op, sorted(declared))}")
    return declared[op]


def _wanted_groups(request: TuneRequest, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    names = [group.name for group in groups]
    for name in request.groups:
        if name not in names:
            raise TuningError(f"the space has no group '{name}' for {request.target.arch}{nearest(name, names)}")
    return tuple(group for group in groups if not request.groups or group.name in request.groups)


def _calls(request: TuneRequest, space: Space, source: OpSource, groups: tuple[Group, ...]) -> tuple[TunedCall, ...]:
    op, arch = source.name, request.target.arch
    if request.call is not None:
        return (call_of_command(request.call.model_copy(update={"op": op}), request.content),)
    if request.calls:
        files = [load_calls(path) for path in request.calls]
        found = tuple(call for file in files for call in calls_of_file(file, op, arch))
        if not found:
            raise TuningError(f"no call of op '{op}' for {arch} in {', '.join(map(str, request.calls))}")
        return tuple(replace(call, content=request.content) for call in found)
    found = calls_of_space(space, groups, op, arch)
    if not found:
        raise TuningError(f"{space.file.path} has no calls for {arch}: describe some with --dim, --shape or --for")
    return found
