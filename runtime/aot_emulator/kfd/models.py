"""GPU models of the emulated driver, with the device properties that HIP reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from aot_emulator.isa.archs import ARCHS, Arch
from aot_runtime.contract.gpu_names import arch_of
from aot_runtime.errors import DeviceError

GIB = 1 << 30


class _OfArch(NamedTuple):
    """Properties of the GPUs of an architecture. default: the GPU that its name stands for."""

    family: int
    shader_arrays: int
    default: str


_ARCHS = {
    "gfx90a": _OfArch(141, 4, "mi210"),
    "gfx942": _OfArch(141, 4, "mi300x"),
    "gfx950": _OfArch(141, 4, "mi355x"),
    "gfx1100": _OfArch(145, 12, "rx7900xtx"),
    "gfx1151": _OfArch(150, 4, "8060s"),
    "gfx1201": _OfArch(152, 8, "rx9070xt"),
}


@dataclass(frozen=True)
class Model:
    """A GPU, or a partition of one (data sheets; PCI numbers from the public list of PCI devices).

    Attributes:
        title: device name reported by HIP.
        num_cus: compute units; on RDNA, two per work-group processor.
        num_xcds: XCDs.
        memory_bytes: size of device memory.
        pci_id: PCI device id.
        memory_mhz, memory_bits: clock and bus width of device memory.
        l2_kib, l3_kib: size of an XCD's L2, and of the last-level cache; 0: none, or unknown (AMD
            does not publish those of the 8060S, and others disagree).
    """

    arch: Arch
    title: str
    num_cus: int
    num_xcds: int
    memory_bytes: int
    pci_id: int
    memory_mhz: int
    memory_bits: int
    l2_kib: int
    l3_kib: int = 0

    @property
    def is_cdna(self) -> bool:
        return self.arch.isa == "cdna"

    @property
    def family(self) -> int:
        """AMDGPU_FAMILY_* of libdrm's amdgpu_drm.h."""
        return _ARCHS[self.arch.name].family

    @property
    def shader_arrays(self) -> int:
        """Shader arrays per XCD."""
        return _ARCHS[self.arch.name].shader_arrays

    def partition(self, num_xcds: int) -> Model:
        """Return a partition with a number of XCDs and a proportional share of compute units and memory."""
        units, memory = self.num_cus * num_xcds // self.num_xcds, self.memory_bytes * num_xcds // self.num_xcds
        return replace(self, title=f"{self.title}, partition", num_cus=units, num_xcds=num_xcds, memory_bytes=memory)


def _model(arch: str, *values: int | str) -> Model:
    return Model(ARCHS[arch], *values)  # type: ignore[arg-type]


_WHOLE: Mapping[str, Model] = {
    "mi210": _model("gfx90a", "AMD Instinct MI210", 104, 1, 64 * GIB, 0x740F, 1600, 4096, 8192),
    "mi250x": _model("gfx90a", "AMD Instinct MI250X", 110, 1, 64 * GIB, 0x7408, 1600, 4096, 8192),
    "mi300a": _model("gfx942", "AMD Instinct MI300A", 228, 6, 128 * GIB, 0x74A0, 1300, 8192, 4096, 262144),
    "mi300x": _model("gfx942", "AMD Instinct MI300X", 304, 8, 192 * GIB, 0x74A1, 1300, 8192, 4096, 262144),
    "mi308x": _model("gfx942", "AMD Instinct MI308X", 80, 4, 192 * GIB, 0x74A2, 1300, 8192, 4096, 262144),
    "mi325x": _model("gfx942", "AMD Instinct MI325X", 304, 8, 256 * GIB, 0x74A5, 1500, 8192, 4096, 262144),
    "mi350x": _model("gfx950", "AMD Instinct MI350X", 256, 8, 288 * GIB, 0x75A0, 2000, 8192, 4096, 262144),
    "mi355x": _model("gfx950", "AMD Instinct MI355X", 256, 8, 288 * GIB, 0x75A3, 2000, 8192, 4096, 262144),
    "rx7900xtx": _model("gfx1100", "AMD Radeon RX 7900 XTX", 96, 1, 24 * GIB, 0x744C, 1249, 384, 6144, 98304),
    "8060s": _model("gfx1151", "AMD Radeon 8060S", 40, 1, 96 * GIB, 0x1586, 1000, 256, 0),
    "rx9070xt": _model("gfx1201", "AMD Radeon RX 9070 XT", 64, 1, 16 * GIB, 0x7550, 1259, 256, 8192, 65536),
}
_MODES: Mapping[int, Mapping[str, int]] = {
    8: {"dpx": 2, "qpx": 4, "cpx": 8}, 6: {"tpx": 3, "cpx": 6}, 4: {"cpx": 4},
}  # fmt: skip
"""Compute partition modes by number of XCDs, with the number of partitions in each."""

MODELS: Mapping[str, Model] = dict(_WHOLE) | {
    f"{name}-{mode}": model.partition(model.num_xcds // parts)
    for name, model in _WHOLE.items()
    for mode, parts in _MODES.get(model.num_xcds, {}).items()
}
"""GPUs by name. A name with a partition mode, such as `mi300x-cpx`, stands for one partition."""


def find_model(name: str) -> Model:
    """Return a GPU by name, or the default GPU of an architecture. Raises `DeviceError` that lists the known names."""
    lower = name.lower()
    if lower in MODELS:
        return MODELS[lower]
    key = "".join(filter(str.isalnum, lower)).removeprefix("amd").removeprefix("instinct").removeprefix("radeon")
    if key in MODELS:
        return MODELS[key]
    arch = arch_of(name)
    if arch in _ARCHS:
        return MODELS[_ARCHS[arch].default]
    raise DeviceError(f"unknown GPU {name!r}; emulated GPUs: {', '.join([*MODELS, *_ARCHS])}")
