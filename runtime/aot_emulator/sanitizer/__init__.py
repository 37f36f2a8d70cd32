"""Strict mode: faults of a kernel that a GPU would let pass."""
