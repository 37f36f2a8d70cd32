"""Infinite numbers from the manifest to the call and back; NaN is refused where it is written."""

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from aot_runtime import open_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.bundle.verification import verify_bundle
from aot_runtime.command.main import main as aotbundle
from aot_runtime.contract.records import decode_index
from aot_runtime.errors import ArgumentError, BundleError
from tests.support.building.builds import Project
from tests.support.building.projects import edit, position

FILLS = """\
import triton
import triton.language as tl


@triton.jit
def fill_rows(
    x, out, cols, stride_x_rows, stride_out_rows, least, given_most, FILL: tl.constexpr, MOST: tl.constexpr,
    BLOCK: tl.constexpr, LEAST: tl.constexpr = float("-inf"),
):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride_x_rows + i, mask=i < cols)
    value = tl.where(value == 0, FILL, tl.where(value == 1, MOST, tl.where(value == 2, least, value)))
    value = tl.where(value == 3, given_most, tl.where(value == 4, LEAST, value))
    tl.store(out + row * stride_out_rows + i, value, mask=i < cols)
"""

MANIFEST = """\
bundle: tiny
ops:
  fill:
    tensors:
      x: {shape: [rows, cols], dtype: float32}
      out: {shape: [rows, cols], dtype: float32, role: output}
    scalars:
      fill: {type: fp32, default: -.inf, min: -.inf, max: 0}
      least: {type: fp32, default: -1e999, max: .inf}
    constexprs:
      FILL: {values: [-.inf, 0.0], pick: fill}
    specialisations: [general]
    reference: r.py:fill
    selftest:
      - {call: {rows: 2, cols: 5, fill: -.inf}, inputs: {x: {values: [0, 1, 2, 3, 4, 5, .inf, -.inf, 8, 9]}}}
    launches:
      - kernel: k.py:fill_rows
        grid: [rows]
        bind: {given_most: {value: .inf, type: fp32}}
        configs: [{blocks: {BLOCK: 16, MOST: .inf}, options: {num_warps: 1}}]
"""

REFERENCE = """\
import numpy as np


def fill(x, fill, least):
    out = x.astype(np.float64)
    for value, other in ((0, fill), (1, np.inf), (2, least), (3, np.inf), (4, -np.inf)):
        out[x == value] = other
    return out


def fill_same_dtype(x, fill, least):
    return fill_exactly(x, fill, least).astype(np.float32)


fill_exactly = fill
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("infinities")
    project = Project(folder, MANIFEST, FILLS)
    (folder / "r.py").write_text(REFERENCE)
    result = project.build()
    assert result.exit_code == 0, result.output
    return project.output / "tiny-gfx942"


def test_an_infinite_axis_is_dispatched_by(built: Path):
    bundle = open_bundle(built, "emulator")
    x = np.array([[0, 1, 2, 3, 4, 5]], np.float32)
    inf = np.inf
    assert bundle.fill(x).tolist() == [[-inf, inf, -inf, inf, -inf, 5]]
    assert bundle.fill(x, fill=0.0, least=7.0).tolist() == [[0, inf, 7, inf, -inf, 5]]
    assert bundle.fill(x, fill=-inf, least=inf).tolist() == [[-inf, inf, inf, inf, -inf, 5]]
    with pytest.raises(ArgumentError, match="'least' is nan; allowed: -inf to inf"):
        bundle.fill(x, least=math.nan)
    with pytest.raises(ArgumentError, match="'fill' is inf; allowed: -inf to 0"):
        bundle.fill(x, fill=inf)
    assert bundle.selftest().passed
    assert re.search(r"FILL +-inf", bundle.explain("fill", x))


def test_an_index_with_infinite_numbers(built: Path):
    assert verify_bundle(built) == []
    index = read_index(built)
    (op,) = index.ops
    assert op.axes[0].values == (-math.inf, 0.0)
    assert {variant.axis_values["FILL"] for variant in index.variants} == {-math.inf, 0.0}
    assert op.launches[0].configs[0].values["MOST"] == math.inf
    assert (op.scalars[0].min, op.scalars[1].max) == (-math.inf, math.inf)
    assert index.selftest[0].scalars == {"fill": -math.inf}
    text = (built / "bundle.json").read_text()
    assert json.loads(text)["ops"][0]["axes"][0]["values"] == [{"float": "-inf"}, 0.0]
    assert "null" not in text


def test_what_is_shown_of_infinite_numbers(built: Path):
    shown = CliRunner().invoke(aotbundle, ["show", str(built)])
    assert "FILL=-inf" in shown.output, shown.output
    as_json = CliRunner().invoke(aotbundle, ["show", str(built), "--json"]).output
    data = json.loads(as_json, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert data["variants"][0]["axis_values"] == {"FILL": {"float": "-inf"}}
    assert data["selftest"][0]["scalars"] == {"fill": {"float": "-inf"}}


def test_the_header_tells_infinite_axes_apart(tmp_path: Path):
    text = edit(MANIFEST, ("values: [-.inf, 0.0]", "values: [-.inf, .inf]"), ("max: 0", "max: .inf"))
    project = Project(tmp_path, text, FILLS)
    (tmp_path / "r.py").write_text(REFERENCE)
    assert project.build().exit_code == 0
    header = project.output / "tiny-gfx942/include/tiny.h"
    assert "FILL=-inf" in header.read_text() and "FILL=inf" in header.read_text()
    assert shutil.which("cc") and subprocess.run(["cc", "-fsyntax-only", "-xc", str(header)]).returncode == 0
    compile((project.output / "tiny-gfx942/stubs/tiny.pyi").read_text(), "tiny.pyi", "exec")


@pytest.mark.parametrize(
    ("old", "new", "at"),
    [
        ("values: [-.inf, 0.0]", "values: [-.inf, .nan]", ".nan"),
        ("max: 0}", "max: .nan}", "max: .nan"),
        ("min: -.inf", "min: .nan", "min: .nan"),
        ("default: -.inf", "default: .nan", "default: .nan"),
        ("value: .inf", "value: .nan", "value: .nan"),
        ("MOST: .inf", "MOST: .nan", "MOST: .nan"),
        ("fill: -.inf}", "fill: .nan}", "fill: .nan"),
        ("num_warps: 1", "num_warps: .inf", "num_warps: .inf"),
        ("cols: 5, fill: -.inf}", "cols: 5}, floor: .nan", "floor: .nan"),
        ("cols: 5, fill: -.inf}", "cols: 5}, floor: .inf", "floor: .inf"),
        ("{values: [0, 1, 2, 3, 4, 5, .inf, -.inf, 8, 9]}", "{std: .inf}", "std: .inf"),
        ("{values: [0, 1, 2, 3, 4, 5, .inf, -.inf, 8, 9]}", "{range: [0, .nan]}", ".nan"),
        ("value: .inf", "value: 1e999 - 1e999", "given_most: {"),
    ],
)
def test_nan_is_refused_where_it_is_written(tmp_path: Path, old: str, new: str, at: str):
    project = Project(tmp_path, edit(MANIFEST, (old, new)), FILLS)
    (tmp_path / "r.py").write_text(REFERENCE)
    result = project.build("--dry-run")
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"aotbuild: error: {position(project.manifest, at)}: ")
    assert "NaN" in line or "finite" in line


def test_nan_may_be_an_input(tmp_path: Path):
    project = Project(tmp_path, edit(MANIFEST, ("[0, 1, 2, 3, 4, 5,", "[.nan, 1, 2, 3, 4, 5,")), FILLS)
    (tmp_path / "r.py").write_text(REFERENCE)
    assert project.build().exit_code == 0
    assert open_bundle(project.output / "tiny-gfx942", "emulator").selftest().passed


@pytest.mark.parametrize("wrong", ['{"float": "nan"}', '{"float": "1"}', "{}", "null"])
def test_what_is_no_number_of_an_index(built: Path, wrong: str):
    text = (built / "bundle.json").read_text()
    start = text.index("{", text.index('"values": [', text.index('"axes"')))
    altered = text[:start] + wrong + text[text.index("}", start) + 1 :]
    with pytest.raises(BundleError, match="is not a bundle index"):
        decode_index(altered.encode())
