"""Load a manifest with its included ops and tuning files."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.paths import is_file, is_folder
from aot_runtime.contract.expressions import nearest

from .faults import validated
from .optional_tensor_axes import op_axes
from .schema import ArchTuningSpec, ConfigSpec, ManifestSpec, OpSpec, TuningSpec, Value
from .shipped import find_manifest
from .yamlfile import Key, ManifestError, YamlFile, read_yaml

KernelConfigs = Mapping[str, tuple[ConfigSpec, ...]]
"""`path.py:function` of a kernel → the configs of its `@triton.autotune`."""


@dataclass(frozen=True)
class Tuning:
    """A tuning file."""

    file: YamlFile
    spec: TuningSpec

    def entry(self, arch: str) -> tuple[tuple[Key, ...], ArchTuningSpec] | None:
        """Return (path in the file, entry) for an architecture."""
        for i, entry in enumerate(self.spec.tuning):
            if arch in entry.arch:
                return ("tuning", i), entry
        return None


@dataclass(frozen=True)
class OpSource:
    """An op of a bundle and the manifest that declares it.

    Attributes:
        manifest: the manifest that declares the op, also if another one includes it.
        only: axis or dtype variable → the values to build; all values of those that are not listed.
    """

    manifest: Manifest
    name: str
    only: Mapping[str, tuple[Value, ...]]

    @property
    def spec(self) -> OpSpec:
        return self.manifest.spec.ops[self.name]


class Manifest:
    """A manifest that follows the schema, with its file for error positions.

    Attributes:
        spec: the validated content.
        root: absolute folder that kernel paths start from.
        sources: the bundle's ops: included ones, then the manifest's own.
        kernel_configs: configs of the kernels' autotuners, for the ops that were passed to `with_op`.
    """

    def __init__(self, file: YamlFile, spec: ManifestSpec, included: Iterable[OpSource] = ()):
        self.file, self.spec = file, spec
        self.root = self._find_root()
        self.sources = (*included, *(OpSource(self, name, {}) for name in spec.ops))
        self.kernel_configs: KernelConfigs = {}
        self._tuning: dict[str, Tuning | None] = {}

    def tuning(self, op: str) -> Tuning | None:
        """Return the tuning file of an op, which it may share with another. Raises `ManifestError`."""
        path = self.tuning_path(op)
        if path.stem not in self._tuning:
            self._tuning[path.stem] = load_tuning(path) if is_file(path) else None
        return self._tuning[path.stem]

    def tuning_path(self, op: str) -> Path:
        """Return the path of an op's tuning file, which need not exist."""
        return self.file.path.resolve().parent / "tuning" / f"{self.spec.ops[op].tuning or op}.yaml"

    def with_op(self, name: str, spec: OpSpec, kernel_configs: KernelConfigs) -> Manifest:
        """Return a copy with an op completed from its kernels' decorators, and with the configs of these kernels."""
        other = copy.copy(self)
        other.spec = self.spec.model_copy(update={"ops": {**self.spec.ops, name: spec}})
        other.kernel_configs = {**self.kernel_configs, **kernel_configs}
        return other

    def alone(self, source: OpSource, spec: OpSpec, tuning: Tuning | None) -> Manifest:
        """Return a manifest with a single op, `spec`, and the tuning file `tuning`."""
        other = copy.copy(self)
        other.spec = self.spec.model_copy(update={"ops": {source.name: spec}})
        other.sources = (OpSource(other, source.name, source.only),)
        other._tuning = {spec.tuning or source.name: tuning}
        return other

    def error(self, path: tuple[Key, ...], message: str) -> ManifestError:
        return self.file.error(path, message)

    def _find_root(self) -> Path:
        folder = self.file.path.resolve().parent
        if self.spec.root is not None:
            root = folder / self.spec.root
            if not is_folder(root):
                raise self.error(("root",), f"root '{self.spec.root}': folder {root} does not exist")
            return root.resolve()
        first_launch = next(((name, launch) for name, spec in self.spec.ops.items() for launch in spec.launches), None)
        if first_launch is None:
            return folder
        op, first = first_launch
        kernel = first.kernel.rpartition(":")[0]
        for candidate in (folder, *folder.parents):
            if is_file(candidate / kernel):
                return candidate
        raise self.error(
            ("ops", op, "launches", 0, "kernel"),
            f"kernel file '{kernel}' is neither in {folder} nor in a folder above it; paths start at the project root",
        )


def load_manifest(path: Path) -> Manifest:
    """Read and validate a manifest, given its path or the name of a shipped one.

    Raises `ManifestError` with all faults, each with file:line:column.
    """
    try:
        file = read_yaml(find_manifest(path))
    except FileNotFoundError as error:
        raise ManifestError([str(error)]) from None
    spec = validated(file, ManifestSpec)
    return Manifest(file, spec, _included(file, spec))


def _included(file: YamlFile, spec: ManifestSpec) -> Iterator[OpSource]:
    owners = dict.fromkeys(spec.ops, "this manifest")
    for name, ops in spec.include.items():
        try:
            path = find_manifest(Path(name), file.path.parent)
        except FileNotFoundError as error:
            raise file.error(("include", name), str(error)) from None
        if not is_file(path):
            raise file.error(("include", name), f"manifest {path} does not exist")
        other_file = read_yaml(path)
        other = Manifest(other_file, validated(other_file, ManifestSpec))
        for op, only in ops.items():
            place = ("include", name, op)
            if op not in other.spec.ops:
                raise file.error(place, f"{name} has no op '{op}'{nearest(op, other.spec.ops)}")
            if op in owners:
                raise file.error(place, f"op '{op}' is also in {owners[op]}")
            owners[op] = name
            _check_values(file, place, other.spec.ops[op], only)
            yield OpSource(other, op, {axis: tuple(values) for axis, values in only.items()})


def _check_values(file: YamlFile, place: tuple[Key, ...], op: OpSpec, only: Mapping[str, list[Value]]) -> None:
    axes: dict[str, list[Any]] = {**op.dtypes, **{name: axis.values for name, axis in op_axes(op).items()}}
    for axis, values in only.items():
        if axis not in axes:
            raise file.error((*place, axis), f"op '{place[-1]}' has no axis '{axis}'{nearest(axis, axes)}")
        for i, value in enumerate(values):
            # By type too: True equals 1.
            if (type(value), value) not in [(type(known), known) for known in axes[axis]]:
                raise file.error(
                    (*place, axis, i), f"{axis} has no value {value}; it has {', '.join(map(str, axes[axis]))}"
                )


def load_tuning(path: Path) -> Tuning:
    """Read and validate a tuning file. Raises `ManifestError`."""
    file = read_yaml(path)
    spec = validated(file, TuningSpec)
    seen: set[str] = set()
    for i, entry in enumerate(spec.tuning):
        for k, arch in enumerate(entry.arch):
            if arch in seen:
                raise file.error(("tuning", i, "arch", k), f"another entry also has {arch}")
            seen.add(arch)
    return Tuning(file, spec)
