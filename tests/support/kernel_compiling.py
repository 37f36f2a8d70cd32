"""Compile variants of the shipped manifests for targets without a device, and read the code objects."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from aot_bundle.isa import Instruction, load_bits, loops_of, read_instructions
from tests.support.plans import planned
from tests.support.session_builds import session_cache


def config_of(arch: str, manifest: str, variant: Any) -> str:
    """Return the name of a variant's config."""
    op = next(op for op in planned(arch, manifest).ops if op.name == variant.spec.op)
    return op.launches[variant.spec.launch].configs[variant.spec.config].name


def variants(arch: str, manifest: str, op: str = "", **wanted: Any) -> list[Any]:
    """Return the variants, of an op or of all, whose point (with `aligned`, `config` and `kernel`) has the wanted
    values."""
    found = []
    for variant in planned(arch, manifest).variants:
        own = {"aligned": variant.spec.aligned, "kernel": variant.job.function}
        point = dict(variant.spec.point) | own | {"config": config_of(arch, manifest, variant)}
        if op in ("", variant.spec.op) and wanted.items() <= point.items():
            found.append(variant)
    assert found, f"no variant of {op} on {arch} has {wanted}"
    return found


def compile_variant(variant: Any) -> Any:
    """Compile a variant, with the compiler's text of every stage, or take it from the sessions' cache."""
    return _compiled(variant.job)


@cache
def _compiled(job: Any) -> Any:
    import triton

    from aot.compile.compiler import ast_source
    from aot.compile.jobs import job_target
    from aot.compile.settings import parsed_options
    from aot.source.kernel_source import split_function
    from aot.source.project import project

    target = job_target(job)
    with triton.knobs.cache.scope(), project(job.root).active() as modules:
        triton.knobs.cache.dir = str(session_cache() / "triton")
        kernel = modules.load(job.source, job.function)
        functions = {name: modules.load(*split_function(path)) for name, path in job.functions}
        options = parsed_options(job.options, target)
        source = ast_source(job, kernel, functions, target)
        return triton.compile(source, target=target.gpu_target(), options=dict(vars(options)))


# The code objects of AMD


def resource(compiled: Any, field: str) -> int:
    """Return a field of a code object's metadata, e.g. `vgpr_spill_count`."""
    match = re.search(rf"\.{field}:\s+(\d+)", compiled.asm["amdgcn"])
    assert match is not None, field
    return int(match[1])


def check_resources(compiled: Any, scalar: bool = True) -> None:
    """Assert that there are no spills and no scratch. `scalar`: nor scalar registers spilled to vector ones. LDS as
    gfx942 has it."""
    assert resource(compiled, "vgpr_spill_count") == 0
    assert resource(compiled, "private_segment_fixed_size") == 0
    assert resource(compiled, "sgpr_spill_count") == 0 or not scalar
    assert compiled.metadata.shared <= 65536


def instructions(compiled: Any) -> list[str]:
    """Return the mnemonics of a kernel, in the order of its code."""
    return [found.mnemonic for found in _read(compiled)]


def loops(compiled: Any, mnemonic: str = "") -> list[list[str]]:
    """Return the mnemonics of each loop that has `mnemonic…`, from the branch's target to the branch."""
    bodies = [[found.mnemonic for found in body] for body in loops_of(_read(compiled))]
    return [body for body in bodies if any(name.startswith(mnemonic) for name in body)]


def _read(compiled: Any) -> tuple[Instruction, ...]:
    return _instructions(compiled.asm["hsaco"], compiled.metadata.name)


_instructions = cache(read_instructions)


def loads_of(body: list[str]) -> list[str]:
    """Return the loads from memory among mnemonics."""
    return [name for name in body if load_bits(name)]
