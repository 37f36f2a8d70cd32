"""The pages of a bundle with many variants, and of one with forged texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aot_runtime.bundle.reading import bundle_id
from aot_runtime.contract import records
from aot_runtime.contract.index_encoding import encode_index
from tests.support.command import aotbundle
from tests.support.forging import edit_index

FORGED = "\x0b</script></pre><script>window.forged = 1</script><img src=x onerror='window.forged = 1'>\"$\\frac{"
WIDTHS = 71


@pytest.fixture(scope="session", autouse=True)
def _extra() -> None:
    for package in ("jinja2", "matplotlib"):
        pytest.importorskip(package, reason="reports need the extra `report`")


@pytest.fixture(scope="session")
def large_page(sample: records.Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of the sample with 1,706 variants, by as many values of its axis WIDTH, against a similar one."""
    folder, other = tmp_path_factory.mktemp("large"), tmp_path_factory.mktemp("other")
    _widened(sample, other, (*range(3, WIDTHS + 2), 4096))
    edit_index(other, _recompile)
    large = _widened(sample, folder, (*range(1, WIDTHS), 4096))
    return write_page(large, folder / "page.html", "--against", other)


def _recompile(index: dict[str, Any]) -> None:
    for variant in index["variants"]:
        variant["resources"]["vgprs"] += 4


def _widened(sample: records.Index, folder: Path, widths: tuple[int, ...]) -> Path:
    reduce, swap = sample.ops
    axes = (reduce.axes[0], msgspec.structs.replace(reduce.axes[1], values=widths))
    pattern = [variant for variant in sample.variants if variant.axis_values.get("WIDTH") == 4096]
    others = [variant for variant in sample.variants if variant.op == "swap"]
    made = [
        msgspec.structs.replace(variant, axis_values={**variant.axis_values, "WIDTH": width})
        for width in widths
        for variant in pattern
    ]
    index = msgspec.structs.replace(
        sample, ops=(msgspec.structs.replace(reduce, axes=axes), swap), variants=(*made, *others), id="0" * 64
    )
    index = msgspec.structs.replace(index, id=bundle_id(encode_index(index)))
    (folder / records.INDEX).write_bytes(encode_index(index))
    return folder


@pytest.fixture(scope="session")
def forged_page(sample: records.Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a bundle, and of files given with it, that have markup wherever a reader allows text."""
    folder = tmp_path_factory.mktemp("forged")
    (folder / records.INDEX).write_bytes(encode_index(sample))
    edit_index(folder, _forge)
    index = json.loads((folder / records.INDEX).read_text())
    tested, profiled = folder / "selftest.json", folder / "profile.json"
    tested.write_text(json.dumps(selftest_data(index["id"], FORGED)))
    profiled.write_text(json.dumps(profile_data(index["id"], FORGED)))
    modelled = folder / "time.json"
    modelled.write_text(json.dumps(time_data(index["id"], FORGED)))
    other = tmp_path_factory.mktemp("other")
    (other / records.INDEX).write_bytes(encode_index(sample))
    options = ("--selftest", tested, "--profile", profiled, "--time", modelled, "--against", other)
    return write_page(folder, folder / "page.html", *options)


def _forge(index: dict[str, Any]) -> None:
    index["toolchain"] = {"compiler": FORGED, FORGED: FORGED}
    index["provenance"] = {
        "buildDefinition": {
            "buildType": FORGED,
            "externalParameters": {"manifest": FORGED, "arch": FORGED, "filter": FORGED, "for": FORGED},
            "resolvedDependencies": [
                {"name": FORGED, "digest": {"sha256": FORGED}},
                {"name": FORGED, "digest": {"sourceClosure": FORGED}},
                {"uri": FORGED},
            ],
        },
        "runDetails": {"builder": {"id": FORGED, "version": {FORGED: FORGED}}},
    }
    op = index["ops"][0]
    op["doc"] = FORGED
    for item in (*op["tensors"], *op["scalars"], *op["dims"]):
        item["doc"] = FORGED
    op["launches"][0]["configs"][0]["name"] = FORGED
    op["launches"][0]["configs"][0]["options"][FORGED] = FORGED
    op["denied"] = [{"when": "rows > 5", "reason": FORGED}]
    for key, least, most in (("vgprs", -(2**63), 2**63 - 1), ("code_bytes", 1, -5), ("waves_per_simd", -1e308, 1e308)):
        for variant, number in zip(index["variants"][:2], (least, most), strict=True):
            variant["resources"][key] = number
    for variant in index["variants"]:
        variant["resources"]["occupancy_limit"] = FORGED


def selftest_data(bundle_id: str, text: str = "text") -> dict[str, Any]:
    """Return what `selftest --json` writes of a passing and a failing case, with a text in every place."""
    outputs = [{"name": text, "error": 1e-3, "bound": 2e-3, "fault": ""}, {"name": text, "error": None, "bound": 1.0}]
    case = {"op": text, "case": text, "passed": True, "seconds": 0.5, "outputs": outputs}
    results = [case, {**case, "passed": False, "fault": text}]
    return {"id": bundle_id, "device": text, "passed": False, "results": results}


def profile_data(bundle_id: str, text: str = "text") -> dict[str, Any]:
    """Return what a report reads of `profile --json`, for one launch."""
    launch = {
        "kernel": text, "config": text, "grid": [2, 1, 1], "instructions": 100, "classes": {"valu": 75, text: 25},
        "matrix": {"f16": {"instructions": 5, "flops": 81920}}, "memory_bytes": 4096,
        "lower_bounds": {"matrix": 1e-6, "memory": 2e-6, "limit": text},
    }  # fmt: skip
    return {"id": bundle_id, "op": text, "arch": "gfx942", "launches": [launch]}


def time_data(bundle_id: str, text: str = "text") -> dict[str, Any]:
    """Return what a report reads of `profile --time --json`, for one launch."""
    launch = {
        "kernel": text, "config": text, "workgroups": 5000, "sampled": [0, 7], "seconds": 2e-6, "flops": 3e6,
        "memory_bytes": 100.0, "shares": {"matrix": 0.75, text: 0.25},
    }  # fmt: skip
    return {"id": bundle_id, "op": text, "arch": "gfx942", "launches": [launch]}


def write_page(bundle: Path, page: Path, *options: object) -> Path:
    """Write a bundle's page by the command."""
    result = aotbundle("report", bundle, "-o", page, *options)
    assert result.exit_code == 0, result.output
    return page
