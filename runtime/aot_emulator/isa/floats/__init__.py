"""Floating point as AMD's vector unit does it, on numpy arrays."""
