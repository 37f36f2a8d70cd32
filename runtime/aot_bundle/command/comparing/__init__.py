"""Compare two bundles, for `aotbundle diff` and `aotbundle report --against`."""
