"""Model of one compute unit: its wavefronts issue the recorded instruction sequences in order.

Each wavefront belongs to one of four SIMDs. In a slot of four cycles, a SIMD issues at most one instruction to each
unit. The wavefront that can issue earliest does; ties go to the highest priority, then to the oldest. Each SIMD has a
vector and a matrix pipe. Vector and matrix instructions do not issue together, as the VALU feeds the matrix pipe. LDS
and the memory path are shared by the SIMDs.

The code works on plain arrays, so that numba can compile it; `compute_unit` defines their meaning.
"""

from __future__ import annotations

import numpy as np

from .compiling import compiled

# Columns of `code`
UNIT, VM, LGKM, COUNTS_VM, COUNTS_LGKM, NEAR, PRIORITY, READS, READ_COUNT, WRITES, WRITE_COUNT = range(11)
CODE_COLUMNS = 11
# Columns of `amounts`
CYCLES, LDS_CLOCKS, L1_CLOCKS, LOADED, STORED = range(5)
AMOUNT_COLUMNS = 5
# Elements of `parameters`
LDS_LATENCY, CACHE_LATENCY, MEMORY_LATENCY, PER_LOADED, PER_STORED, BARRIER_CYCLES, MFMA_RESULT, STAGGER = range(8)
PER_SCRATCH, MFMA_HOLDS = 8, 9
PARAMETERS = 10
# Categories of wavefront cycles
SCALAR, VECTOR, MATRIX, LDS, MEMORY, LATENCY, BARRIER, SLEEP = range(8)
REASONS = 8
# Resources whose use is tracked
BUSY_VECTOR, BUSY_MATRIX, BUSY_LDS, BUSY_MEMORY = range(4)
BUSIES = 4
# Columns of `events`
EVENT_WAVE, EVENT_CODE, EVENT_READY, EVENT_ISSUED, EVENT_DONE, EVENT_REASON = range(6)
EVENT_COLUMNS = 6

_SIMDS, _UNITS, _TURN = 4, 8, 4.0
_U_SCALAR, _U_VECTOR, _U_MATRIX, _U_LDS, _U_LOAD, _U_STORE, _U_WAIT, _U_BARRIER = range(8)
_QUEUE = 128
_MOST_VM, _MOST_LGKM = 63, 15
"""Maximum outstanding operations of a counter (CDNA ISA)."""
_LDS_AHEAD, _MEMORY_AHEAD = 256.0, 512.0
"""Cycles of work that can queue at LDS and at L1 before wavefronts stall at issue."""
_REGISTERS = 512


@compiled
def _own_time(  # type: ignore[no-untyped-def]
    wave, index, ready, code, registers, vm, vm_queued, vm_count, lgkm, lgkm_memory, lgkm_count, results
):  # fmt: skip
    """Return (earliest issue cycle by the wavefront's own dependencies, reason, fraction of the wait due to memory)."""
    time, reason, shared = ready[wave], SCALAR, 0.0
    left = code[index, VM]
    if code[index, COUNTS_VM]:
        left = _MOST_VM - 1
    if left >= 0 and vm_count[wave] > left:
        place = (vm_count[wave] - left - 1) % _QUEUE
        if vm[wave, place] > time:
            time, reason, shared = vm[wave, place], LATENCY, vm_queued[wave, place]
    left = code[index, LGKM]
    if code[index, COUNTS_LGKM]:
        left = _MOST_LGKM - 1
    if left >= 0 and lgkm_count[wave] > left:
        place = (lgkm_count[wave] - left - 1) % _QUEUE
        if lgkm[wave, place] > time:
            time, reason, shared = lgkm[wave, place], LATENCY if lgkm_memory[wave, place] else LDS, 0.0
    for place in range(code[index, READS], code[index, READS] + code[index, READ_COUNT]):
        done = results[wave, registers[place]]
        if done > time:
            time, reason, shared = done, MATRIX, 0.0
    if code[index, UNIT] != _U_MATRIX:
        for place in range(code[index, WRITES], code[index, WRITES] + code[index, WRITE_COUNT]):
            done = results[wave, registers[place]]
            if done > time:
                time, reason, shared = done, MATRIX, 0.0
    return time, reason, shared


@compiled
def replay(  # type: ignore[no-untyped-def]
    code, amounts, registers, sequence, start, group, later, parameters, busy, spent, waited, events
):  # fmt: skip
    """Issue all instructions. Returns (cycle at which everything has completed, number of events written).

    Args:
        code: int32 [instructions, CODE_COLUMNS]; READS and WRITES are indices into `registers`.
        amounts: float64 [instructions, AMOUNT_COLUMNS].
        registers: int32 [any], vector register numbers.
        sequence, start: int32; wavefront w executes the instructions sequence[start[w]:start[w + 1]].
        group: int32 [wavefronts], workgroup of each wavefront.
        later: number of further workgroups; each replaces one that ends and executes the same instructions.
        parameters: float64 [PARAMETERS].
        busy: float64 [BUSIES], incremented by busy cycles; for vector and matrix pipes, summed over SIMDs.
        spent: float64 [REASONS], incremented by wavefront cycles, issuing and waiting.
        waited: float64 [instructions, REASONS], incremented by cycles that wavefronts waited to issue each instruction.
        events: float64 [any, EVENT_COLUMNS], receives the first events.
    """
    waves = len(start) - 1
    at = start[:-1].copy()
    ready, own, shared = np.zeros(waves), np.zeros(waves), np.zeros(waves)
    reason = np.zeros(waves, np.int64)
    priority = np.zeros(waves, np.int64)
    waiting = np.zeros(waves, np.bool_)
    vm, vm_queued = np.zeros((waves, _QUEUE)), np.zeros((waves, _QUEUE))
    lgkm, lgkm_memory = np.zeros((waves, _QUEUE)), np.zeros((waves, _QUEUE), np.bool_)
    vm_count, lgkm_count = np.zeros(waves, np.int64), np.zeros(waves, np.int64)
    results = np.zeros((waves, _REGISTERS))
    issue = np.zeros((_SIMDS, _UNITS))
    vector, matrix = np.zeros(_SIMDS), np.zeros(_SIMDS)
    lds = l1 = memory = end = 0.0
    groups = 0
    for wave in range(waves):
        groups = max(groups, group[wave] + 1)
    members, arrived = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    age = group.copy()
    live = written = 0
    for wave in range(waves):
        ready[wave] = group[wave] * parameters[STAGGER]
        if at[wave] < start[wave + 1]:
            live += 1
            members[group[wave]] += 1
            own[wave], reason[wave], shared[wave] = _own_time(
                wave, sequence[at[wave]], ready, code, registers, vm, vm_queued, vm_count, lgkm, lgkm_memory,
                lgkm_count, results,
            )  # fmt: skip
    while live:
        best, when, why = -1, 1e300, 0
        for wave in range(waves):
            if at[wave] >= start[wave + 1] or waiting[wave]:
                continue
            time = own[wave]
            if time > when:
                continue
            because = reason[wave]
            index, simd = sequence[at[wave]], wave % _SIMDS
            unit = code[index, UNIT]
            if issue[simd, unit] > time:
                time = issue[simd, unit]
                because = SCALAR
                if unit == _U_VECTOR:
                    because = VECTOR
                elif unit == _U_MATRIX:
                    because = MATRIX
                elif unit == _U_LDS:
                    because = LDS
                elif _U_LOAD <= unit <= _U_STORE:
                    because = MEMORY
            if unit == _U_VECTOR and vector[simd] > time:
                time, because = vector[simd], VECTOR
            elif unit == _U_MATRIX:
                if matrix[simd] > time:
                    time, because = matrix[simd], MATRIX
                if vector[simd] > time:
                    time, because = vector[simd], VECTOR
            elif unit == _U_LDS and lds - _LDS_AHEAD > time:
                time, because = lds - _LDS_AHEAD, LDS
            elif (_U_LOAD <= unit <= _U_STORE) and l1 - _MEMORY_AHEAD > time:
                time, because = l1 - _MEMORY_AHEAD, MEMORY
            if time == when:
                if priority[wave] < priority[best]:
                    continue
                if priority[wave] == priority[best] and age[wave] >= age[best]:
                    continue
            best, when, why = wave, time, because
        wave, simd = best, best % _SIMDS
        index = sequence[at[wave]]
        unit, cycles = code[index, UNIT], amounts[index, CYCLES]
        before = ready[wave]
        gap = when - before
        where = sequence[at[wave] - 1] if why == BARRIER else index
        if why == LATENCY and shared[wave] > 0:
            of_memory = gap * min(1.0, shared[wave])
            spent[MEMORY] += of_memory
            waited[where, MEMORY] += of_memory
            spent[LATENCY] += gap - of_memory
            waited[where, LATENCY] += gap - of_memory
        else:
            spent[why] += gap
            waited[where, why] += gap
        at[wave] += 1
        issue[simd, unit] = when + _TURN
        ready[wave] = when + _TURN
        if unit == _U_VECTOR:
            vector[simd] = when + cycles
            ready[wave] = when + cycles
            busy[BUSY_VECTOR] += cycles
            spent[VECTOR] += cycles
        elif unit == _U_MATRIX:
            matrix[simd] = when + cycles
            vector[simd] = when + _TURN + (cycles - _TURN) * parameters[MFMA_HOLDS]
            busy[BUSY_MATRIX] += cycles
            spent[MATRIX] += _TURN
            for place in range(code[index, WRITES], code[index, WRITES] + code[index, WRITE_COUNT]):
                results[wave, registers[place]] = when + cycles + parameters[MFMA_RESULT]
        elif unit == _U_LDS:
            clocks = max(amounts[index, LDS_CLOCKS], _TURN)
            lds = max(lds, when) + clocks
            busy[BUSY_LDS] += clocks
            spent[LDS] += _TURN
            place = lgkm_count[wave] % _QUEUE
            lgkm[wave, place], lgkm_memory[wave, place] = lds + parameters[LDS_LATENCY], False
            lgkm_count[wave] += 1
        elif _U_LOAD <= unit <= _U_STORE:
            spent[MEMORY] += _TURN
            l1 = max(l1, when) + max(amounts[index, L1_CLOCKS], _TURN)
            done = l1 + parameters[CACHE_LATENCY]
            queued = l1 - when
            if code[index, NEAR]:
                share = (amounts[index, LOADED] + amounts[index, STORED]) * parameters[PER_SCRATCH]
                memory = max(memory, when) + share
                busy[BUSY_MEMORY] += share
                queued = max(memory, l1) - when
                done = max(done, memory + parameters[CACHE_LATENCY])
            else:
                share = (
                    amounts[index, LOADED] * parameters[PER_LOADED] + amounts[index, STORED] * parameters[PER_STORED]
                )
                memory = max(memory, when) + share
                busy[BUSY_MEMORY] += share
                queued = max(memory, l1) - when
                done = max(done, max(memory, l1) + parameters[MEMORY_LATENCY])
            if vm_count[wave]:
                done = max(done, vm[wave, (vm_count[wave] - 1) % _QUEUE])
            place = vm_count[wave] % _QUEUE
            vm[wave, place], vm_queued[wave, place] = done, queued / (done - when)
            vm_count[wave] += 1
        elif unit == _U_SCALAR:
            ready[wave] = when + cycles
            if cycles >= 64:
                spent[SLEEP] += cycles
            else:
                spent[SCALAR] += cycles
            if code[index, COUNTS_LGKM]:
                place = lgkm_count[wave] % _QUEUE
                lgkm[wave, place], lgkm_memory[wave, place] = when + parameters[CACHE_LATENCY], True
                lgkm_count[wave] += 1
            if code[index, PRIORITY] >= 0:
                priority[wave] = code[index, PRIORITY]
        else:
            spent[SCALAR] += _TURN
        if written < len(events):
            events[written, EVENT_WAVE], events[written, EVENT_CODE] = wave, index
            events[written, EVENT_READY], events[written, EVENT_ISSUED] = before, when
            events[written, EVENT_DONE] = when + cycles if unit <= _U_MATRIX else when + _TURN
            events[written, EVENT_REASON] = why
            written += 1
        finished = at[wave] >= start[wave + 1]
        mine = group[wave]
        if finished:
            live -= 1
            members[mine] -= 1
            drained = ready[wave]
            if vm_count[wave]:
                drained = max(drained, vm[wave, (vm_count[wave] - 1) % _QUEUE])
            end = max(end, drained)
            if members[mine] == 0 and later > 0:
                later -= 1
                groups += 1
                for other in range(waves):
                    if group[other] != mine or start[other] == start[other + 1]:
                        continue
                    live += 1
                    members[mine] += 1
                    at[other], age[other], priority[other] = start[other], groups, 0
                    vm_count[other] = lgkm_count[other] = 0
                    results[other, :] = 0.0
                    ready[other] = when + parameters[STAGGER]
                    own[other], reason[other], shared[other] = _own_time(
                        other, sequence[at[other]], ready, code, registers, vm, vm_queued, vm_count, lgkm, lgkm_memory,
                        lgkm_count, results,
                    )  # fmt: skip
        else:
            own[wave], reason[wave], shared[wave] = _own_time(
                wave, sequence[at[wave]], ready, code, registers, vm, vm_queued, vm_count, lgkm, lgkm_memory,
                lgkm_count, results,
            )  # fmt: skip
            if unit == _U_BARRIER:
                waiting[wave] = True
                arrived[mine] += 1
        if arrived[mine] and arrived[mine] >= members[mine]:
            arrived[mine] = 0
            released = when + parameters[BARRIER_CYCLES]
            for other in range(waves):
                if waiting[other] and group[other] == mine:
                    waiting[other] = False
                    if released > own[other]:
                        own[other], reason[other], shared[other] = released, BARRIER, 0.0
    return end, written
