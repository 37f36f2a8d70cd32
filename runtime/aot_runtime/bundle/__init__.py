"""Bundles as files: reading and checking bundles, their code objects and test vectors."""
