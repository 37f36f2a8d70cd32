"""Findings of strict mode after removing single instructions of a kernel, mainly waits and barriers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.wait_counters import waited_for
from tests.support.emulation.bundling import PLAIN_ATTENTION, built
from tests.support.emulation.mutations import Case, attention, matmul

ALIGNED = ("a", "b", "c", "m", "n", "k")


@pytest.fixture
def attention_case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return attention(Path(built(tmp_path_factory, "attention", PLAIN_ATTENTION).path))


def is_barrier(instruction: Instruction) -> bool:
    return instruction.mnemonic in ("s_barrier", "s_barrier_signal", "s_barrier_wait")


def is_wait(instruction: Instruction) -> bool:
    return bool(waited_for(instruction))


def check_waits_and_barriers(case: Case, every: int = 1) -> None:
    """Assert that without a barrier, or without one of a sample of waits, results stay right and strict mode reports a fault."""
    waits = [found for found in case.instructions if is_wait(found)]
    for instruction in [*filter(is_barrier, case.instructions), *waits[::every]]:
        outcome = case.mutant(instruction)
        # To wait for a barrier that was not signalled is no error of strict mode alone.
        assert outcome.notice == ("error" if instruction.mnemonic == "s_barrier_signal" else "strict"), outcome


@pytest.mark.parametrize("arch,stages,aligned", [
    ("gfx942", 2, ALIGNED[3:]), ("gfx950", 3, ALIGNED), *(pytest.param(*slow, marks=pytest.mark.slow) for slow in (
        ("gfx1100", 2, ALIGNED[3:]), ("gfx1201", 2, ALIGNED[3:]), ("gfx950", 2, ALIGNED)))])  # fmt: skip
def test_matmul_without_a_wait_or_barrier(arch: str, stages: int, aligned: tuple[str, ...]):
    """On gfx950 by loads to LDS, which with three stages are outstanding across barriers."""
    case = matmul(arch, stages, aligned)
    assert len([*filter(is_barrier, case.instructions)]) >= 2 and len([*filter(is_wait, case.instructions)]) >= 4
    assert any(found.field("lds") for found in case.instructions) == (arch == "gfx950")
    check_waits_and_barriers(case)


@pytest.mark.slow
def test_attention_without_a_wait_or_barrier(attention_case: Case):
    check_waits_and_barriers(attention_case, every=5)


def test_what_does_not_change_is_not_noticed():
    case = matmul()
    wait = next(filter(is_wait, case.instructions))
    for value in (wait.fields["simm16"], wait.fields["simm16"] & ~0xC00F):  # the same, and vmcnt(0)
        assert case.mutant(wait, value.to_bytes(2, "little") + b"\x8c\xbf").notice == "nothing"


@pytest.mark.parametrize("case", (matmul, lambda: matmul("gfx950", 3, ALIGNED)), ids=("to_registers", "to_lds"))
def test_a_wait_for_one_too_few(case):
    case = case()
    for wait in filter(is_wait, case.instructions):
        value = wait.fields["simm16"]
        if value & 15 != 15:  # of vmcnt
            outcome = case.mutant(wait, (value + 1).to_bytes(2, "little") + b"\x8c\xbf")
            assert outcome.notice == "strict" and outcome.detail.startswith("wait: "), outcome


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ("matmul", "attention"))
def test_every_mutant(name: str, request: pytest.FixtureRequest):
    case = matmul() if name == "matmul" else request.getfixturevalue("attention_case")
    outcomes = [case.mutant(instruction) for instruction in case.instructions]
    unnoticed = [outcome for outcome in outcomes if outcome.notice == "nothing"]
    print(f"\n{name}: {len(outcomes)} mutants, of which nothing noticed", *unnoticed, sep="\n")
    assert not [outcome for outcome in unnoticed if is_wait(outcome.instruction) or is_barrier(outcome.instruction)]
    assert len(unnoticed) < 0.25 * len(outcomes)
