"""Floating-point arithmetic of AMD's VALU on numpy arrays."""
