"""What tests of the emulator share: a machine of one instruction, kernels assembled, compiled and launched."""
