"""Kernels of a running Triton program, captured by `aot_capture`: built ahead of time and shipped."""
