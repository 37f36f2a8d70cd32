"""Compile many jobs: processes of this machine, or the workers of a cluster."""
