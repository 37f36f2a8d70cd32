"""docs/adopting.md: its code runs, and its claims about Triton hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.docs.markdown import blocks, section, table
from tests.support.session_builds import ROOT, build_once

PAGE = (ROOT / "docs/adopting.md").read_text(encoding="utf-8")
MANIFEST = ROOT / "examples/foreign/matmul.yaml"
TRITON = list(table(section(PAGE, "What Triton no longer supports")))

HEAD = """\
import triton
import triton.language as tl

PLAIN = 0.5
SCALE = tl.constexpr(0.5)


@triton.jit
def kernel(x, out, n):
    i = tl.arange(0, 32)
    v = tl.load(x + i)
    h = v.to(tl.float16)
    m = tl.load(x + i[:, None] * 32 + i[None, :])
"""
LOOP = "acc = {}\nfor k in range(n):\n    acc += v\ntl.store(out + i, acc)"
BODIES = {
    "tl.make_block_ptr(x, ...)": (
        "p = tl.make_block_ptr(x, (n, 32), (32, 1), (0, 0), (32, 32), (1, 0))",
        "d = tl.make_tensor_descriptor(x, [n, 32], [32, 1], [32, 32])\ntl.store(out + i, tl.sum(d.load([0, 0]), 1))",
    ),
    "tl._experimental_make_tensor_descriptor(x, ...)": (
        "d = tl._experimental_make_tensor_descriptor(x, [n, 32], [32, 1], [32, 32])",
        "d = tl.make_tensor_descriptor(x, [n, 32], [32, 1], [32, 32])",
    ),
    "tl.dot(a, b, trans_b=True)": ("tl.dot(m, m, trans_b=True)", "tl.dot(m, tl.trans(m))"),
    "tl.libdevice.exp(x)": ("tl.libdevice.exp(v)", "tl.exp(v)"),
    "tl.math.tanh(x)": ("tl.math.tanh(v)", "tl.extra.libdevice.tanh(v)"),
    "tl.math.max(x, y)": ("tl.math.max(v, v)", "tl.maximum(v, v)"),
    "x * SCALE": ("v * PLAIN", "v * SCALE"),
    "tl.exp(x)": ("tl.exp(h)", "tl.exp(h.to(tl.float32))"),
    "tl.load(p, other=0.0)": ("tl.load(x + i, other=0.0)", "tl.load(x + i)"),
    "x.to(tl.float8e4)": ("v.to(tl.float8e4)", "v.to(tl.float8e4nv)"),
    "a = b = 0": ("a = b = 0", "a = 0\nb = 0"),
    "acc = 0": (LOOP.format("0"), LOOP.format("tl.zeros([32], tl.float32)")),
}
"""The first code of a row → a body that has it, and one that has what is to be written instead."""


def front_end(folder: Path, body: str) -> None:
    """Read a kernel with this body as a build does, and compile it as far as Triton's own IR."""
    from aot.compile.jobs import CompileJob
    from aot.source.kernel_source import inspect_kernel
    from tests.support.building.front_end import accesses

    lines = "".join(f"    {line}\n" for line in body.splitlines())
    (folder / "k.py").write_text(HEAD + lines)
    inspect_kernel(folder, "k.py:kernel")
    signature = (("x", "*fp32"), ("out", "*fp32"), ("n", "i32"))
    accesses(CompileJob(str(folder), "k.py", "kernel", signature, (), (), (), (), "gfx942"))


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("row", TRITON, ids=lambda row: code(row[0])[0])
def test_what_triton_no_longer_takes(tmp_path: Path, row: list[str]):
    pytest.importorskip("triton")
    old, new = BODIES[code(row[0])[0]]
    said = row[1].replace("`", "").replace("SCALE", "PLAIN")
    with pytest.raises(Exception) as caught:
        front_end(tmp_path, old)
    assert said in str(caught.value).replace("`", "")
    front_end(tmp_path, new)


def test_what_triton_still_takes(tmp_path: Path):
    pytest.importorskip("triton")
    front_end(tmp_path, "tl.dot(m, m, allow_tf32=True)\ntl.dot(m, m, input_precision='ieee')")


def test_the_manifest_is_the_one_that_is_shown():
    pytest.importorskip("triton")
    from aot.cli import main

    (fragment,) = blocks(PAGE, "yaml")
    manifest = MANIFEST.read_text(encoding="utf-8")
    assert all(line in manifest.splitlines() for line in fragment.text.splitlines())
    result = CliRunner().invoke(main, ["--arch", "gfx942", "--dry-run", str(MANIFEST)])
    counted = re.search(r"(\d+) variants", result.output)
    assert counted, result.output
    assert f"counts the variants: {counted[1]}," in PAGE


@pytest.mark.slow
def test_its_python_runs(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "dist").symlink_to(build_once(tmp_path_factory, MANIFEST))
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(PAGE, "python")
    exec(block.text, {})
