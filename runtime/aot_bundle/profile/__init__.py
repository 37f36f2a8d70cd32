"""Profiles and modelled times of calls on the emulator, and their reports."""
