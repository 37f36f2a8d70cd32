"""Signing bundles, by key or by identity. Checking signatures is `aot_runtime.trust`."""
