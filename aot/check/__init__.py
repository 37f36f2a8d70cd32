"""`aotbuild check`: random calls that an op's contract allows, run on the emulator, and the properties checked for
each.
"""
