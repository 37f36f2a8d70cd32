"""SALU instructions."""
