"""`aotbuild check`: random calls of an op's contract, run on the emulator, and what has to hold of each."""
