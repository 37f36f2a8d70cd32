"""The instruction sets: how instructions are decoded, and what each does to the state of wavefronts."""
