"""`aotbundle diff` prints the differences between two bundles, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot_bundle.command.comparing.bundles import compare
from aot_bundle.command.comparing.changes import MOST_LETTERS
from aot_bundle.packing import merge_bundles, pack_bundle
from aot_runtime.contract import records
from tests.support.building.builds import Project
from tests.support.building.projects import KERNELS, SCALE, edit
from tests.support.command import aotbundle
from tests.support.forging import edit_index

Tree = dict[str, Any]


def diff(*words: object, status: int = 1) -> list[str]:
    result = aotbundle("diff", *words)
    assert result.exit_code == status, result.output
    return [line.strip() for line in result.output.splitlines()]


def edited(small_bundle: Path, tmp_path: Path, change: Callable[[Tree], Any]) -> Path:
    folder = Path(shutil.copytree(small_bundle, tmp_path / "small-gfx942"))
    edit_index(folder, change)
    return folder


def test_the_same(small_bundle: Path, tmp_path: Path):
    pack_bundle(small_bundle, tmp_path / "small.aotb")
    assert diff(small_bundle, tmp_path / "small.aotb", status=0)[-1] == "they are the same bundle"
    found = json.loads("".join(diff(small_bundle, small_bundle, "--json", status=0)))
    assert found["same"] and [item["ops"] for item in found["bundles"]] == [[]]


def at(index: Tree, op: str) -> Tree:
    return next(item for item in index["ops"] if item["name"] == op)


def named(items: list[Tree], name: str) -> Tree:
    return next(item for item in items if item["name"] == name)


CONTRACT = [
    (lambda op: named(op["scalars"], "scale").update(default="1.0"),
     "scalar scale: default was cols ** (-0.5), is 1.0"),
    (lambda op: named(op["scalars"], "scale").pop("default"), "scalar scale: default was cols ** (-0.5), is not set"),
    (lambda op: named(op["tensors"], "bias").update(optional=False), "tensor bias: optional was yes, is no"),
    (lambda op: op["dims"][0].update(max=99), "dim cols: max was 4096, is 99"),
    (lambda op: op.update(require=["rows > 1"]), "require is new: rows > 1"),
    (lambda op: named(op["tensors"], "bias")["shape"][0].update(broadcast=False),
     "tensor bias: shape was [rows|1, cols], is [rows, cols]"),
    (lambda op: op.update(doc="other words"), "doc was out = ±(x * scale + bias) + shift., is other words"),
    (lambda op: op["denied"].clear(),
     "left out on purpose: T == 'float16' and NEGATED is gone; it was when T == 'float16' and NEGATED, "
     "reason nobody asks for it"),
    (lambda op: op["scalars"].reverse(),
     "order of scalars was scalar scale, scalar shift, scalar mode, is scalar mode, scalar shift, scalar scale"),
    (lambda op: op["derived"].append({"name": "twice", "value": "cols * 2"}),
     "derived value twice is new: value cols * 2"),
    (lambda op: named(op["scalars"], "mode").update(choices=["plain", "negated", "none"]),
     "scalar mode: choices is new: none"),
    (lambda op: op["launches"][0].update(grid=["rows", "1", "1"]),
     "launch affine_rows: grid was [rows, cdiv(cols, BLOCK), 1], is [rows, 1, 1]"),
    (lambda op: named(op["launches"][0]["configs"], "wide").update(when="cols > 64"),
     "launch affine_rows: config wide: when was cols > 128, is cols > 64"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "text"), CONTRACT, ids=[str(text)[:30] for _, text in CONTRACT])
def test_contracts_in_words(small_bundle: Path, tmp_path: Path, change: Callable[[Tree], Any], text: str):
    def apply(index: Tree) -> None:
        op = at(index, "affine")
        op.setdefault("derived", [])
        change(op)

    other = edited(small_bundle, tmp_path, apply)
    (found,) = compare(small_bundle, other).ops
    assert (found.op, found.state, [str(item) for item in found.contract]) == ("affine", "changed", [text])
    assert not (found.added or found.removed or found.changed)
    (backwards,) = compare(other, small_bundle).ops[0].contract
    assert (backwards.what, backwards.new, backwards.old) == (
        found.contract[0].what, found.contract[0].old, found.contract[0].new,
    )  # fmt: skip


def test_ops_and_variants_that_come_and_go(small_bundle: Path, tmp_path: Path):
    """A new value of an axis is reported once for all its variants; others are reported one by one."""

    def change(index: Tree) -> None:
        index["ops"] = [op for op in index["ops"] if op["name"] != "ramp"]
        index["selftest"] = [case for case in index["selftest"] if case["op"] != "ramp"]
        index["variants"] = [
            item for item in index["variants"]
            if item["op"] != "ramp" and not (item["op"] == "affine" and item["axis_values"]["T"] == "float16")
        ]  # fmt: skip
        general = [item for item in index["variants"] if item["op"] == "affine" and not item["aligned"]]
        index["variants"].remove(general[0])

    other = edited(small_bundle, tmp_path, change)
    lines = diff(small_bundle, other)
    ops = {op.op: op for op in compare(small_bundle, other).ops}
    assert ops.keys() == {"ramp", "affine"} and ops["ramp"].state == "gone"
    assert [group.what for group in ops["affine"].removed] == ["T=float16", ""]
    left = ops["affine"].removed[1].variants
    assert len(left) == 1 and "general" in left[0] and left[0] in lines
    gone = len(ops["affine"].removed[0].variants)
    assert f"gone: {gone} variants of T=float16" in lines and "gone: 1 variant of values in both" in lines
    assert any(line.startswith("is gone, with ") for line in lines)
    assert any(line.startswith("case ") and line.endswith(" of ramp is gone") for line in lines)
    back = {op.op: op for op in compare(other, small_bundle).ops}
    assert back["ramp"].state == "new" and back["affine"].added == ops["affine"].removed


def test_what_variants_take(small_bundle: Path, tmp_path: Path):
    changed: list[Tree] = []

    def change(index: Tree) -> None:
        changed[:] = [item for item in index["variants"] if item["op"] == "affine"][:3]
        for more, item in zip((1, 4, -2), changed, strict=True):
            item["resources"]["vgprs"] += more
        changed[0]["resources"]["vgpr_spills"] = 7
        changed[1]["options"] = {**changed[1]["options"], "waves_per_eu": 9}

    other = edited(small_bundle, tmp_path, change)
    lines = diff(small_bundle, other, "--variants")
    assert "VGPRs: fewer in 1 (at most -2), more in 2 (at most +4)" in lines
    assert "spills: more in 1 (at most +7)" in lines
    named = [line for line in lines if line.startswith("changed: ")]
    assert len(named) == 3 and "VGPRs was " in named[0] and "spills was 0, is 7" in named[0]
    assert "option waves_per_eu" in named[1] and "is 9" in named[1] and "other code" not in named[1]


def test_how_it_was_built_and_its_selftest(small_bundle: Path, tmp_path: Path):
    def change(index: Tree) -> None:
        index["toolchain"]["compiler"] = "triton 4"
        options = json.loads(index["toolchain"]["options"])
        first = next(name for name, value in options.items() if value is False)
        index["toolchain"]["options"] = json.dumps({**options, first: True})
        index["version"] = "2.0"
        definition = index["provenance"]["buildDefinition"]
        definition["externalParameters"]["filter"] = "op=affine"
        definition["resolvedDependencies"][0]["digest"] = {"sha256": "f" * 64}
        named(index["selftest"], "plain")["bounds"]["out"] = 0.5
        named(index["selftest"], "negated")["name"] = "renamed"

    found = compare(small_bundle, edited(small_bundle, tmp_path, change))
    assert [str(item) for item in found.bundle] == ["version was not set, is 2.0"]
    compiler, option = map(str, found.toolchain)
    assert compiler.startswith("compiler was triton") and compiler.endswith(", is triton 4")
    assert option.startswith("option ") and option.endswith(" was no, is yes")
    provenance = [str(item) for item in found.provenance]
    assert any(text.startswith("parameter filter was ") and text.endswith("is op=affine") for text in provenance)
    assert any(text.endswith("is sha256 ffffffffffff") for text in provenance) and len(provenance) == 2
    cases = [str(item) for item in found.selftest]
    assert cases[0].startswith("case plain of affine: bounds out was ") and cases[0].endswith(", is 0.5")
    assert cases[1:] == ["case negated of affine is gone", "case renamed of affine is new"]
    assert not found.ops


@pytest.mark.slow
def test_code(tmp_path: Path):
    """Another kernel's instructions differ. With source lines the code objects differ, but not the instructions."""
    pytest.importorskip("tinygrad", reason="instructions are read with the extra `emulator`")
    only = ("--filter", "block=16")
    projects = [Project(tmp_path / name, SCALE, kernels) for name, kernels in (
        ("old", KERNELS), ("new", edit(KERNELS, ("value * factor", "value * factor * factor"))),
    )]  # fmt: skip
    old, new = (project.folder_of() for project in projects if project.build(*only).exit_code == 0)
    (op,) = compare(old, new, code=True).ops
    assert len(op.changed) == 4 and all(item.code for item in op.changed)
    told = {item.what: (item.old, item.new) for item in op.instructions}
    assert told["code objects with other instructions"] == ("4", "4")
    assert int(told["instructions, all"][1] or 0) > int(told["instructions, all"][0] or 0)
    assert any(name.startswith(("instructions, v_mul", "instructions, v_pk_mul")) for name in told)
    assert "4 variants, now 4: 0 new, 0 gone, 4 changed, 4 of them with other code" in diff(old, new, "--isa")
    lines = tmp_path / "lines"
    assert projects[0].build(*only, "--line-info", "-o", str(lines)).exit_code == 0
    (op,) = compare(old, lines / "tiny-gfx942", code=True).ops
    assert [str(item) for item in op.instructions] == ["code objects with other instructions was 4, is 0"]


def test_of_several_bundles(rows_bundles: Path, small_bundle: Path, tmp_path: Path):
    """Bundles with the same name and architecture are compared; the others are listed alone."""
    folders = [rows_bundles / f"rows-{arch}" for arch in ("gfx942", "sm_90")]
    merge_bundles(folders, tmp_path / "rows.aotb")
    assert diff(tmp_path / "rows.aotb", rows_bundles, status=0).count("they are the same bundle") == 2
    (tmp_path / "some").mkdir()
    shutil.copytree(folders[1], tmp_path / "some/rows-sm_90")
    shutil.copytree(small_bundle, tmp_path / "some/small-gfx942")
    lines = diff(tmp_path / "rows.aotb", tmp_path / "some")
    assert lines.count("they are the same bundle") == 1
    assert f"{tmp_path}/rows.aotb/gfx942 was removed" in lines
    assert f"{tmp_path}/some/small-gfx942 is new" in lines
    lines = diff(*folders)
    assert "architecture was gfx942, is sm_90" in lines and "option arch was gfx942, is sm90" in lines
    shutil.copytree(folders[1], tmp_path / "some/again")
    assert "are both bundle 'rows' for sm_90" in " ".join(diff(tmp_path / "rows.aotb", tmp_path / "some", status=2))


def test_what_cannot_be_compared(small_bundle: Path, rows_bundles: Path, tmp_path: Path):
    """The exit status is 2, since 1 says that they differ."""
    assert "does not exist" in diff(small_bundle, tmp_path / "none", status=2)[-1]
    (tmp_path / "bundle.json").write_text("{}")
    assert "is not a bundle index" in diff(tmp_path, small_bundle, status=2)[-1]
    result = diff(rows_bundles / "rows-sm_90", rows_bundles / "rows-gfx942", "--isa", status=2)
    assert "reading the instructions of cubins is not supported" in result[-1]


def test_texts_that_are_forged_stay_in_their_line(sample: records.Index, sample_folder: Path, tmp_path: Path):
    other = Path(shutil.copytree(sample_folder, tmp_path / "other"))
    text = "\x1b[31m\n" + "x" * 100_000

    def forge(index: Tree) -> None:
        index["ops"][0]["doc"] = text
        index["toolchain"] = {"compiler": text, text: text}

    edit_index(other, forge)
    result = aotbundle("diff", sample_folder, other)
    assert result.exit_code == 1 and "\x1b" not in result.output
    assert all(len(line) < 4 * MOST_LETTERS for line in result.output.splitlines())
