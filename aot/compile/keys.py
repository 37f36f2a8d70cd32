"""Content addresses of compile jobs: all that decides the code, and nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from aot.targets import Target

from .jobs import CompileJob, job_target
from .kernel_source import PROCESS_LOCK
from .settings import code_environment, parsed_options, pinned_knobs

KEY_VERSION = 1
"""Raised when `compile_job` comes to make something else of the same job, so that old cache entries are not used."""


class JobKeys:
    """Makes the keys of many jobs for one target; the environment is that of when it is made."""

    def __init__(self, target: Target, line_info: bool):
        import triton
        from triton.compiler import make_backend

        self.target, self.line_info = target, line_info
        self._options: dict[str, str] = {}
        with PROCESS_LOCK, pinned_knobs(line_info):
            self._common = {
                "version": KEY_VERSION,
                "arch": target.arch,
                "line_info": line_info,
                "compiler": [triton.__version__, make_backend(target.gpu_target()).hash()],
                "environment": code_environment(),
            }

    def key(self, job: CompileJob, kernel_hash: str) -> str:
        """Content address of what `compile_job(job)` gives: 64 hex digits, the same wherever the project lies.

        Args:
            kernel_hash: `sources_hash` of the job's kernel and functions.

        Raises:
            CompileError: the options are not valid.
        """
        parts = {
            **self._common,
            "kernel": [kernel_hash, job.function, job.source if job.line_info else None],
            "signature": job.signature,
            "constants": sorted(job.constants),
            "functions": sorted(job.functions),
            "divisible_by_16": sorted(job.divisible_by_16),
            "pointer_range_32": sorted(job.pointer_range_32) if self.target.backend == "hip" else [],
            "options": self._options_hash(job.options),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _options_hash(self, options: tuple[tuple[str, Any], ...]) -> str:
        spelling = repr(options)  # where True is not 1
        if spelling not in self._options:
            with PROCESS_LOCK, pinned_knobs(self.line_info):
                self._options[spelling] = parsed_options(options, self.target).hash()
        return self._options[spelling]


def job_key(job: CompileJob, kernel_hash: str) -> str:
    """The key of one job, see `JobKeys.key`. Raises `CompileError`: the target or the options are not valid."""
    return JobKeys(job_target(job), job.line_info).key(job, kernel_hash)
