"""Configs that are specialisations of a kernel: their conditions, and faults at their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import plan_bundle
from aot.plan.specialisations import ParameterType, parameter_type
from aot.targets import parse_arch

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def copy(x_ptr, bias, out, n, stride, alpha, BLOCK: tl.constexpr, F: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x_ptr + i * stride, mask=i < n) * alpha, mask=i < n)
"""
MANIFEST = """
bundle: b
ops:
  copy:
    tensors:
      x: {pointer: true, dtype: T}
      bias: {pointer: true, dtype: float32, optional: true, nullable: true}
      out: {pointer: true, dtype: T}
    scalars:
      n: {type: i64}
      stride: {type: i32}
      alpha: {type: fp32}
      act: {type: choice, values: [none, relu]}
    dtypes: {T: [float16, float32]}
    specialisations: [general]
    launches:
      - kernel: k.py:copy
        grid: ["cdiv(n, 64)"]
        bind: {BLOCK: 64, F: null}
        configs:
          - CONFIG
"""
RIGHT = '{name: v, signature: {x_ptr: "*fp16:16:32bits", n: "i32:16"}, constants: {bias: null, stride: 1}}'


def planned(folder: Path, config: str) -> tuple[str, tuple[str, ...]]:
    """Return the condition of a config, and the properties that its variants assume."""
    (folder / "k.py").write_text(KERNEL)
    (folder / "m.yaml").write_text(MANIFEST.replace("CONFIG", config))
    bundle = plan_bundle(load_manifest(folder / "m.yaml"), parse_arch("gfx942"), {}, False)
    ((launch,),) = (op.launches for op in bundle.ops)
    job = bundle.variants[0].job
    return launch.configs[0].when, (*map(str, job.signature), *map(str, job.divisible), *job.pointer_range_32)


def test_a_condition_follows_from_types_and_constants(tmp_path: Path):
    when, job = planned(tmp_path, RIGHT)
    assert when == (
        "T == 'float16' and is_aligned(x) and fits_32_bits(x) and (n % 16 == 0) and (-2147483648 <= n) and "
        "(n <= 2147483647) and (not given(bias)) and (stride == 1)"
    )
    assert "('x_ptr', '*fp16')" in job and "('n', 'i32')" in job and "('stride', 'constexpr')" in job
    assert "('x_ptr', 16)" in job and "('n', 16)" in job and "('out', 16)" not in job and job[-1] == "x_ptr"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('signature: {x_ptr: "*fp17"}', "'*fp17': unknown type '*fp17'; known: "),
        ('signature: {n: "i32:32bits"}', "'i32:32bits': unknown hint '32bits'; known: 16"),
        ('signature: {n: "i32 16"}', "'i32 16' is not a type: write one as in i32"),
        ('signature: {n: "*i32"}', "'n' is a pointer in the signature, and is not bound to a tensor"),
        ("signature: {x_ptr: i32}", "'x_ptr' is i32 in the signature, and is not bound to a number"),
        ('signature: {bias: "*fp16"}', "'bias' points to float16, and 'bias' is float32"),
        ("constants: {x_ptr: null}", "'x_ptr' is None, and 'x' is not optional"),
        ("constants: {stride: 1.5}", "`when` has to say which 'stride' the constant 'stride' is for"),
        ("constants: {strid: 1}", "kernel has no parameter 'strid'; did you mean 'stride'?"),
        ('signature: {m: "i32"}', "'m' is i32 in the signature, and is not bound to a number"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(ManifestError) as caught:
        planned(tmp_path, f"{{name: v, {text}}}")
    (found,) = caught.value.messages
    assert message in found and "m.yaml:21:" in found


def test_types_in_words():
    assert parameter_type("*bf16:16:32bits") == ParameterType("*bf16", "bfloat16", divisible=True, ranged=True)
    assert parameter_type("u8") == ParameterType("u8", "", divisible=False, ranged=False)
