"""Small projects of a manifest and its kernels, written where a test wants them. Imported as `manifest.projects`."""

from __future__ import annotations

from pathlib import Path

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
    """A tuning file for one architecture; `launches` in flow style, or a block that is indented by six."""
    return f"tuning:\n  - arch: [{arch}]\n    modelled: {{by: registers}}\n    launches: {launches}\n"


def edit(text: str, *changes: tuple[str, str]) -> str:
    """`text` with each `old` (which it has exactly once) replaced by its `new`."""
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    return text


def write_project(folder: Path, manifest: str, kernels: str = KERNELS) -> Path:
    """Write `m.yaml` and `k.py` to a folder; returns the manifest's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "k.py").write_text(kernels)
    (folder / "m.yaml").write_text(manifest)
    return folder / "m.yaml"


def position(path: Path, fragment: str) -> str:
    """`file:line:column` of a fragment that a file has exactly once."""
    text = path.read_text()
    assert text.count(fragment) == 1, f"{fragment!r} is there {text.count(fragment)} times"
    before = text[: text.index(fragment)]
    return f"{path}:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def load(folder: Path, text: str) -> Manifest:
    return load_manifest(write_project(folder, text))


def contract(folder: Path, text: str, arch: str = "gfx942") -> records.Op:
    """The contract of the only op of a manifest."""
    manifest = load(folder, text)
    (op,) = manifest.spec.ops
    return build_contract(manifest, op, arch, OPTIONS)


def contract_fault(folder: Path, text: str) -> str:
    """The one fault that a manifest's contract has."""
    with pytest.raises(ManifestError) as caught:
        contract(folder, text)
    (message,) = caught.value.messages
    return message
