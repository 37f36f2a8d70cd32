"""Emulation of Linux's AMD GPU driver `/dev/kfd`: runs unmodified ROCr and HIP without a GPU.

A small preloaded C library (`shim`) answers ROCr's driver calls and shares memory with a second process, which plays
the GPU. This process takes packets from the queues and executes them with `aot_emulator`, with the same strict mode and
statistics. `docs/howto/emulate.md` lists the supported features.
"""
