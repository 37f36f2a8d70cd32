"""Sign bundles by key or identity. Signatures are checked by `aot_runtime.trust`."""
