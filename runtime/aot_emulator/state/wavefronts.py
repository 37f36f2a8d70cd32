"""Vectorised state of wavefronts: each register is an array over wavefronts and lanes.

A `Batch` owns the arrays. A `Wavefronts` object is a contiguous range of a batch's wavefronts at the same pc, through
which instructions read and write registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Array, join, lanes_of, words_of
from .float_mode import FloatMode
from .numerics import Numerics

VCC, TTMP0, M0, EXEC = 106, 108, 124, 126
"""Scalar operand numbers; 64-bit registers take two."""
NULL = 124
"""RDNA's null operand, which reads as 0 and ignores writes. RDNA's M0 is `M0` + 1."""
DROPPED = 128
"""First of two rows of `Batch.scalars` that receive writes to NULL."""
_SCALARS = 130
_PLAIN = FloatMode()
UNSET = 0xFFFFFFFF
"""Initial value of registers that the launch does not set: NaN as a float."""


class Batch:
    """Registers of wavefronts that are run together.

    Attributes:
        lanes: of a wavefront.
        vectors: uint32 [registers, wavefronts, lanes], accumulation registers after the ordinary ones.
        scalars: uint32 [130, wavefronts], by operand number: SGPRs, VCC, TTMPs, M0 or NULL, EXEC; then DROPPED.
        scc: bool [wavefronts].
        mode: uint32 [wavefronts], the MODE register.
        workgroup: int64 [wavefronts], index of the wavefront's workgroup in the batch.
        slot: int64 [wavefronts], index of the wavefront in the batch as it was launched.
        signalled: bool [wavefronts], that it has come to the barrier that it has not waited for yet (gfx12).
        numerics: numerical options of the launch.
    """

    def __init__(self, registers: int, wavefronts: int, lanes: int, numerics: Numerics | None = None):
        self.lanes, self.numerics = lanes, numerics or Numerics()
        self.vectors = np.full((registers, wavefronts, lanes), UNSET, np.uint32)
        self.scalars = np.full((_SCALARS, wavefronts), UNSET, np.uint32)
        self.scc = np.zeros(wavefronts, bool)
        self.mode = np.zeros(wavefronts, np.uint32)
        self.workgroup = np.zeros(wavefronts, np.int64)
        self.slot = np.arange(wavefronts)
        self.signalled = np.zeros(wavefronts, bool)

    def reorder(self, start: int, order: Array) -> None:
        """Permute wavefronts: wavefront start + order[i] moves to start + i."""
        here = slice(start, start + len(order))
        self.vectors[:, here] = self.vectors[:, here][:, order]
        self.scalars[:, here] = self.scalars[:, here][:, order]
        for array in (self.scc, self.mode, self.workgroup, self.slot, self.signalled):
            array[here] = array[here][order]


class Wavefronts:
    """Wavefronts [start, stop) of a batch, at one pc.

    Attributes:
        u32, i32, f32: the vector registers, [registers, wavefronts, lanes]; u16, f16: [registers, wavefronts,
            2 lanes], low half first.
        lanes, scalars, scc: as in `Batch`.
        shape: (wavefronts, lanes).
        dpp_sources: EXEC as it is for the source lanes of the DPP instruction being executed.
        memory: memory of the wavefronts (`access.Access`).
    """

    def __init__(self, batch: Batch, start: int, stop: int, pc: int, rank: int, memory: Any):
        self.batch, self.start, self.stop, self.pc, self.rank, self.memory = batch, start, stop, pc, rank, memory
        self.waiting = False
        self.last_run = 0
        self.count, self.lanes = stop - start, batch.lanes
        self.shape = (self.count, self.lanes)
        here = slice(start, stop)
        self.u32 = batch.vectors[:, here]
        self.i32, self.f32 = self.u32.view(np.int32), self.u32.view(np.float32)
        self.u16, self.i16, self.f16 = (self.u32.view(kind) for kind in (np.uint16, np.int16, np.float16))
        self.scalars = batch.scalars[:, here]
        self.scc = batch.scc[here]
        self.mode_register = batch.mode[here]
        self.workgroup, self.slot = batch.workgroup[here], batch.slot[here]
        self.signalled = batch.signalled[here]
        self.dpp_sources: Array | None = None
        self._active: Array | None = None
        self._active_known = False
        self._mode: FloatMode | None = None
        self._plain = False

    # Execution mask and modes

    @property
    def active(self) -> Array | None:
        """EXEC, bool [wavefronts, lanes]; None when every lane is active."""
        if not self._active_known:
            low, high = self.scalars[EXEC], self.scalars[EXEC + 1]
            full = int((low & high if self.lanes == 64 else low).min()) == 0xFFFFFFFF
            self._active = None if full else lanes_of(low, high, self.lanes)
            self._active_known = True
        return self._active

    @property
    def mode(self) -> FloatMode:
        """Float modes, which are uniform: s_setreg rejects values that differ between wavefronts."""
        if self._mode is None:
            self._mode = FloatMode.from_register(int(self.mode_register[0]))
        return self._mode

    @property
    def plain(self) -> bool:
        """True in the default modes: round to nearest, preserve denormals, overflow to infinity."""
        if self._mode is None:
            self._plain = self.mode == _PLAIN
        return self._plain

    def set_mode(self, value: Array) -> None:
        self.mode_register[...] = value
        self._mode = None

    def narrow(self, lanes: Array | None) -> Array | None:
        """Replace EXEC for one instruction by `lanes` (None: all). Returns the previous value."""
        before = self.active
        self._active = lanes
        return before

    # Registers: all register writes use these methods

    def write(self, register: int, value: Array) -> None:
        """Write uint32 values to the active lanes of a vector register."""
        active = self.active
        if active is None:
            self.u32[register] = value
        else:
            np.copyto(self.u32[register], value, where=active)

    def write_half(self, register: int, half: int, value: Array) -> None:
        """Write uint16 values to the low (0) or high (1) halves of a vector register's active lanes."""
        target = self.u16[register][:, half::2]
        active = self.active
        if active is None:
            target[...] = value
        else:
            np.copyto(target, value, where=active)

    def write_lane(self, register: int, lane: Array, value: Array) -> None:
        """Write one lane of each wavefront, even if it is inactive."""
        self.u32[register][np.arange(self.count), lane] = value

    def write_scalar(self, register: int, value: Array) -> None:
        """Write uint32 values, one per wavefront, to a scalar register."""
        self.scalars[register] = value
        if register >= EXEC:
            self._active_known = False

    def write_scalar_of(self, register: int, wavefronts: Any, value: Array) -> None:
        """Write a scalar register of the wavefronts selected by an index."""
        self.scalars[register, wavefronts] = value
        if register >= EXEC:
            self._active_known = False

    def write_scalar_pair(self, register: int, value: Array) -> None:
        """Write uint64 values, one per wavefront, to a pair of scalar registers."""
        self.write_scalar(register, (value & 0xFFFFFFFF).astype(np.uint32))
        self.write_scalar(register + 1, (value >> np.uint64(32)).astype(np.uint32))

    def write_lane_mask(self, register: int, lanes: Array) -> None:
        """Write a bool a lane, [wavefronts, lanes], as a mask to two scalar registers (one, of 32 lanes); inactive
        lanes become 0."""
        active = self.active
        low, high = words_of(lanes if active is None else lanes & active)
        self.write_scalar(register, low)
        if self.lanes == 64:
            self.write_scalar(register + 1, high)

    def lane_mask(self, register: int) -> Array:
        """The mask in two scalar registers, bool [wavefronts, lanes]."""
        return lanes_of(self.scalars[register], self.scalars[register + 1], self.lanes)

    def is_zero(self, register: int) -> Array:
        """Return True where a lane mask is empty, bool [wavefronts]."""
        low: Array = self.scalars[register]
        return (low if self.lanes == 32 else low | self.scalars[register + 1]) == 0

    def pair(self, register: int) -> Array:
        """Read a pair of scalar registers as uint64, one per wavefront."""
        return join(self.scalars[register], self.scalars[register + 1])
