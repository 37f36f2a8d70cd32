"""GPU drivers: one file an API, all behind the `Driver` protocol of `base`."""
