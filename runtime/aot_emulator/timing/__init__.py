"""Time model: replays emulated workgroups through a model of the compute unit and the memory system."""
