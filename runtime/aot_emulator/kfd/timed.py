"""Modelled times of dispatches, for `aotbundle emulate --time`. Nothing is measured."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from aot_emulator.machine.launch_options import Options
from aot_emulator.machine.launch_records import Launch
from aot_emulator.machine.loader import Kernel
from aot_emulator.state.device_memory import Allocation, Memory
from aot_emulator.timing.sampling import Sampled, sample_launch

from .models import Model


@dataclass(frozen=True)
class Timed:
    """Selection of dispatches to model.

    Attributes:
        kernels: regular expression searched in kernel names.
        only: do not also run them; their output is then missing.
    """

    kernels: re.Pattern[str]
    only: bool = False

    def takes(self, kernel: Kernel) -> bool:
        """Return True if a kernel is selected. ROCr's internal kernels, without a code object, never are."""
        return bool(kernel.module.name) and self.kernels.search(kernel.symbol) is not None


class Copies(Memory):
    """Copy-on-access view of a memory: stores only affect the copies."""

    def __init__(self, memory: Memory):
        super().__init__(0, 0)
        self._memory, self._copies = memory, dict[int, Allocation]()

    def find(self, address: int, nbytes: int = 1) -> Allocation:
        found = self._memory.find(address, nbytes)
        if found.base not in self._copies:
            self._copies[found.base] = replace(found, data=found.data.copy(), written=None)
        return self._copies[found.base]


def model_text(launch: Launch, model: Model, memory: Memory, options: Options) -> str:
    """Return a line with the modelled time of a launch, without modifying memory. Raises like `sample_launch`."""
    plain = replace(options, strict=False, profile=False, progress=None)
    sampled = sample_launch(launch, Copies(memory), plain, (model.num_cus, model.num_xcds))
    return f"{_figures(sampled)}: {launch.kernel.symbol}"


def _figures(sampled: Sampled) -> str:
    seconds = sampled.time.seconds
    matrix = f", {sampled.flops / seconds / 1e12:,.1f} TFLOP/s of matrix instructions" if sampled.flops else ""
    rate = f"{sampled.bytes / seconds / 1e9:,.0f} GB/s of device memory"
    return f"{seconds * 1e6:.1f} us, modelled, not measured{matrix}, {rate}, {sampled.workgroups} workgroups"
