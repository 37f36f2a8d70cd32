"""Compile jobs and compiled kernels: the input and the output of a worker."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from aot.errors import CompileError
from aot.source.constants import Constant
from aot.targets import Target, parse_arch
from aot_runtime.bundle.codeobject import KernelMetadata
from aot_runtime.contract.records import Int

# What a kernel that comes from a cache may hold at most: it is decoded within these bounds.
Bytes = Annotated[int, Meta(ge=0, lt=1 << 31)]
Alignment = Annotated[int, Meta(ge=1, le=1 << 12)]
Count = Annotated[int, Meta(ge=1, le=64)]
_Float = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
_Plain = None | bool | Int | _Float | str
Option = None | bool | Int | _Float | str | list[_Plain | list[_Plain]]
"""The value of a compiler option, as in JSON."""


@dataclass(frozen=True)
class CompileJob:
    """A compilation: everything that decides one code object. Hashable and picklable.

    Attributes:
        root: project root folder, importable by the kernel file.
        source: the kernel file, from `root`.
        function: the `@triton.jit` function in it.
        signature: (parameter, Triton type such as `*fp16`, `i32`, `fp32`, or `constexpr`), in parameter order. Here and
            below, a parameter that is a named tuple is its members, each by its path: `q.ptr`, `q.stride_heads`.
        constants: (parameter, value) of each constexpr parameter that is not a function.
        divisible: (parameter, number that its value is promised to be a multiple of).
        pointer_range_32: pointers whose offsets are promised to fit 32 bits; without effect on NVIDIA.
        options: (name, value) of Triton's compiler options: `num_warps`, `num_stages`, `waves_per_eu`, …
        arch: bare name, e.g. `gfx942`.
        line_info: keep the line table, with file names from `root`.
        functions: (parameter, `path.py:function` from `root`) of each constexpr parameter that is a function, to be
            inlined where the kernel calls it.
        digest: the `sources_hash` of kernel and functions that the job's key was made from; empty: not checked.
        sources: (file from `root`, SHA-256) of all files imported for that hash. `digest` and `sources` do not change
            the code: they ensure that a worker compiles the planned sources.
    """

    root: str
    source: str
    function: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Constant], ...]
    divisible: tuple[tuple[str, int], ...]
    pointer_range_32: tuple[str, ...]
    options: tuple[tuple[str, Constant], ...]
    arch: str
    line_info: bool = False
    functions: tuple[tuple[str, str], ...] = ()
    digest: str = ""
    sources: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CompiledKernel:
    """A code object that agrees with its job, and what is needed to launch it."""

    image: Annotated[bytes, Meta(min_length=1)] = field(repr=False)
    symbol: str
    lds_bytes: Bytes
    """Dynamic LDS that a launch must ask for."""
    num_warps: Count
    warp_size: Count
    global_scratch_bytes: Bytes
    """Scratch memory per workgroup that a launch must provide; 0: none."""
    global_scratch_align: Alignment
    profile_scratch_bytes: Bytes
    profile_scratch_align: Alignment
    cooperative: bool
    """The whole grid must be resident at once."""
    metadata: KernelMetadata
    compiler: str
    options: dict[str, Option]
    """All compiler options, defaults included, as JSON values without paths."""
    accesses: dict[str, str]
    """Pointer of the signature → the kinds of access through it (`accesses.pointer_accesses`)."""
    recipe: str
    """The recipe of the job (`keys.JobKeys.recipe`), as JSON. Its SHA-256 is the job's key."""
    early: bool = False
    """The kernel waits for preceding kernels on the stream, so it may begin before they have ended."""
    warnings: tuple[str, ...] = ()
    """Warnings of the compiler, each with the name of the kernel."""


def job_target(job: CompileJob) -> Target:
    """Return the target of a job. Raises `CompileError` for an unknown architecture."""
    try:
        return parse_arch(job.arch)
    except ValueError as error:
        raise CompileError(str(error)) from None
