"""Captured Triton programs: build their kernels without a GPU, and ship them into the program's cache."""
