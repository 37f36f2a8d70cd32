"""Validate drafts with the manifest loader and the planner."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from aot.forked_process import ForkedProcess
from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import plan_bundle
from aot.source.kernel_source import KernelSource, inspect_kernel
from aot.targets import Target

from .draft import OpDraft
from .manifest_text import manifest_text

TARGET = Target("gfx942")
"""The architecture that drafts are planned for."""


def mark_faults(ops: Sequence[OpDraft], root: Path, process: ForkedProcess) -> None:
    """Add the build's error as a note to each op that it refuses. `root`: project root of the kernels."""

    def inspect(folder: str, path: str, arch: str) -> KernelSource:
        return process.run(inspect_kernel, folder, path, arch)

    for op in ops:
        for fault in _faults(op, root, inspect):
            op.note("op", "", f"a build rejects it: {fault}")


def _faults(op: OpDraft, root: Path, inspect: Callable[[str, str, str], KernelSource]) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="aotbuild-init-") as folder:
        path = Path(folder) / "draft.yaml"
        path.write_text(manifest_text("draft", str(root), "", [op], ""), encoding="utf-8")
        try:
            plan_bundle(load_manifest(path), TARGET, {}, False, inspect)
        except ManifestError as error:
            place = re.compile(rf"^{re.escape(str(path))}(:\d+:\d+)?: (op '\w+': )?")
            return [" ".join(place.sub("", message).split()) for message in error.messages]
    return []
