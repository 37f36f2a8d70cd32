"""Draft a manifest for a kernel from its source: its tensors, sizes and launch."""
