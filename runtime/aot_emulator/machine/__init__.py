"""From a code object to a launch that has run: kernels, programs, and the scheduler of wavefronts."""
