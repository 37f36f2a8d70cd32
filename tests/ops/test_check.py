"""`aotbuild check` over the shipped ops: every one passes, and faults planted in a shipped kernel are found.

It makes random calls with packed and strided tensors, with outputs in place where the contract allows that, with poison
in outputs and around all tensors, and in another order of wavefronts: the tests of the families need not.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="building bundles needs the extra `build`")
pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")

from aot.manifest.loading import load_manifest
from tests.support.session_builds import ROOT, build_here, session_cache

pytestmark = pytest.mark.on("emulator")

OPS = {path.stem: sorted(load_manifest(path).spec.ops) for path in sorted((ROOT / "manifests").glob("*.yaml"))}
"""The ops that each shipped manifest declares itself."""


def check(manifest: Path, op: str, *options: str) -> dict[str, Any]:
    """Check the report of an op, as JSON has it."""
    words = ["check", str(manifest), "--op", op, "--json", "--cache-dir", str(session_cache()), *options]
    result = build_here(words)
    assert result.exit_code in (0, 1), result.output
    (report,) = json.loads(result.stdout)["ops"]
    return report


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("manifest", "op"), [(name, op) for name, ops in OPS.items() for op in ops])
def test_every_shipped_op_passes(manifest: str, op: str):
    report = check(ROOT / f"manifests/{manifest}.yaml", op, "--count", "4")
    assert report["cases"] and report["passed"], report


OUTSIDE = {"bounds", "outside"}
FAULTS = {
    "swapped stride": (
        "cast", "convert", OUTSIDE | {"unwritten"}, "out.ptr + row * out.stride_rows", "out.ptr + row * x.stride_rows"
    ),
    "unmasked store": (
        "silu_mul", "gate", OUTSIDE, "(out.ptr.dtype.element_ty), mask=inside", "(out.ptr.dtype.element_ty)"
    ),
    "input read after the output is written": (
        "rotary", "rotary", {"in_place"}, "(second * c2 + first * s2).to(dtype), mask=inside)",
        "(second * c2 + tl.load(source + pair[None, :], inside, 0.0) * s2).to(dtype), mask=inside)",
    ),
}  # fmt: skip
"""The op, its file in kernels/rows, the kinds of findings, what is right there, and what is wrong."""


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(tmp_path: Path, fault: str):
    op, file, kinds, right, wrong = FAULTS[fault]
    for folder in ("kernels", "manifests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    source = tmp_path / f"kernels/rows/{file}.py"
    text = source.read_text()
    assert text.count(right) == 1, f"the kernel changed: {right!r} occurs {text.count(right)} times"
    source.write_text(text.replace(right, wrong))
    report = check(tmp_path / "manifests/rows.yaml", op, "--count", "2", "--filter", "T=float16")
    found = {finding["kind"] for case in report["cases"] for finding in case["findings"]}
    assert found and found <= kinds, report
