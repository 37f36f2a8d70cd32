"""Strict mode: barriers, ways to enable it, and instruction budgets."""

from __future__ import annotations

import pytest

from aot_emulator import EmulatorDriver, Options, Order
from aot_emulator.errors import InstructionBudgetError, SanitizerError
from tests.support.emulation.assembled import ORDERS, POINTER, WAVE, fault, launch, run

FORK = WAVE + "s_cmp_eq_u32 s6, {}\ns_cbranch_scc1 .Lother\ns_barrier\n{}\n.Lother:\n{}\n.Lend_:\n"
SHIFT = "s_cmp_eq_u32 s6, {0}\ns_cbranch_scc1 .Lover{0}\ns_barrier\n.Lover{0}:\n"


@ORDERS
def test_different_barriers(order: Order):
    run(WAVE + "s_barrier\n", wavefronts=3, order=order)
    error = fault("barrier", r"s_barrier at pc .*waits here, another at the barrier at pc 0x",
                  FORK.format(1, "s_branch .Lend_", "s_barrier"), wavefronts=3, workgroups=2, order=order)  # fmt: skip
    assert error.thread.workgroup == (0, 0, 0) and error.instruction == "s_barrier"


@ORDERS
def test_barriers_that_are_shifted_on_purpose(order: Order):
    """Wavefront 0 is one barrier ahead of 1 between the two branches; without the second it would end too early."""
    run(WAVE + SHIFT.format(0) + "s_barrier\ns_nop 0\ns_barrier\n" + SHIFT.format(1), wavefronts=2, order=order)
    fault("barrier", "have ended", WAVE + SHIFT.format(0) + "s_barrier\n", wavefronts=2, order=order)
    fault("barrier", "have ended", FORK.format(2, "s_endpgm", "s_endpgm"), wavefronts=3, order=order)


def test_a_launch_that_is_not_strict_ends_the_record_of_what_was_written():
    driver = EmulatorDriver(Options(strict=True))
    address, copy = driver.allocate_now(0, 256), POINTER + "global_load_dword v2, v1, s[4:5]\n"
    with pytest.raises(SanitizerError, match="never written"):
        launch(driver, copy, address)
    driver.options = Options(strict=False)
    launch(driver, POINTER + "global_store_dword v1, v0, s[4:5]", address)
    driver.options = Options(strict=True)
    launch(driver, copy, address)


@pytest.mark.parametrize("options", ({"budget": 100}, {"launch_budget": 400}), ids=str)
def test_budgets(options: dict[str, int]):
    with pytest.raises(InstructionBudgetError, match=r"s_branch 0x0 at pc .*endless"):
        run(".Lloop:\ns_branch .Lloop", wavefronts=4, **options)
    run("s_nop 0\n" * 90, wavefronts=4, **options)


def test_the_launch_budget_is_of_all_wavefronts():
    run("s_nop 0\n" * 90, wavefronts=1, launch_budget=100)
    with pytest.raises(InstructionBudgetError):
        run("s_nop 0\n" * 90, wavefronts=2, launch_budget=100)


@ORDERS
@pytest.mark.parametrize("strict", (False, True))
def test_a_barrier_that_others_never_reach_ends_in_the_budget(strict: bool, order: Order):
    with pytest.raises(InstructionBudgetError):
        run(
            FORK.format(1, "s_endpgm", ".Lloop:\ns_branch .Lloop"),
            wavefronts=2,
            budget=2000,
            order=order,
            strict=strict,
        )
