"""Notes the Triton kernels that a program compiles, and proves that a start compiles none.

This package runs inside the user's process, under any Python from 3.9 and Triton from 3.4 to 3.9:
it imports the standard library and Triton only, and nothing of Triton before the program does.
"""
