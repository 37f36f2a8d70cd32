"""Devices: arrays, memory, streams, and exchange with other libraries, over the drivers."""
