"""`aotbuild tune`: candidates are compiled, timed or modelled, and the best become the op's configs."""
