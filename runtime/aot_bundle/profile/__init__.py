"""Profile calls on the emulator, model their time, and report both."""
