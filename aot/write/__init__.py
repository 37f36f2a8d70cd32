"""Write bundles: index, code, C interface, stub and selftest vectors."""
