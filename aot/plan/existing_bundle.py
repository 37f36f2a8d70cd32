"""The existing bundle of `--add`, whose variants are kept in the new one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.manifest.yamlfile import ManifestError
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract import records
from aot_runtime.contract.index_encoding import encode_json
from aot_runtime.errors import BundleError

from .variants import VariantSpec

Key = tuple[Any, ...]
"""Identity of a variant in its bundle, which does not change with other parts of the manifest."""
_TOLD = 3
"""Maximum number of variants that an error names."""


@dataclass(frozen=True)
class Present:
    """A bundle that is extended. labels: key of each variant → its description."""

    folder: Path
    id: str
    labels: Mapping[Key, str]

    def missing(self, found: Iterable[Key]) -> str:
        """Return the error for variants that were not found; empty if all were."""
        if not (gone := self.labels.keys() - set(found)):
            return ""
        told = sorted(self.labels[key] for key in gone)
        more = f" and {len(told) - _TOLD} others" if len(told) > _TOLD else ""
        return (
            f"--add: {self.folder} has variants that the manifest no longer has: {'; '.join(told[:_TOLD])}{more}; "
            "build it without --add, or give another output with -o"
        )


def read_present(folder: Path) -> Present:
    """Read the bundle in a folder. Raises `ManifestError` if there is none."""
    try:
        index = read_index(folder)
    except BundleError as error:
        raise ManifestError([f"--add: there is no bundle in {folder} to add to: {error}"]) from None
    ops = {op.name: op for op in index.ops}
    labels = {}
    for variant in index.variants:
        key = _key(ops[variant.op], variant.launch, variant.config, variant.aligned, variant.axis_values)
        values = ", ".join(f"{name}={value}" for name, value in variant.axis_values.items())
        labels[key] = f"{variant.op}[{values}] {'aligned' if variant.aligned else 'general'} config {variant.config}"
    return Present(folder, index.id, labels)


def key_of(op: records.Op, variant: VariantSpec) -> Key:
    """Return the key of a planned variant."""
    return _key(op, variant.launch, variant.config, variant.aligned, dict(variant.point))


def _key(op: records.Op, launch: int, config: int, aligned: bool, point: Mapping[str, Any]) -> Key:
    """Return a key with the config's content, since its position may change; `repr` distinguishes True from 1."""
    made = op.launches[launch]
    values = repr(sorted(point.items()))
    return op.name, launch, made.kernel, encode_json(made.configs[config]), aligned, values
