"""The double of libamdhip64, over which the emulator carries out launches."""

from __future__ import annotations

import sys
from pathlib import Path

RUNTIME = Path(__file__).parents[1] / "runtime"
if str(RUNTIME) not in sys.path:
    sys.path.insert(0, str(RUNTIME))  # for emulated_launches

from hip_double.double import hip_double  # noqa: E402, F401  (a fixture)
