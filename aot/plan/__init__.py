"""Plans: from a manifest to what has to be compiled; nothing is compiled yet."""
