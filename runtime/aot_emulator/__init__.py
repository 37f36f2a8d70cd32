"""The emulator: `EmulatorDriver` runs AMD code objects on the processor, instruction by instruction.

It has a device for each arch that it knows, so that bundles for several can be open at once. Results are those of the
ISA documents as far as they say; see each module for what they leave open. Work is done when it is given: a stream is
only a name, and what is captured is kept as calls to make again.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from aot_runtime.errors import DeviceError

if find_spec("tinygrad") is None:
    raise DeviceError("the emulator needs tinygrad's tables of instructions: pip install 'aotbuild[emulator]'")
if np.lib.NumpyVersion(np.__version__) < "2.1.0":  # the runtime itself does with an older one
    raise DeviceError(
        f"the emulator needs numpy 2.1 or later, and this is {np.__version__}: pip install 'aotbuild[emulator]'"
    )

from aot_emulator.driver import EmulatorDriver
from aot_emulator.isa.archs import ARCHS
from aot_emulator.machine.launch_options import Options, Order
from aot_emulator.profile.counters import Statistics
from aot_emulator.state.numerics import Arithmetic, Numerics

__all__ = ["ARCHS", "Arithmetic", "EmulatorDriver", "Numerics", "Options", "Order", "Statistics"]
