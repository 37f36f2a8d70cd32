"""Profiling and time modelling of calls on the emulator, and their reports."""
