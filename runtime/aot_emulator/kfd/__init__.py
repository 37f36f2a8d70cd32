"""Linux's driver of AMD GPUs, `/dev/kfd`, emulated: AMD's own ROCr and HIP run unmodified where there is no GPU.

A program is started with a small library in C (`shim`), which answers what ROCr asks of the driver and shares memory
with another process, the GPU's. That one takes the packets from the queues and has `aot_emulator` execute them, as the
emulator's own driver does: with its strict mode, and its counts. `docs/howto/emulate.md` says what is served.
"""
