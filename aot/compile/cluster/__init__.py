"""Compiling on the workers of a dask.distributed cluster, which have aotbuild and Triton, and none of the kernels."""
