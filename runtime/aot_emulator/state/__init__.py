"""State of wavefronts: registers, device memory, LDS and scratch."""
