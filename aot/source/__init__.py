"""Read kernel sources, and run their files as far as kernels need it."""
