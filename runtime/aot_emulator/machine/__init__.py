"""Code object loading, kernel programs, and the wavefront scheduler."""
