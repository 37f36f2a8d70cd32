"""Bundles as files: reading and checking them, their code objects and test vectors."""
