"""The fault of tinygrad's attention kernel for RDNA, planted in ours: the suite notices it, its own test does not.

There, what meets V are exponentials relative to the maximum of the block of keys, not to that of the row so far: each
lacks the factor exp(block maximum - row maximum), which the sum that the result is divided by does have.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from aot_runtime import Bundle, open_bundle
from kernels.attention.reference import attention
from tests.ops.attention.building import ROOT
from tests.ops.attention.cases import Case, make_call
from tests.ops.attention.checking import check

RIGHT, WRONG = "return p, rescale", "return p * tl.exp2(origin - block_max)[:, None], rescale"
ARCH = "gfx1100"
MANIFEST = """
bundle: attention
ops:
  flash_attention:
    tensors:
      q: {shape: [batch, heads, seqlen_q, head_dim], dtype: float16}
      k: {shape: [batch, heads_kv, seqlen_k, head_dim], dtype: float16}
      v: {shape: [batch, heads_kv, seqlen_k, head_dim], dtype: float16}
      out: {shape: [batch, heads, seqlen_q, head_dim], dtype: float16, role: output}
    scalars:
      scale: {type: fp32, default: head_dim ** -0.5}
      return_lse: {type: flag, default: false}
    specialisations: [general]
    constexprs: {HEAD_DIM: {values: [64], pick: head_dim}}
    launches:
      - kernel: kernels/attention/forward.py:attention_forward
        grid: ["cdiv(seqlen_q, BLOCK_M)", heads, batch]
        bind:
          work.query_blocks: cdiv(seqlen_q, BLOCK_M)
          extents.head_dim_v: head_dim
          HEAD_DIM_V: HEAD_DIM
          PADDED: false
        configs: [{blocks: {BLOCK_M: 64, BLOCK_N: 32}, options: {num_warps: 4, num_stages: 1}}]
"""


def built(folder: Path, softmax: str) -> Bundle:
    """The kernel with another online softmax, for an RDNA on the emulator."""
    from click.testing import CliRunner

    from aot.cli import main

    ignored = shutil.ignore_patterns("__pycache__")
    for family in ("attention", "common"):
        shutil.copytree(ROOT / "kernels" / family, folder / "kernels" / family, ignore=ignored)
    (folder / "kernels/common/softmax.py").write_text(softmax)
    (folder / "attention.yaml").write_text(MANIFEST)
    command = ["--arch", ARCH, str(folder / "attention.yaml"), "-o", str(folder), "--cache-dir", str(folder / "cache")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    return open_bundle(folder / f"attention-{ARCH}", f"emulator:{ARCH}")


def test_the_suite_notices_what_tinygrads_test_does_not(tmp_path: Path):
    """The suite on normal random numbers, and more so on larger ones; not a mean of squares of 1e-2 on [0, 1)."""
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    text = (ROOT / "kernels/common/softmax.py").read_text()
    assert text.count(RIGHT) == 1
    right, wrong = built(tmp_path / "right", text), built(tmp_path / "wrong", text.replace(RIGHT, WRONG))

    for magnitude in (1.0, 4.0):
        call = make_call(Case(head_dims=(64, 64), lengths=(96, 512), return_lse=False, magnitude=magnitude))
        check(right, call)
        with pytest.raises(AssertionError, match="out: max error"):
            check(wrong, call)

    rng = np.random.default_rng(0)
    q, k, v = (rng.uniform(0, 1, (1, 2, rows, 64)).astype(np.float16) for rows in (96, 512, 512))
    exact = attention(q, k, v, scale=0.125)
    squares = [float(((bundle.flash_attention(q, k, v) - exact) ** 2).mean()) for bundle in (right, wrong)]
    assert squares[0] < 1e-7 < 1e-5 < squares[1] < 1e-2
