"""`aotbundle ls` and `show`: bundles and variants as tables."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from aot_bundle.command.tables import summary_lines, variants_lines
from aot_bundle.command.variants import variant_rows
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract import records
from tests.support.command import aotbundle


def test_ls_counts_bundles_and_ops(rows_bundles: Path):
    result = aotbundle("ls", rows_bundles)
    lines = [line.split() for line in result.output.splitlines()][1:]
    folders = [str(rows_bundles / name) for name in ("rows-gfx942", "rows-sm_90")]
    assert result.exit_code == 0 and [line[0] for line in lines] == [folders[0], "softmax", folders[1], "softmax"]
    index = read_index(rows_bundles / "rows-gfx942")
    size = sum(blob.size for blob in index.blobs.values())
    counts = [str(len(index.variants)), str(len(index.blobs)), f"{size / 1024:.1f}", "KiB"]
    assert lines[0][1:] == [index.version, "gfx942", *counts, index.id[:12]]
    assert lines[1][1:3] == lines[0][3:5]


def test_ls_goes_on_after_a_bundle_that_cannot_be_read(small_copy: Path):
    bad = small_copy.parent / "bad"
    bad.mkdir()
    (bad / records.INDEX).write_text("{}")
    result = aotbundle("ls", small_copy.parent)
    assert result.exit_code == 1
    assert "gfx942" in result.stdout and "unreadable" in result.stdout and str(bad) in result.stderr


def test_show(sample: records.Index, sample_folder: Path):
    """Every variant is shown; a pipe gets every column."""
    lines = aotbundle("show", sample_folder, "--variants").output.splitlines()
    assert sum(" yes " in line or " no " in line for line in lines) == len(sample.variants)
    launches = [line for line in lines if ", launch " in line]
    assert launches == ["reduce, launch 0: reduce_rows", "reduce, launch 1: add_partial", "swap, launch 0: swap"]
    assert f"reduce: {len(sample.variants) - 2} variants, 2 code objects, 4.0 KiB of code" in lines
    assert [line for line in lines if "selftest" in line] == ["reduce: selftest cases weighted"]
    start = lines.index("warning: 6 of 74 variants spill registers:")
    assert lines[start + 1] == "  reduce[float16 WEIGHTED WIDTH=4096] aligned, wide: 17 VGPRs, 0 SGPRs"
    assert len(lines[start + 1 :]) == 6
    lines = aotbundle("show", sample_folder, "--variants", "--op", "reduce").output.splitlines()
    heading = next(line for line in lines if "VARIANT" in line)
    row = next(line for line in lines if "float16 WEIGHTED WIDTH=4096" in line and " yes " in line)
    titles = "VARIANT ALIGNED CONFIG VGPR AGPR SGPR SPILLS SCRATCH LDS THREADS WAVES CODE FILE"
    assert " ".join(heading.split()) == titles
    shown = "float16 WEIGHTED WIDTH=4096 yes wide 256 4 30 17+0 68 1024 256 2 vgprs 4096 bbbbbbbb"
    assert " ".join(row.split()) == shown
    assert not any("swap" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_show_fits_a_terminal(sample: records.Index, width: int):
    point = {f"FLAG_{number}": True for number in range(20)}
    row = dataclasses.replace(variant_rows(sample)[0], axis_values=point)
    lines = list(variants_lines(sample, [row], width))
    assert max(map(len, lines)) <= width
    assert ("SCRATCH" in str(lines)) == (width == 120)
    shown = " ".join(lines[lines.index(next(line for line in lines if "VARIANT" in line)) + 1 :])
    assert all(name in shown.split() for name in point)


def test_show_sums_up_by_op_and_config(sample: records.Index):
    lines = list(summary_lines(sample, variant_rows(sample), 80))
    assert max(map(len, lines)) <= 80
    assert [line.split()[:2] for line in lines[1:11]] == [
        ["OP,", "CONFIG"], ["reduce", "72"], ["reduce_rows", "48"], ["long", "12"], ["wide", "12"], ["base", "24"],
        ["add_partial", "24"], ["swap", "2"], [], ["reduce:", "72"],
    ]  # fmt: skip
    assert lines[5].split() == ["wide", "12", "64-256", "30", "0-17", "1.0", "KiB", "2", "4.0", "KiB"]
    assert lines[-1] == "warning: 6 of 74 variants spill registers; --variants shows which"


def test_show_json_is_the_index(small_bundle: Path):
    assert "warning" not in aotbundle("show", small_bundle).output
    shown = json.loads(aotbundle("show", small_bundle, "--json").output)
    index = read_index(small_bundle)
    assert (shown["name"], shown["arch"], shown["id"]) == ("small", "gfx942", index.id)
    cases = [(case.op, case.name, case.bounds) for case in index.selftest]
    assert cases and [(case["op"], case["name"], case["bounds"]) for case in shown["selftest"]] == cases
    for row, variant in zip(shown["variants"], index.variants, strict=True):
        assert row["file"] == index.blobs[variant.code].file
        assert row["block_threads"] == variant.num_warps * variant.warp_size
        for holder, names in (
            (variant, ("axis_values", "symbol", "aligned", "lds_bytes")),
            (variant.resources, ("vgprs", "sgprs", "code_bytes")),
        ):
            assert {name: row[name] for name in names} == {name: getattr(holder, name) for name in names}
