"""Instruction sets: decoding, and the effect of each instruction on wavefront state."""
