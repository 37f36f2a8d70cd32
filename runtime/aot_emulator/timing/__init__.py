"""A model of time: what workgroups executed on the emulator, replayed through a compute unit and the memory behind."""
