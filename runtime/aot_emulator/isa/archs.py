"""The one table of emulated architectures: facts that only the emulator needs, beside the row in `contract/arch.py`.

A new architecture of a known generation is a new row here. The model of time has its figures, each with a source, in
`timing/constants.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from aot_runtime.contract.arch import ARCHITECTURES, Architecture, Product
from aot_runtime.contract.peaks import PEAKS, Peaks

Isa = Literal["cdna", "rdna3", "rdna4"]
Generation = Literal["cdna2", "cdna3", "cdna4", "rdna3", "rdna4"]
_ISAS: Mapping[Generation, Isa] = {
    "cdna2": "cdna",
    "cdna3": "cdna",
    "cdna4": "cdna",
    "rdna3": "rdna3",
    "rdna4": "rdna4",
}


@dataclass(frozen=True)
class Arch:
    """An emulated architecture; its row in `contract/arch.py` has a product, and `contract/peaks.py` its peak rates.

    Attributes:
        name: bare, as in `gfx942`.
        generation: decides the encodings, the matrix instructions and their passes, and the wait states.
        lds_alignment: the most that strict mode asks of an access of LDS, bytes. The mode that the HSA ABI prescribes
            needs none; gfx950 is given 16 bytes at multiples of 8 by Triton's padded layouts.
        scratch_resource: scratch is a buffer whose resource a kernel gets in SGPRs; else the hardware knows its base.
        scalar_floats: the scalar unit computes with floats: RDNA 3.5 and 4 (LLVM, `FeatureSALUFloatInsts`). The tables
            of RDNA 3 have them for all of it.
        wave64: wavefronts have 64 lanes, as each kernel of RDNA chooses; those of CDNA always have.
    """

    name: str
    generation: Generation
    lds_alignment: int = 16
    scratch_resource: bool = False
    scalar_floats: bool = False
    wave64: bool = False

    @property
    def isa(self) -> Isa:
        """The name of the instruction set in the decoder's tables, which CDNA's generations share."""
        return _ISAS[self.generation]

    @property
    def row(self) -> Architecture:
        return ARCHITECTURES[self.name]

    @property
    def product(self) -> Product:
        """The GPU that the emulated device is."""
        product = self.row.product
        assert product is not None
        return product

    @property
    def title(self) -> str:
        return f"{self.product.title}, emulated"

    @property
    def num_cus(self) -> int:
        """Compute units of the product, or work-group processors' halves."""
        return self.product.num_cus

    @property
    def peaks(self) -> Peaks:
        return PEAKS[self.name]

    @property
    def lanes(self) -> Literal[32, 64]:
        """Lanes of a wavefront."""
        return 64 if self.wave64 else self.row.warp_size

    def with_lanes(self, lanes: int) -> Arch:
        """The architecture as kernels with wavefronts of 32 or 64 lanes see it."""
        return self if lanes == self.lanes else replace(self, wave64=lanes == 64)

    @property
    def lds_bytes(self) -> int:
        """LDS bytes available to a workgroup."""
        return self.row.lds_bytes

    @property
    def ocp_fp8(self) -> bool:
        """True if float8 numbers are in the OCP formats, false if in the FNUZ ones."""
        return self.row.fp8 == "ocp"


ARCHS: Mapping[str, Arch] = {
    arch.name: arch
    for arch in (
        Arch("gfx942", "cdna3"),
        Arch("gfx950", "cdna4", lds_alignment=8),
        Arch("gfx90a", "cdna2", scratch_resource=True),
        Arch("gfx1100", "rdna3"),
        Arch("gfx1201", "rdna4", scalar_floats=True),
        Arch("gfx1151", "rdna3", scalar_floats=True),
    )
}
"""By name. The position of a row is the number of its device."""
