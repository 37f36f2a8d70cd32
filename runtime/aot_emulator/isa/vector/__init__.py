"""Instructions of the vector ALU."""
