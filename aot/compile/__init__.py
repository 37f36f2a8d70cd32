"""Compiling: jobs, their keys, the compiler, and reading code objects back."""
