"""Compiling: kernel sources, jobs, worker processes, the cache, and reading code objects back."""
