"""Instruction-level emulator of AMD GPUs: `EmulatorDriver` runs code objects on the CPU.

The driver has one device per supported architecture, so bundles for several can be open at once. Results follow AMD's
ISA documents; each module notes the cases that these leave undefined. Work is synchronous: streams do not run
concurrently, and a captured graph is a list of calls to repeat.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from aot_runtime.errors import DeviceError

if find_spec("tinygrad") is None:
    raise DeviceError("the emulator needs tinygrad's tables of instructions: pip install 'aotbuild[emulator]'")
if np.lib.NumpyVersion(np.__version__) < "2.1.0":  # the runtime itself supports older versions
    raise DeviceError(
        f"the emulator needs numpy 2.1 or later, and this is {np.__version__}: pip install 'aotbuild[emulator]'"
    )

from aot_emulator.driver import EmulatorDriver
from aot_emulator.isa.archs import ARCHS
from aot_emulator.machine.launch_options import Options, Order
from aot_emulator.profile.counters import Statistics
from aot_emulator.state.numerics import Arithmetic, Numerics

__all__ = ["ARCHS", "Arithmetic", "EmulatorDriver", "Numerics", "Options", "Order", "Statistics"]
