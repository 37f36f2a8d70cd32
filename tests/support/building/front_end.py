"""Compile jobs only to Triton's IR, which shows the accessed tensors in a hundredth of the time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aot.compile.accesses import pointer_accesses, watched_stages
from aot.compile.compiler import argument_names, ast_source
from aot.compile.jobs import CompileJob, job_target
from aot.compile.settings import parsed_options, pinned_knobs
from aot.plan.bundles import PlannedBundle
from aot.source.kernel_source import split_function
from aot.source.project import project


def accesses(job: CompileJob) -> dict[str, str]:
    """Return the accesses that `compile_job` records for a job, of its pointers and scalars."""
    from triton._C.libtriton import ir
    from triton.compiler import make_backend

    target = job_target(job)
    found: dict[str, str] = {}
    hook = watched_stages(lambda module: found.update(pointer_accesses(module, argument_names(job))))
    with project(job.root).active() as modules, pinned_knobs(False):
        functions = {name: modules.load(*split_function(path)) for name, path in job.functions}
        source = ast_source(job, modules.load(job.source, job.function), functions, target)
        options = parsed_options(job.options, target)
        backend = make_backend(target.gpu_target())
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        generate = backend.get_codegen_implementation(options)
        module = source.make_ir(target.gpu_target(), options, generate, backend.get_module_map(), context)
        stages: dict[str, Any] = {}
        backend.add_stages(stages, options, source.language)
        hook(backend, stages, options, source.language, None)
        stages["glir" if "glir" in stages else "ttir"](module, {})
    return found


def kernels(bundle: PlannedBundle) -> dict[str, Any]:
    """Return kernels by key that have nothing but their accesses."""
    return {key: SimpleNamespace(accesses=accesses(job)) for key, job in bundle.jobs.items()}
