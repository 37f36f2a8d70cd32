"""The selftest of each shipped manifest for gfx942, through AMD's own libraries. Each case compiles the variants that
it launches.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plans import planned
from tests.support.session_builds import ROOT, session_cache

pytestmark = pytest.mark.on("rocm")

MANIFESTS = [
    pytest.param(path.stem, marks=pytest.mark.slow if path.stem == "mixtures" else ())  # ops that others have, too
    for path in sorted((ROOT / "manifests").glob("*.yaml"))
]


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_every_case(manifest: str, tmp_path: Path):
    pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")
    from aot.write.vectors import VectorCache, case_vectors
    from aot_runtime import get_device
    from aot_runtime.bundle.vector_files import read_vectors
    from aot_runtime.call.selftests import Prepared, run_case
    from tests.support.on_demand import BundleOnDemand

    device = get_device("hip:0")
    bundle = BundleOnDemand(planned(device.arch, manifest), device, session_cache())
    assert bundle.planned.cases
    ops, failed = {op.name: op for op in bundle.index.ops}, []
    for made in case_vectors(bundle.planned.cases, VectorCache(session_cache())):
        file = tmp_path / made.case.vectors.file
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(made.content)
        result = run_case(bundle, Prepared(made.case, read_vectors(tmp_path, ops[made.case.op], made.case)))
        if not result.passed:
            failed.append(result)
        file.unlink()
    assert not failed
