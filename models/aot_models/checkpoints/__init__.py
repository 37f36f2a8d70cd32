"""Read published checkpoints: files, weight formats, linear layers, adapters."""
