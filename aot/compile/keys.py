"""Content addresses of compile jobs: hashes of everything that determines the code, and of nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from aot.source.project import PROCESS_LOCK
from aot.targets import Target
from aot_runtime.contract.arch import BACKENDS

from .jobs import CompileJob
from .settings import code_environment, parsed_options, pinned_knobs

KEY_VERSION = 3
"""Increased when `compile_job` gives another result for the same job, so that older cache entries are not used."""


class JobKeys:
    """Makes the keys of jobs for one target. Environment variables are read once, when it is created.

    Attributes:
        common: the part that all keys share: the compiler, the target and the environment.
    """

    def __init__(self, target: Target, line_info: bool):
        import triton
        from triton.compiler import make_backend

        self.target, self.line_info = target, line_info
        self._options: dict[str, str] = {}
        with PROCESS_LOCK, pinned_knobs(line_info):
            self.common: dict[str, Any] = {
                "version": KEY_VERSION,
                "arch": target.arch,
                "line_info": line_info,
                "compiler": [triton.__version__, make_backend(target.gpu_target()).hash()],
                "environment": code_environment(),
            }

    def key(self, job: CompileJob, kernel_hash: str) -> str:
        """Return the content address of `compile_job(job)`: 64 hex digits, independent of the project's folder.

        It is the hash of `recipe`, with the same arguments and errors.
        """
        return recipe_key(self.recipe(job, kernel_hash))

    def recipe(self, job: CompileJob, kernel_hash: str) -> str:
        """Return everything that determines the result of `compile_job(job)`, as JSON.

        Args:
            kernel_hash: `sources_hash` of the job's kernel and functions.

        Raises:
            CompileError: the options are not valid.
        """
        parts = {
            **self.common,
            "kernel": [kernel_hash, job.function, job.source if job.line_info else None],
            "signature": job.signature,
            "constants": sorted(job.constants),
            "functions": sorted(job.functions),
            "divisible": sorted(job.divisible),
            "pointer_range_32": sorted(job.pointer_range_32)
            if BACKENDS[self.target.backend].has_pointer_ranges
            else [],
            "options": self._options_hash(job.options),
        }
        return json.dumps(parts, sort_keys=True, default=vars)

    def _options_hash(self, options: tuple[tuple[str, Any], ...]) -> str:
        spelling = repr(options)  # where True is not 1
        if spelling not in self._options:
            with PROCESS_LOCK, pinned_knobs(self.line_info):
                self._options[spelling] = parsed_options(options, self.target).hash()
        return self._options[spelling]


def recipe_key(recipe: str) -> str:
    """Return the key of a recipe."""
    return hashlib.sha256(recipe.encode()).hexdigest()


def recipe_changes(recipe: str, expected: str) -> str:
    """Name the parts in which two recipes differ."""
    found, wanted = json.loads(recipe), json.loads(expected)
    return ", ".join(name for name in wanted if found.get(name) != wanted[name])
