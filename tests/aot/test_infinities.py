"""Infinite numbers from the manifest to the call and back."""

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from aot_bundle.command.main import main as aotbundle
from aot_bundle.verification import verify_bundle
from aot_runtime import open_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.index_file import decode_index
from aot_runtime.errors import ArgumentError, BundleError
from tests.support.building.selftests import project

FILLS = """\
import triton
import triton.language as tl


@triton.jit
def fill(x, out, cols, least, most, FILL: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr = float("-inf")):
    i = tl.arange(0, 16)
    value = tl.load(x + i, mask=i < cols)
    value = tl.where(value == 0, FILL, tl.where(value == 1, MOST, tl.where(value == 2, least, value)))
    value = tl.where(value == 3, most, tl.where(value == 4, LEAST, value))
    tl.store(out + i, value, mask=i < cols)
"""
MANIFEST = """\
bundle: tiny
ops:
  fill:
    tensors:
      x: {shape: [cols], dtype: float32}
      out: {shape: [cols], dtype: float32, role: output}
    scalars:
      fill: {type: fp32, default: -.inf, min: -.inf, max: .inf}
      least: {type: fp32, default: -1e999, max: 9}
    constexprs:
      FILL: {values: [-.inf, 0.0, .inf], pick: fill}
    specialisations: [general]
    reference: r.py:fill
    selftest:
      - {call: {cols: 10, fill: -.inf}, inputs: {x: {values: [.nan, 1, 2, 3, 4, 5, .inf, -.inf, 8, 9]}}}
    launches:
      - kernel: k.py:fill
        grid: [1]
        bind: {most: {value: .inf, type: fp32}}
        configs: [{blocks: {MOST: .inf}, options: {num_warps: 1}}]
"""
REFERENCE = """\
import numpy as np


def fill(x, fill, least):
    out = x.astype(np.float64)
    for value, other in ((0, fill), (1, np.inf), (2, least), (3, np.inf), (4, -np.inf)):
        out[x == value] = other
    return out


fill_same_dtype = fill
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = project(tmp_path_factory.mktemp("infinities"), MANIFEST, REFERENCE, FILLS)
    result = made.build()
    assert result.exit_code == 0, result.output
    return made.folder_of()


def test_an_infinite_axis_is_dispatched_by(built: Path):
    bundle = open_bundle(built, "emulator")
    x = np.array([0, 1, 2, 3, 4, 5], np.float32)
    inf = math.inf
    assert bundle.fill(x).tolist() == [-inf, inf, -inf, inf, -inf, 5]
    assert bundle.fill(x, fill=0.0, least=7.0).tolist() == [0, inf, 7, inf, -inf, 5]
    assert bundle.fill(x, fill=inf).tolist() == [inf, inf, -inf, inf, -inf, 5]
    for wrong in (math.nan, inf):
        with pytest.raises(ArgumentError, match="'least'"):
            bundle.fill(x, least=wrong)
    assert bundle.selftest().passed
    assert re.search(r"FILL +-inf", bundle.explain("fill", x))


def test_an_index_with_infinite_numbers(built: Path):
    assert verify_bundle(built) == []
    index = read_index(built)
    (op,) = index.ops
    assert op.axes[0].values == (-math.inf, 0.0, math.inf)
    assert {variant.axis_values["FILL"] for variant in index.variants} == {-math.inf, 0.0, math.inf}
    assert op.launches[0].configs[0].values["MOST"] == math.inf
    assert (op.scalars[0].min, op.scalars[0].max) == (-math.inf, math.inf)
    assert index.selftest[0].scalars == {"fill": -math.inf}
    text = (built / "bundle.json").read_text()
    assert json.loads(text)["ops"][0]["axes"][0]["values"] == [{"float": "-inf"}, 0.0, {"float": "inf"}]
    start = text.index("{", text.index('"values":[', text.index('"axes"')))
    for wrong in ('{"float": "nan"}', '{"float": "1"}', "{}", "null"):
        altered = text[:start] + wrong + text[text.index("}", start) + 1 :]
        with pytest.raises(BundleError, match="is not a bundle index"):
            decode_index(altered.encode())


def test_what_is_shown_of_infinite_numbers(built: Path):
    """The command, the header and the stub show them."""
    shown = CliRunner().invoke(aotbundle, ["show", str(built), "--variants"])
    assert "FILL=-inf" in shown.output, shown.output
    as_json = CliRunner().invoke(aotbundle, ["show", str(built), "--json"]).output
    data = json.loads(as_json, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert data["variants"][0]["axis_values"] == {"FILL": {"float": "-inf"}}
    header = built / "include/tiny_variants.h"
    assert "FILL=-inf" in header.read_text() and "FILL=inf" in header.read_text()
    assert shutil.which("cc") and subprocess.run(["cc", "-fsyntax-only", "-xc", str(header)]).returncode == 0
    compile((built / "stubs/tiny.pyi").read_text(), "tiny.pyi", "exec")
