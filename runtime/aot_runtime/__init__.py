"""The runtime: opens a bundle and launches its kernels from numpy, with no torch and no Triton."""
