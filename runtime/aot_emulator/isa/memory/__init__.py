"""Instructions that reach memory, LDS or scratch."""
