"""A first manifest for a kernel: what its text says of its tensors, its sizes and how it is launched."""
