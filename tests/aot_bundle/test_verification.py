"""`verify` finds damaged files, and code objects that disagree with the index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot_bundle.verification import verify_bundle
from aot_runtime.bundle.codeobject import read_code_object
from aot_runtime.bundle.reading import read_blob, read_index
from tests.support.forging import adopt_files, edit_index

Edit = Callable[[dict[str, Any]], Any]


def first_code(folder: Path) -> Path:
    return min((folder / "code").iterdir())


@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
def test_a_bundle_as_it_was_built_has_no_fault(rows_bundles: Path, arch: str):
    assert verify_bundle(rows_bundles / f"rows-{arch}") == []


def test_hidden_arguments_are_no_fault_and_lie_behind_the_others(small_copy: Path):
    """Kernels that read the shape of their launch have them: HIP fills them in behind those that are passed."""
    index = read_index(small_copy)
    variant = next(variant for variant in index.variants if variant.op == "copy")
    blob = index.blobs[variant.code]
    code = read_code_object(read_blob(small_copy, blob, "gfx942"))
    assert any(arg.kind == "hidden_block_count_x" for arg in code.kernels[0].args)
    assert verify_bundle(small_copy) == []

    def lengthen(data: dict[str, Any]) -> None:
        found = next(item for item in data["variants"] if item["op"] == "copy")
        found["kernargs"].append({"name": "more", "type": "i64", "offset": 48, "size": 8, "value": "1"})
        found["kernarg_bytes"] = 56

    edit_index(small_copy, lengthen)
    values = ", ".join(f"{name}={value}" for name, value in variant.axis_values.items())
    where = f"{blob.file}: copy[{values}] {'aligned' if variant.aligned else 'general'} config 0"
    assert verify_bundle(small_copy) == [
        f"{where}: kernarg 'more' at offset 48 is not in the code object",
        f"{where}: it is launched with 56 kernarg bytes, the code object has 48",
    ]


def test_code_that_uses_what_nothing_defines(small_copy: Path, monkeypatch: pytest.MonkeyPatch):
    """Some loaders refuse such code; a linker lets it pass."""
    (first, *_), read = [*read_index(small_copy).blobs.values()], read_code_object
    image = read_blob(small_copy, first, "gfx942")
    monkeypatch.setattr(
        "aot_bundle.verification.read_code_object",
        lambda given: replace(read(given), undefined=("printf",)) if given == image else read(given),
    )
    assert verify_bundle(small_copy) == [f"{first.file} uses 'printf', which nothing in it defines"]


def arg(name: str, **fields: Any) -> Edit:
    def edit(index: dict[str, Any]) -> None:
        next(item for item in index["variants"][0]["kernargs"] if item["name"] == name).update(fields)

    return edit


def variant(**fields: Any) -> Edit:
    return lambda index: index["variants"][0].update(fields)


def test_resources(small_copy: Path):
    kinds = {"vgprs": "VGPRs", "agprs": "AGPRs", "sgprs": "SGPRs", "vgpr_spills": "spilled VGPRs"}
    kinds |= {"sgpr_spills": "spilled SGPRs", "scratch_bytes": "bytes of scratch", "code_bytes": "bytes of code"}
    edit_index(small_copy, lambda index: index["variants"][0]["resources"].update(dict.fromkeys(kinds, 3)))
    faults = [fault.rpartition(": ")[2] for fault in verify_bundle(small_copy)]
    assert [fault.partition(", the code object ")[0] for fault in faults] == [
        f"the index says 3 {kind}" for kind in kinds.values()
    ]


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda index: None, ""),
        (arg("cols", type="i16", size=2), "kernarg 'cols' at offset 16 is a value of 2 bytes, in the code object a "),
        (arg("cols", size=8, type="i64"), "overlaps another"),
        (arg("out", type="u64", value="3"), "'out' at offset 8 is a value of 8 bytes, in the code object a pointer"),
        (lambda index: index["variants"][0]["kernargs"].pop(1), "the code object has a pointer of 8 bytes at offset 8"),
        (variant(kernarg_bytes=72), "it is launched with 72 kernarg bytes, the code object has 56"),
        (variant(num_warps=2), "it is launched with 128 threads of a workgroup, the code object has 256"),
        (variant(warp_size=32, num_warps=8), "it is launched with 32 lanes of a wave, the code object has 64"),
        (variant(symbol="affine_cols"), "code object has no kernel 'affine_cols'; it has: affine_rows"),
        (lambda index: index["target"].update(arch="gfx950"), "is for gfx942, the bundle is for gfx950"),
        (lambda index: index["ops"][0]["launches"][0].update(grid=["rowz", "1", "1"]), "undefined name 'rowz'"),
        (lambda index: index["ops"].append(index["ops"][0] | {"name": "affinity"}), "op 'affinity' has no variants"),
        (lambda index: index["variants"].__delitem__(0), "is used by no variant"),
    ],
)
def test_an_index_that_disagrees_is_found(small_copy: Path, edit: Edit, fault: str):
    edit_index(small_copy, edit)
    faults = verify_bundle(small_copy)
    assert any(fault in line for line in faults) if fault else faults == [], faults


def change(file: str, edit: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    def damage(folder: Path) -> None:
        path = folder / file if file else first_code(folder)
        path.write_bytes(edit(path.read_bytes()))

    return damage


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (change("", lambda image: image[:-1] + b"!"), "was altered: its size or sha256 is not what the index says"),
        (change("", lambda image: b""), "was altered"),
        (lambda folder: first_code(folder).unlink(), "cannot be read: No such file or directory"),
        (lambda folder: (folder / "code/extra.hsaco").write_bytes(b"x"), "code/extra.hsaco is not in the index"),
        (lambda folder: (folder / "selftest/more.npz").write_bytes(b""), "selftest/more.npz is not in the index"),
        (lambda folder: (folder / "include/small.h").unlink(), "include/small.h cannot be read: No such file"),
        (change("stubs/small.pyi", lambda text: b"x"), "stubs/small.pyi belongs to another bundle"),
        (lambda folder: (folder / "bundle.json").unlink(), "is not a bundle: it has no bundle.json"),
        (change("bundle.json", lambda text: b"{"), "is not a bundle index"),
        (change("bundle.json", lambda text: text.replace(b'"role"', b'"rule"', 1)), "altered"),
    ],
)
def test_damage_is_one_fault(small_copy: Path, damage: Callable[[Path], Any], fault: str):
    damage(small_copy)
    (found,) = verify_bundle(small_copy)
    assert fault in found


def test_a_code_object_that_the_index_adopts(rows_bundles: Path, small_copy: Path):
    cubin = first_code(rows_bundles / "rows-sm_90").read_bytes()
    for content, fault in (
        (first_code(small_copy).read_bytes()[:-200], "code object is truncated"),
        (cubin, "is for sm_90, the bundle is for gfx942"),
    ):
        first_code(small_copy).write_bytes(content)
        adopt_files(small_copy)
        found = verify_bundle(small_copy)
        assert any(fault in line for line in found), found
