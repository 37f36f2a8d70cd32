"""Helpers of the emulator's tests: a machine for single instructions, and kernels to assemble, compile and launch."""
