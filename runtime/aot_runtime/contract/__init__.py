"""The contract of ops as data: records of the index, expressions, names, dtypes, layouts and architectures."""
