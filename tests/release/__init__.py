"""The release check: what is shipped is built, verified, run on the emulator, planned for every target, and every
command line that the documents show is executed. `python -m tests.release` runs it; `--help` says more."""
