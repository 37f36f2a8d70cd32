"""`verify` finds what is wrong with a bundle: damaged files, and an index that its code objects disagree with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot_runtime.bundle.codeobject import read_code_object
from aot_runtime.bundle.reading import read_blob, read_index
from aot_runtime.bundle.verification import verify_bundle
from tests.support.forging import adopt_files, edit_index
from tests.support.session_builds import build_once


@pytest.fixture
def bundle(rows_bundle: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(rows_bundle, tmp_path / "rows-gfx942"))


def first_code(folder: Path) -> Path:
    return sorted((folder / "code").iterdir())[0]


@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
def test_a_bundle_as_it_was_built_has_no_fault(rows_bundles: Path, arch: str):
    assert verify_bundle(rows_bundles / f"rows-{arch}") == []


@pytest.fixture(scope="module")
def memory_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of kernels that read the shape of their launch: HIP fills hidden arguments in behind those that are passed."""
    return build_once(tmp_path_factory, "manifests/memory.yaml") / "memory-gfx942"


def test_hidden_arguments_are_no_fault(memory_bundle: Path):
    index = read_index(memory_bundle)
    image = read_blob(memory_bundle, next(iter(index.blobs.values())), "gfx942")
    assert any(arg.kind == "hidden_block_count_x" for arg in read_code_object(image).kernels[0].args)
    assert verify_bundle(memory_bundle) == []


def test_arguments_lie_before_hidden_ones(memory_bundle: Path, tmp_path: Path):
    def lengthen(index: dict[str, Any]) -> None:
        index["variants"][0]["kernargs"].append({"name": "more", "type": "i64", "offset": 40, "size": 8, "value": "1"})
        index["variants"][0]["kernarg_bytes"] = 48

    copy = Path(shutil.copytree(memory_bundle, tmp_path / "memory-gfx942"))
    edit_index(copy, lengthen)
    faults = verify_bundle(copy)
    assert any(fault.endswith("kernarg 'more' at offset 40 is not in the code object") for fault in faults), faults
    assert any(fault.endswith("is launched with 48 kernarg bytes, the code object has 40") for fault in faults)


def test_editing_the_index_is_itself_no_fault(bundle: Path):
    edit_index(bundle, lambda index: None)
    assert verify_bundle(bundle) == []


def arg(name: str, **fields: Any) -> Callable[[dict[str, Any]], None]:
    def edit(index: dict[str, Any]) -> None:
        next(item for item in index["variants"][0]["kernargs"] if item["name"] == name).update(fields)

    return edit


def variant(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["variants"][0].update(fields)


def resource(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["variants"][0]["resources"].update(fields)


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (arg("rows", type="i16", size=2), "kernarg 'rows' at offset 44 is a value of 2 bytes, in the code object a "),
        (arg("rows", size=8, type="i64"), "overlaps another"),
        (arg("out.ptr", type="u64", value="3"),
         "'out.ptr' at offset 32 is a value of 8 bytes, in the code object a pointer"),
        (lambda index: index["variants"][0]["kernargs"].pop(2),
         "the code object has a pointer of 8 bytes at offset 16"),
        (lambda index: index["variants"][0]["kernargs"].append({"name": "more", "type": "i8", "offset": 72, "size": 1}),
         "kernargs of 'softmax_rows' need 73 bytes, the segment has 72"),
        (variant(kernarg_bytes=80), "it is launched with 80 kernarg bytes, the code object has 72"),
        (variant(num_warps=2), "it is launched with 128 threads of a workgroup, the code object has 256"),
        (variant(warp_size=32, num_warps=8), "it is launched with 32 lanes of a wave, the code object has 64"),
        (variant(symbol="softmax_cols"), "code object has no kernel 'softmax_cols'; it has: softmax_rows"),
        (resource(vgprs=1), "the index says 1 VGPRs, the code object "),
        (resource(agprs=3), "the index says 3 AGPRs, the code object 0"),
        (resource(sgprs=3), "the index says 3 SGPRs, the code object "),
        (resource(vgpr_spills=3), "the index says 3 spilled VGPRs, the code object 0"),
        (resource(sgpr_spills=3), "the index says 3 spilled SGPRs, the code object 0"),
        (resource(scratch_bytes=8), "the index says 8 bytes of scratch, the code object 0"),
        (resource(code_bytes=8), "the index says 8 bytes of code, the code object "),
        (lambda index: index["target"].update(arch="gfx950"), "is for gfx942, the bundle is for gfx950"),
        (lambda index: index["ops"][0]["launches"][0].update(grid=["rowz", "1", "1"]), "undefined name 'rowz'"),
        (lambda index: index["ops"].append(index["ops"][0] | {"name": "softmin"}), "op 'softmin' has no variants"),
        (lambda index: index["variants"].__delitem__(0), "is used by no variant"),
    ],
)  # fmt: skip
def test_an_index_that_disagrees_is_found(bundle: Path, edit: Callable[[dict[str, Any]], None], fault: str):
    edit_index(bundle, edit)
    assert any(fault in line for line in verify_bundle(bundle)), verify_bundle(bundle)


def test_the_variant_and_its_file_are_named(bundle: Path):
    edit_index(bundle, resource(agprs=3))
    (fault,) = verify_bundle(bundle)
    index = json.loads((bundle / "bundle.json").read_text())
    first = index["variants"][0]
    assert fault.startswith(f"{index['blobs'][first['code']]['file']}: softmax[")
    assert f"{'aligned' if first['aligned'] else 'general'} config {first['config']}: " in fault
    for name, value in first["axis_values"].items():
        assert f"{name}={value}" in fault


def flip_byte(path: Path) -> None:
    image = bytearray(path.read_bytes())
    image[-1] ^= 1
    path.write_bytes(image)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda folder: flip_byte(first_code(folder)), "was altered: its size or sha256 is not what the index says"),
        (lambda folder: first_code(folder).write_bytes(b""), "was altered"),
        (lambda folder: first_code(folder).unlink(), "cannot be read: No such file or directory"),
        (lambda folder: (folder / "code/extra.hsaco").write_bytes(b"x"), "code/extra.hsaco is not in the index"),
        (lambda folder: (folder / "include/rows.h").unlink(), "include/rows.h cannot be read: No such file"),
        (lambda folder: (folder / "stubs/rows.pyi").write_text("x"), "stubs/rows.pyi belongs to another bundle"),
        (lambda folder: (folder / "bundle.json").unlink(), "is no bundle: it has no bundle.json"),
        (lambda folder: (folder / "bundle.json").write_text("{"), "is not a bundle index"),
        (lambda folder: (folder / "bundle.json").write_text(
            (folder / "bundle.json").read_text().replace('"vgprs"', '"vgprz"', 1)), "altered"),
    ],
)  # fmt: skip
def test_damage_is_one_fault(bundle: Path, damage: Callable[[Path], Any], fault: str):
    damage(bundle)
    (found,) = verify_bundle(bundle)
    assert fault in found


def test_a_code_object_cut_short_and_adopted_by_the_index(bundle: Path):
    path = first_code(bundle)
    path.write_bytes(path.read_bytes()[:-200])
    adopt_files(bundle)
    faults = verify_bundle(bundle)
    assert any("is not named by its sha256" in fault for fault in faults)
    assert any("truncated" in fault or "malformed" in fault for fault in faults), faults


def test_a_code_object_of_another_architecture(rows_bundles: Path, bundle: Path):
    cubin = first_code(rows_bundles / "rows-sm_90")
    first_code(bundle).write_bytes(cubin.read_bytes())
    adopt_files(bundle)
    assert any("is for sm_90, the bundle is for gfx942" in fault for fault in verify_bundle(bundle))
