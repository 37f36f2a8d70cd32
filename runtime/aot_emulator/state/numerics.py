"""Choices about results that AMD does not document, or that sources tell differently."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Arithmetic(Enum):
    """How a matrix instruction sums. AMD documents neither the order nor the rounding.

    - FLOAT32: the products of an instruction are summed in float32 by the BLAS (products of 16 bits and fewer are
      exact, the order is the BLAS's own), and C is added to the sum, rounded to nearest even each time.
    - FLOAT64: the same in float64, rounded to D once at the end: nearer to the exact value than any hardware, and the
      same on every machine but for sums that lose more than 29 bits to cancellation.
    - HARDWARE, for gfx90a and gfx942: the model that Xie et al. derived by experiment (MMA-Sim, arXiv 2511.10909) and
      found to agree with MI250X and MI300X bit for bit. About a hundred times slower.
    """

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    HARDWARE = "hardware"


@dataclass(frozen=True)
class Numerics:
    """The choices of a launch.

    Attributes:
        matrix: how matrix instructions sum.
        dot_keeps_denormals: CDNA's `v_dot2_f32_f16` and its kin take and give denormals. The CDNA3 ISA manual says that
            they flush both, which is the default here; PyTorch's notes on numerical accuracy say so of MI200 alone.
    """

    matrix: Arithmetic = Arithmetic.FLOAT32
    dot_keeps_denormals: bool = False
