"""Compile jobs over the fixture kernels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from aot.compile.jobs import CompileJob, job_target
from aot.compile.keys import JobKeys
from aot.source.kernel_source import split_function
from aot.source.project import project
from aot.source.source_hash import sources_hash

ROOT = Path(__file__).parent / "fixtures"
SOURCE = "kernels/softmax.py"

SOFTMAX = (("x", "*fp32"), ("y", "*fp32"), ("columns", "i32"), ("stride", "i64"), ("BLOCK", "constexpr"))
SCALARS = (
    *(("out", "*fp32"), ("a", "fp16"), ("b", "bf16"), ("c", "i8"), ("d", "i1")),
    *(("e", "i64"), ("f", "fp64"), ("g", "i16"), ("h", "u64"), ("UNUSED", "constexpr")),
)


def job(function: str, arch: str, signature: tuple, constants: dict[str, Any], **fields: Any) -> CompileJob:
    plain = CompileJob(str(ROOT), SOURCE, function, signature, tuple(constants.items()), (), (), (), arch)
    return replace(plain, **fields)


def softmax(arch: str, block: int = 256, **fields: Any) -> CompileJob:
    hinted = job("softmax", arch, SOFTMAX, {"BLOCK": block}, divisible=(("x", 16), ("y", 16)), pointer_range_32=("x",))
    return replace(hinted, **fields)


def scalars(arch: str) -> CompileJob:
    return job("every_type", arch, SCALARS, {"UNUSED": None})


def load_kernel(root: Path | str, source: str, function: str) -> Any:
    """Load the `@triton.jit` function of a file, with all that it reads."""
    with project(root).active() as modules:
        return modules.load(source, function)


def job_key(work: CompileJob, kernel_hash: str) -> str:
    return JobKeys(job_target(work), work.line_info).key(work, kernel_hash)


def key(work: CompileJob) -> str:
    functions = {name: load_kernel(work.root, *split_function(path)) for name, path in work.functions}
    return job_key(work, sources_hash(load_kernel(work.root, work.source, work.function), functions))
