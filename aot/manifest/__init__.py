"""Manifests: YAML with positions, and its schema."""
