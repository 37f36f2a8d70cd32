"""Get the kernels of many jobs: from the cache, or by compiling each key once.

A kernel's recipe is compared with its key when it is taken from the cache, and before it is put there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field

from aot.cache.layered_cache import CompileCache
from aot.compile.compiler import KernelReader, compile_job, compile_job_again
from aot.compile.jobs import CompiledKernel, CompileJob, job_target
from aot.compile.keys import JobKeys, recipe_changes, recipe_key

from .pool import CompileFailure, run_jobs

OnDone = Callable[[str, CompiledKernel | CompileFailure], None]
"""Called with each key and result as its compilation ends."""


@dataclass
class Outcome:
    """Kernels and failures by key, and the numbers of kernels that were compiled and found in the cache."""

    kernels: dict[str, CompiledKernel] = field(default_factory=dict)
    failures: dict[str, CompileFailure] = field(default_factory=dict)
    compiled: int = 0
    cached: int = 0


def look_up(jobs: Mapping[str, CompileJob], cache: CompileCache) -> tuple[Outcome, dict[str, CompileJob]]:
    """Return the kernels that are in the cache, and the jobs of the others, by key."""
    reader = KernelReader()
    kernels = cache.get_many(jobs, lambda key, kernel: reader.fault(kernel, jobs[key]))
    missing = {key: job for key, job in jobs.items() if key not in kernels}
    return Outcome(kernels, cached=len(kernels)), missing


def compile_missing(
    missing: Mapping[str, CompileJob], cache: CompileCache, executor: Executor, outcome: Outcome, on_done: OnDone,
    at_once: int | None = None,
) -> None:  # fmt: skip
    """Compile the missing jobs; put results into the cache and into `outcome` as they come."""
    # By identity: a constant True and a constant 1 make equal jobs, and different code.
    by_job = {id(job): key for key, job in missing.items()}
    for job, result in run_jobs(missing.values(), executor, compile_job, compile_job_again, at_once):
        key = by_job[id(job)]
        if isinstance(result, CompiledKernel) and recipe_key(result.recipe) != key:
            result = CompileFailure(_other_recipe(job, result))
        if isinstance(result, CompileFailure):
            outcome.failures[key] = result
        else:
            cache.put(key, result)
            outcome.kernels[key] = result
            outcome.compiled += 1
        on_done(key, result)


def _other_recipe(job: CompileJob, kernel: CompiledKernel) -> str:
    expected = JobKeys(job_target(job), job.line_info).recipe(job, job.digest)
    changes = recipe_changes(kernel.recipe, expected)
    return f"{job.function!r} in {job.source} was not compiled as planned; different: {changes or 'the recipe'}"
