"""Compiles kernels for a target that need not be present, and reads what came out."""

import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel, make_backend

from aot.compile.compiler import ast_source
from aot.compile.jobs import CompileJob
from aot.compile.kernel_source import split_function
from aot.compile.project import project
from aot.manifest.loading import load_manifest
from aot.plan.bundles import PlannedBundle, PlannedVariant, plan_bundle
from aot.targets import parse_arch

MANIFESTS = Path(__file__).parents[3] / "manifests"
DIVISIBLE = [["tt.divisibility", 16]]
DIVISIBLE_POINTER = [*DIVISIBLE, ["tt.pointer_range", 32]]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_kernel(
    kernel: Any,
    arch: str,
    types: Mapping[str, str],
    constexprs: Mapping[str, Any],
    options: Mapping[str, Any],
    aligned: bool,
) -> CompiledKernel:
    """types: pointer and scalar types by parameter name; stride_* follow `aligned` (i32 with hints, or i64 without)."""
    signature, hints = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constexprs:
            signature[name] = "constexpr"
            continue
        is_stride = name.startswith("stride_")
        signature[name] = types.get(name) or (("i32" if aligned else "i64") if is_stride else "i32")
        if aligned and signature[name].startswith("*"):
            hints[index,] = DIVISIBLE_POINTER
        elif aligned and (is_stride or name in ("cols", "head_dim", "head_dim_v", "n", "k")):
            hints[index,] = DIVISIBLE
    target = _target(arch)
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(n),): v for n, v in constexprs.items()}, hints)
    parsed = make_backend(target).parse_options({"enable_fp_fusion": True, **options})
    return triton.compile(source, target=target, options=parsed.__dict__)


def compile_variant(job: CompileJob) -> CompiledKernel:
    """What the builder makes of a job, with the compiler's text of every stage."""
    with project(job.root).active() as modules:
        kernel = modules.load(job.source, job.function)
        functions = {name: modules.load(*split_function(path)) for name, path in job.functions}
        source = ast_source(job, kernel, functions, parse_arch(job.arch))
        options = make_backend(_target(job.arch)).parse_options({"enable_fp_fusion": True, **dict(job.options)})
        return triton.compile(source, target=_target(job.arch), options=options.__dict__)


def _target(arch: str) -> GPUTarget:
    if arch.startswith("sm_"):
        return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)


def resource(compiled: CompiledKernel, field: str) -> int:
    """A field of an AMD code object's metadata, e.g. `vgpr_spill_count`."""
    return int(re.search(rf"\.{field}:\s+(\d+)", compiled.asm["amdgcn"])[1])


def instructions(compiled: CompiledKernel) -> list[str]:
    """The mnemonics of an AMD kernel, in the order of its text."""
    return _mnemonics(compiled.asm["amdgcn"].splitlines())


def loops(compiled: CompiledKernel) -> list[list[str]]:
    """The mnemonics of each innermost loop (a block that branches back to its own start) of an AMD kernel."""
    lines = compiled.asm["amdgcn"].splitlines()
    labels = {line.split(":")[0]: index for index, line in enumerate(lines) if re.match(r"\.LBB\w+:", line)}
    found = []
    for index, line in enumerate(lines):
        branch = re.match(r"\s+s_c?branch\w*\s+(\.LBB\w+)", line)
        if branch and labels[branch[1]] < index:
            found.append(_mnemonics(lines[labels[branch[1]] : index]))
    return found


def _mnemonics(lines: list[str]) -> list[str]:
    return [match[1] for line in lines if (match := re.match(r"\s+([a-z]\w+)", line))]


# The shipped manifests


@cache
def planned(arch: str, manifest: str) -> PlannedBundle:
    """What the builder would compile of a shipped manifest."""
    return plan_bundle(load_manifest(MANIFESTS / f"{manifest}.yaml"), parse_arch(arch), {}, line_info=False)


def config_of(bundle: PlannedBundle, variant: PlannedVariant) -> str:
    """The name of a variant's config."""
    op = next(op for op in bundle.ops if op.name == variant.spec.op)
    return op.launches[variant.spec.launch].configs[variant.spec.config].name


def variants(arch: str, manifest: str, op: str, **wanted: Any) -> list[PlannedVariant]:
    """The variants of an op whose point (with `aligned` and `config`) has the wanted values."""
    bundle = planned(arch, manifest)
    found = []
    for variant in bundle.variants:
        point = dict(variant.spec.point) | {"aligned": variant.spec.aligned, "config": config_of(bundle, variant)}
        if variant.spec.op == op and wanted.items() <= point.items():
            found.append(variant)
    assert found, f"no variant of {op} on {arch} has {wanted}"
    return found


def check_resources(compiled: Any, scalar: bool = True) -> None:
    """No spills and no scratch; `scalar`: nor scalar registers spilled to vector registers. LDS as gfx942 has it."""
    assert resource(compiled, "vgpr_spill_count") == 0
    assert resource(compiled, "private_segment_fixed_size") == 0
    assert resource(compiled, "sgpr_spill_count") == 0 or not scalar
    assert compiled.metadata.shared <= 65536


def loads_of(body: list[str]) -> list[str]:
    """The loads from memory in a loop's mnemonics."""
    return [name for name in body if name.startswith(("buffer_load", "global_load", "flat_load"))]
