"""Small projects whose ops have selftest cases."""

from pathlib import Path

from .builds import Project
from .projects import KERNELS, SCALE

REFERENCE = """\
import numpy as np


def scale(x, factor):
    return x.astype(np.float64) * factor


def scale_same_dtype(x, factor):
    return (x.astype(np.float32) * np.float32(factor)).astype(x.dtype)
"""
CASES = """\
    reference: r.py:scale
    selftest:
      - {name: small, call: {rows: 3, cols: 7, T: float16, factor: 0.1}}
      - {call: {rows: 2, cols: 32, T: float32, factor: 3}, inputs: {x: {std: 5}}, floor: 1.0e-4, seed: 9}
"""
SCALE_CASES = SCALE + CASES

INTEGERS = """\
bundle: tiny
ops:
  pick:
    reference: r.py:pick
    tensors:
      x: {shape: [n], dtype: float32}
      starts: {shape: [m + 1], dtype: int8}
      mask: {shape: [n], dtype: bool, optional: true}
      out: {shape: [n], dtype: int32, role: output}
    constexprs:
      MASKED: {values: [false, true], pick: given(mask)}
    launches:
      - kernel: k.py:pick
        grid: [1]
    selftest:
      - call: {n: 40, m: 29}
        inputs: {starts: {range: [-2, 3]}}
"""
PICK = """\
import triton
import triton.language as tl


@triton.jit
def pick(x, starts, mask, out, n, m, MASKED: tl.constexpr):
    pass
"""
PICK_REFERENCE = """\
import numpy as np


def pick(x, starts, mask=None):
    return np.arange(len(x)) if mask is None else np.where(mask, np.arange(len(x)) - 0.5, starts[0])


def pick_same_dtype(x, starts, mask=None):
    return np.rint(pick(x, starts, mask)).astype(np.int32)
"""


def project(folder: Path, manifest: str = SCALE_CASES, reference: str = REFERENCE, kernels: str = KERNELS) -> Project:
    made = Project(folder, manifest, kernels)
    (folder / "r.py").write_text(reference)
    return made


def picks(folder: Path, manifest: str = INTEGERS) -> Project:
    return project(folder, manifest, PICK_REFERENCE, PICK)
