"""Replay of artificial traces: times of each unit, and waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot_emulator.timing import replay
from aot_emulator.timing.compute_unit import PIPES, REASONS, Workgroup

from .made import MACHINE, NEAR, cycles, index, workgroup

LDS_LATENCY = MACHINE.lds_latency


def test_vector_instructions_take_turns_on_a_simd():
    assert cycles(["valu"] * 10) == 40
    assert cycles(["exp"] * 10) == 160
    alone = [["valu"] * 10] * 4
    assert cycles(*alone) == 40  # a wavefront on each SIMD
    assert cycles(*alone, *alone) == 80


def test_matrix_instructions_overlap_vector_ones():
    assert cycles(["mfma"] * 10) == pytest.approx(9 * 32 + 4)  # the last one's result is waited for by nobody
    assert cycles(["mfma", *["valu"] * 7] * 10) == pytest.approx(320)
    waves = [["mfma"] * 10, *[[]] * 3, ["valu"] * 80]  # of one SIMD
    assert cycles(*waves) == pytest.approx((10 + 80) * 4, abs=8)  # all of them issue by the vector unit


def test_a_workgroup_starts_where_another_has_ended():
    """Two of three are resident, and the older is preferred: the third begins before the second ends."""
    made = workgroup(*[["exp"] * 10 + ["valu"] * 10] * 4)
    one, two, three = (made.on(NEAR, 2, count).cycles for count in (1, 2, 3))
    assert one == 200 and two == pytest.approx(400, abs=8)
    assert three == pytest.approx(600, abs=16)
    waits = workgroup(*[["load", "wait load", *["exp"] * 10]] * 4)
    alone, apart, three = (waits.on(NEAR, resident, count).cycles for resident, count in ((1, 1), (1, 3), (2, 3)))
    assert apart == pytest.approx(3 * alone, rel=0.02) and 1.95 * alone < three < 2.3 * alone
    assert waits.on(NEAR, 2, 41).cycles == pytest.approx(waits.replayed(NEAR, 2, None, count=41).cycles, rel=0.02)


def test_a_chain_of_matrix_instructions_waits_for_its_results():
    assert cycles(["chained mfma"] * 10) == pytest.approx(9 * (32 + MACHINE.mfma_result) + 4)
    assert cycles(["mfma", "use"]) == pytest.approx(32 + MACHINE.mfma_result + 4)
    waited = workgroup(["mfma", "use"]).on(NEAR, 1).waited[index("use")]
    assert REASONS[int(waited.argmax())] == "matrix" and waited.sum() == 32 + MACHINE.mfma_result - 4


def test_lds_serves_one_wavefront_after_the_other():
    assert cycles(["lds", "wait lds"]) == 8 + LDS_LATENCY + 4
    assert cycles(*[["lds", "wait lds"]] * 4) == 4 * 8 + LDS_LATENCY + 4
    assert cycles(*[["conflict", "wait lds"]] * 4) == 4 * 32 + LDS_LATENCY + 4


def test_loads_wait_for_latency_and_for_their_share_of_the_memory():
    assert cycles(["load", "wait load"]) == 16 + 500 + 4
    assert cycles(["load"]) == 16 + 500  # a wavefront's end waits for what it has given
    assert cycles(*[["load", "wait load"]] * 4) == 4 * 16 + 500 + 4
    assert cycles(["scattered", "wait load"]) == 64 + 500 + 4  # a line a clock
    alone, many = (workgroup(["load"] * count + ["wait load"]).on(NEAR, 1) for count in (1, 60))
    latency, memory = (REASONS.index(name) for name in ("latency", "memory"))
    assert alone.spent[latency] > 10 * alone.spent[memory] - 100 and many.spent[memory] > many.spent[latency]


def test_loads_come_back_in_order():
    """A wait for all loads waits for the slowest, though the last one is near."""
    assert cycles(["scratch", "wait load"]) == 4 + MACHINE.cache_latency + 4
    assert cycles(["load", "scratch", "wait load"]) == cycles(["load", "wait load"])


def test_what_l1_has_to_fetch_takes_its_time():
    trace = workgroup(["load", "wait load"]).trace
    slow = Workgroup(trace, 0, replace(MACHINE, missed_bytes=16))
    assert slow.on(NEAR, 1).cycles == 1024 / 16 + 500 + 4
    near = Workgroup(workgroup(["scratch", "wait load"]).trace, 0, replace(MACHINE, missed_bytes=16))
    assert near.on(NEAR, 1).cycles == cycles(["scratch", "wait load"])


def test_wavefronts_share_the_way_to_memory():
    slow = replace(NEAR, per_loaded=1 / 16)
    found = workgroup(*[["load", "wait load"]] * 4).on(slow, 1)
    assert found.cycles == 4 * 1024 / 16 + 500 + 4 and found.busy[PIPES.index("memory")] == 4 * 1024 / 16


def test_a_wait_that_leaves_some_goes_on_sooner():
    def until_use(wait: str) -> float:
        return float(workgroup(["load", "load", wait, "valu"]).on(NEAR, 1).waited[index(wait)].sum())

    assert until_use("wait load") - until_use("wait but one") == 16


def test_a_barrier_holds_all_of_a_workgroup_and_no_other():
    late, early = ["exp"] * 10 + ["barrier", "valu"], ["barrier", "valu"]
    assert cycles(late, early) == 160 + MACHINE.barrier + 4
    found = workgroup(late, early).on(NEAR, 1)
    assert found.waited[index("barrier"), REASONS.index("barrier")] > 140
    both = workgroup(["barrier", *["valu"] * 3]).on(NEAR, 8)  # each is alone in its workgroup
    assert both.cycles == pytest.approx(4 + MACHINE.barrier + 12 + 12, abs=4)


def test_priority_decides_among_those_that_could_issue():
    """Wavefronts 0 and 4 share a SIMD: the first is done first, unless the other asks for priority."""
    assert _ends(["head", *["valu"] * 20]) == sorted(_ends(["head", *["valu"] * 20]))
    first, raised = _ends(["raise", *["valu"] * 20])
    assert raised < first


def _ends(other: list[str]) -> list[float]:
    """Return when wavefronts 0 and 4 have issued everything; 4 executes what is given."""
    events = np.zeros((100, replay.EVENT_COLUMNS))
    workgroup(["head", *["valu"] * 20], [], [], [], other).replayed(NEAR, 1, None, events)
    rows = events[events[:, replay.EVENT_DONE] > 0]
    return [float(rows[rows[:, replay.EVENT_WAVE] == wave][:, replay.EVENT_DONE].max()) for wave in (0, 4)]


def test_what_is_busy_adds_up():
    found = workgroup(["mfma", "valu", "conflict"] * 5).on(NEAR, 2)
    busy = dict(zip(PIPES, found.busy, strict=True))
    assert busy == {"matrix": 2 * 5 * 32, "vector": 2 * 5 * 4, "lds": 2 * 5 * 32, "memory": 0}


@pytest.mark.parametrize("body", [["mfma", *["valu"] * 3, "use"], ["load", "wait load", *["valu"] * 9],
                                  ["conflict", "wait lds", "barrier", "mfma"]])  # fmt: skip
def test_many_iterations_follow_from_few(body: list[str]):
    """A loop of 40 iterations is extrapolated, and replayed whole."""
    waves = [["valu"] * 5 + ["head", *body] * 40 + ["exp"] * 3] * 4
    made = workgroup(*waves)
    whole, found = made.replayed(NEAR, 2, None), made.on(NEAR, 2)
    assert found.cycles == pytest.approx(whole.cycles, rel=0.02)
    assert found.busy == pytest.approx(whole.busy) and found.spent.sum() == pytest.approx(whole.spent.sum(), rel=0.02)


def test_scratch_takes_its_share_of_the_l2():
    far = replace(NEAR, per_scratch=1 / 4)
    found = workgroup(*[["scratch", "wait load"]] * 4).on(far, 1)
    assert found.cycles == 4 * 256 / 4 + MACHINE.cache_latency + 4
    assert found.busy[PIPES.index("memory")] == 4 * 256 / 4
