"""Kernel sources: files of kernels as they are found, read and run as far as a kernel needs them."""
