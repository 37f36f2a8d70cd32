"""Decoder-only language models: a module for each family reads config.json; one decoder runs all on a device."""
