"""Texts from a model: the cache of keys and values, sequences that grow together, sampling."""
