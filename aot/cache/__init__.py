"""Caches of compiled kernels and selftest vectors: a folder on this machine, and a store that machines share."""
