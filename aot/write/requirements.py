"""Check compiled code against the command line's requirements, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aot.compile.jobs import CompiledKernel
from aot.plan.bundles import PlannedBundle
from aot_bundle.requirements import Code, unmet_lines, unmet_requirements
from aot_runtime.contract.expressions import Expression

from .bundle_writer import make_index


def requirement_faults(
    bundle: PlannedBundle, kernels: Mapping[str, CompiledKernel], requirements: Sequence[Expression]
) -> list[str]:
    """Return a line for each requirement that a bundle's variants do not meet.

    Raises `BundleError` or `DeviceError` if their instructions cannot be read.
    """
    if not requirements:
        return []
    index, files = make_index(bundle, kernels, ())
    code = Code(index, lambda key: files[index.blobs[key].file])
    unmet = list(unmet_requirements(index, requirements, code))
    return [f"{bundle.folder_name}: {line}" for line in unmet_lines(index, unmet)] if unmet else []
