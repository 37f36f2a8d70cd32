"""Compile jobs over the fixture kernels, for the tests of this folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from aot.compile.jobs import CompileJob

ROOT = Path(__file__).parent / "fixtures"
SOURCE = "kernels/softmax.py"

SOFTMAX = (("x", "*fp32"), ("y", "*fp32"), ("columns", "i32"), ("stride", "i64"), ("BLOCK", "constexpr"))
PRODUCT = (
    *(("a", "*fp16"), ("b", "*fp16"), ("c", "*fp32"), ("m", "i32"), ("n", "i32"), ("k", "i32")),
    *(("BLOCK_M", "constexpr"), ("BLOCK_N", "constexpr"), ("BLOCK_K", "constexpr")),
)
SCALARS = (
    *(("out", "*fp32"), ("a", "fp16"), ("b", "bf16"), ("c", "i8"), ("d", "u1")),
    *(("e", "i64"), ("f", "fp64"), ("g", "i16"), ("h", "u64"), ("UNUSED", "constexpr")),
)


def job(function: str, arch: str, signature: tuple, constants: dict[str, Any], **fields: Any) -> CompileJob:
    plain = CompileJob(str(ROOT), SOURCE, function, signature, tuple(constants.items()), (), (), (), arch)
    return replace(plain, **fields)


def softmax(arch: str, block: int = 1024, **fields: Any) -> CompileJob:
    hinted = job("softmax", arch, SOFTMAX, {"BLOCK": block}, divisible_by_16=("x", "y"), pointer_range_32=("x",))
    return replace(hinted, **fields)


def product(arch: str, m: int = 64, n: int = 64, k: int = 32, **fields: Any) -> CompileJob:
    return job("product", arch, PRODUCT, {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, **fields)


def scalars(arch: str) -> CompileJob:
    return job("every_type", arch, SCALARS, {"UNUSED": None})
