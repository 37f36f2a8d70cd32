"""Checkpoints as they are published: files, formats of weights, and the linear layers that they hold."""
