"""Writing a bundle: index, code, C interface, stub and selftest vectors."""
