"""Generate text: tokenisation, scheduling, the paged cache, sampling and output."""
