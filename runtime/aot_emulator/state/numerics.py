"""Options for results that AMD does not document, or on which sources disagree."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Arithmetic(Enum):
    """Summation in matrix instructions, of which AMD documents neither order nor rounding.

    - FLOAT32: the BLAS sums the products in float32, in its own order (products of up to 16-bit types are exact); then
      C is added. Each step rounds to nearest even.
    - FLOAT64: the same in float64, rounded once to D. More accurate than any hardware, and reproducible on every
      machine, except for sums that lose more than 29 bits to cancellation.
    - HARDWARE, for gfx90a and gfx942: the model of Xie et al., found bit-exact with MI250X and MI300X (MMA-Sim, arXiv
      2511.10909). About a hundred times slower.
    """

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    HARDWARE = "hardware"


@dataclass(frozen=True)
class Numerics:
    """Numerical options of a launch.

    Attributes:
        matrix: summation in matrix instructions.
        dot_keeps_denormals: CDNA's `v_dot2_f32_f16` and similar preserve denormals. By default they flush operands and
            results, as in the CDNA3 ISA manual; PyTorch's notes on numerical accuracy state that for MI200 only.
    """

    matrix: Arithmetic = Arithmetic.FLOAT32
    dot_keeps_denormals: bool = False
