"""What differs between two bundles: for `aotbundle diff`, and for `aotbundle report --against`."""
