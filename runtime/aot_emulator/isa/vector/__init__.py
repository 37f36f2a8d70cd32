"""VALU instructions."""
