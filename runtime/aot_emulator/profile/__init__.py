"""Execution counters of launches, and roofline bounds of their time."""
