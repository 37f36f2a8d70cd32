"""Writing a bundle: index, code, C header, stub and selftest vectors."""
