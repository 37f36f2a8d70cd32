"""What an op is, as data: the index's records, expressions, names, dtypes, layouts and architectures."""
