"""Memory instructions: global, scalar, LDS and scratch."""
