"""Calls: from arguments to a plan, from a plan to launches, and why a call gets the variant that it gets."""
