"""Tensors that a Gluon kernel reads and writes, for the instructions of each GPU and all uses of pointers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aot.compile.jobs import CompileJob
from tests.support.building.front_end import accesses

HEAD = """\
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna3, cdna4
from triton.experimental.gluon.language.nvidia import ampere, hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

OTHER = gl.BlockedLayout([2], [{lanes}], [4], [0])
SHARED = gl.SwizzledSharedLayout(1, 1, 1, [0])
BLOCK = gl.constexpr([64, 64])
TILE = gl.NVMMASharedLayout(128, 16)


@gluon.jit
def put(where, i):
    gl.store(where + i, 1.0)


@gluon.jit
def nothing(x):
    x


@gluon.jit
def kernel(x, y, out, n):
    i = gl.arange(0, 1024, layout=gl.BlockedLayout([4], [{lanes}], [4], [0]))
"""
MAPS = """\
smem = gl.allocate_shared_memory(gl.float16, BLOCK, TILE)
bar = mbarrier.allocate_mbarrier()
x_map = tma.make_tensor_descriptor(x, [n, 64], [64, 1], BLOCK, TILE)
out_map = tma.make_tensor_descriptor(out, [n, 64], [64, 1], BLOCK, TILE)
"""

ON_AMD = {
    "cdna3.buffer_store(cdna3.buffer_load(x, i), out, i)": {"x": "r", "out": "w"},
    "cdna3.buffer_store(cdna3.buffer_load(x + n, i), out + n, i)": {"x": "r", "out": "w"},
    "cdna3.buffer_atomic_add(out, i, cdna3.buffer_load(y, i))": {"y": "r", "out": "u"},
    "smem = gl.allocate_shared_memory(gl.float16, [1024], SHARED)\n"
    "cdna4.async_copy.global_load_to_shared(smem, x + i)": {"x": "r"},
    "smem = gl.allocate_shared_memory(gl.float16, [1024], SHARED)\n"
    "cdna4.async_copy.buffer_load_to_shared(smem, x, i)": {"x": "r"},
    "p = gl.convert_layout(out + i, OTHER)\ngl.store(p, 0.0)": {"out": "w"},
    "put(x if n > 3 else out, i)": {"x": "?", "out": "?"},
}
ON_NVIDIA = {
    "smem = gl.allocate_shared_memory(gl.float16, [1024], SHARED)\nampere.async_copy.async_load(smem, x + i)": {
        "x": "r"
    },
    MAPS + "tma.async_load(x_map, [0, 0], bar, smem)\ntma.async_store(out_map, [0, 0], smem)": {"x": "dr", "out": "dw"},
    MAPS + "tma.async_atomic_add(out_map, [0, 0], smem)": {"out": "du"},
    "gl.warp_specialize([(nothing, (x,)), (put, (out, n))], [4], [24])": {"out": "w"},
    "gl.warp_specialize([(put, (out, n)), (put, (y, n))], [4], [24])": {"y": "w", "out": "w"},
}


def found(folder: Path, arch: str, body: str) -> dict[str, str]:
    lanes = 32 if arch.startswith("sm") else 64
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    (folder / "k.py").write_text(HEAD.format(lanes=lanes) + lines)
    signature = (("x", "*fp16"), ("y", "*fp16"), ("out", "*fp16"), ("n", "i32"))
    job = CompileJob(str(folder), "k.py", "kernel", signature, (), (), (), (), arch)
    return {name: kinds for name, kinds in accesses(job).items() if kinds}


@pytest.mark.parametrize("body", ON_AMD, ids=lambda body: re.sub(r"\W+", " ", body)[-40:])
def test_instructions_of_amd(tmp_path: Path, body: str):
    assert found(tmp_path, "gfx950", body) == ON_AMD[body]


@pytest.mark.parametrize("body", ON_NVIDIA, ids=lambda body: re.sub(r"\W+", " ", body)[-40:])
def test_instructions_of_nvidia(tmp_path: Path, body: str):
    assert found(tmp_path, "sm_90", body) == ON_NVIDIA[body]
