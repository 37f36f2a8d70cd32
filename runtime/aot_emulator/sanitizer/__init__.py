"""Strict mode: detects kernel faults that a GPU does not report."""
