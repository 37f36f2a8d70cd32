"""The release check, run by `python -m tests.release`.

Shipped manifests are built, verified, run on the emulator and planned for every target, and every command line in the
documentation is executed.
"""
