"""Small projects of a manifest and its kernels, written where a test wants them."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from aot.manifest.loading import Manifest, load_manifest
from aot.manifest.yamlfile import ManifestError
from aot.plan.contract import build_contract
from aot_runtime.contract import records

OPTIONS = frozenset({"num_warps", "num_stages", "waves_per_eu"})

KERNELS = """\
import triton
import triton.language as tl


@triton.jit
def scale_rows(x, out, cols, stride_x_rows, stride_out_rows, factor, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride_x_rows + i, mask=i < cols)
    tl.store(out + row * stride_out_rows + i, (value * factor).to(out.dtype.element_ty), mask=i < cols)
"""

SCALE = """\
bundle: tiny
ops:
  scale:
    tensors:
      x: {shape: [rows, cols], dtype: T}
      out: {shape: [rows, cols], dtype: T, role: output}
    scalars:
      factor: {type: fp32}
    dtypes: {T: [float16, float32]}
    constexprs:
      BLOCK: {values: [16, 32], pick: smallest >= cols}
    launches:
      - kernel: k.py:scale_rows
        grid: [rows]
        configs: [{options: {num_warps: 1}}]
"""
"""8 variants: two dtypes, two blocks, aligned and general."""

EVERYTHING = """\
bundle: tiny
ops:
  scale:
    tensors:
      x: {shape: [rows, cols], dtype: T}
      bias: {shape: [rows|1, cols], dtype: T, optional: true}
      out: {shape: [rows, cols], dtype: T, role: output}
      top: {shape: [rows], dtype: float32, role: output, when: return_top}
    scalars:
      factor: {type: fp32, default: cols ** -0.5}
      return_top: {type: flag, default: false}
      mode: {type: choice, values: [fast, exact], default: fast}
    dims: {cols: {max: 4096}}
    require: [cols % 2 == 0]
    dtypes: {T: [float16, float32]}
    derived: {chunks: "cdiv(cols, 16)"}
    divisible: [cols]
    constexprs:
      BLOCK: {values: [16, 64], pick: smallest >= cols}
      BIASED: {values: [false, true], pick: given(bias)}
      TOP: {values: [false, true], pick: return_top}
    exclude: [TOP and BIASED]
    overrides: [{when: BLOCK == 64, options: {num_stages: 1}}]
    workspace: {partial: {shape: [rows, chunks], dtype: float32}}
    launches:
      - kernel: k.py:scale_rows
        grid: [rows]
        when: rows > 0
        configs:
          - {name: wide, when: cols > 32, blocks: {WIDTH: 4}, options: {num_warps: 8}}
          - {name: base, blocks: {WIDTH: 2}, options: {num_warps: 4}}
"""
"""An op with some of everything; its contract is sound, and no kernel goes with it."""


def tuning(launches: str, arch: str = "gfx942") -> str:
    """Return a tuning file for one architecture; `launches` in flow style, or a block that is indented by six."""
    return f"tuning:\n  - arch: [{arch}]\n    modelled: {{by: registers}}\n    launches: {launches}\n"


def rows(table: str) -> list[list[str]]:
    r"""Read a table from text: cells are separated by ` -> `, an indented line goes on with the row above, and `\n`
    ends a line within a cell."""
    lines = re.sub(r"\n +", " ", table.strip("\n")).splitlines()
    return [line.replace("\\n", "\n").split(" -> ") for line in lines]


def edit(text: str, *changes: Sequence[str]) -> str:
    """Return `text` with each `old`, which it has exactly once, replaced by its `new`."""
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    return text


def write_project(folder: Path, manifest: str, kernels: str = KERNELS) -> Path:
    """Write `m.yaml` and `k.py` to a folder; return the manifest's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "k.py").write_text(kernels)
    (folder / "m.yaml").write_text(manifest)
    return folder / "m.yaml"


def unmarked(text: str) -> tuple[str, str]:
    """Return (`line:column` of the `@` in a text, the text without it)."""
    before, mark, after = text.partition("@")
    assert mark and "@" not in after
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}", before + after


def load(folder: Path, text: str) -> Manifest:
    return load_manifest(write_project(folder, text))


def contract(folder: Path, text: str, arch: str = "gfx942") -> records.Op:
    """Return the contract of the only op of a manifest."""
    manifest = load(folder, text)
    (op,) = manifest.spec.ops
    return build_contract(manifest, op, arch, OPTIONS)


def check_fault(folder: Path, text: str, message: str, read: Callable[[Path, str], Any] = contract) -> None:
    """Check that reading a manifest gives exactly one fault: `message`, at the `@` in its text."""
    place, plain = unmarked(text)
    with pytest.raises(ManifestError) as caught:
        read(folder, plain)
    assert caught.value.messages == (f"{folder / 'm.yaml'}:{place}: {message}",)


def check_row(
    folder: Path, text: str, row: Sequence[str], about: str = "", read: Callable[..., Any] = contract
) -> None:
    """Apply `check_fault` to a row of a table: pairs of old and new text in a manifest, and then the message."""
    *cells, message = row
    check_fault(folder, edit(text, *zip(cells[::2], cells[1::2], strict=True)), about + message, read)
