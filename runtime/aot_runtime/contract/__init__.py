"""An op's contract as data: the index's records, expressions, names, dtypes, layouts and architectures."""
