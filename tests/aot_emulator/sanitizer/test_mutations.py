"""What the checks notice when an instruction of a kernel is taken out: above all waits and barriers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.wait_counters import waited_for

from tests.support.emulation.bundling import PLAIN_ATTENTION, built
from tests.support.emulation.mutations import PAGED, Case, attention, counts, decode, matmul, softmax
from tests.support.emulation.sweeps import sweep


def path_of(factory: pytest.TempPathFactory, manifest: str, *options: str) -> Path:
    return Path(built(factory, manifest, *options).path)


@pytest.fixture(scope="module")
def softmax_case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return softmax(path_of(tmp_path_factory, "rows", "op=softmax"))


@pytest.fixture(scope="module")
def attention_case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return attention(path_of(tmp_path_factory, "attention", PLAIN_ATTENTION))


@pytest.fixture(scope="module")
def decode_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return path_of(tmp_path_factory, "decode", PAGED)


def is_barrier(instruction: Instruction) -> bool:
    return instruction.mnemonic in ("s_barrier", "s_barrier_signal", "s_barrier_wait")


def is_wait(instruction: Instruction) -> bool:
    return bool(waited_for(instruction))


def check_waits_and_barriers(case: Case, every: int = 1) -> None:
    """Without each barrier, and every so many of the waits, the results stay right, and strict mode objects."""
    barriers = [found for found in case.instructions if is_barrier(found)]
    waits = [found for found in case.instructions if is_wait(found)]
    assert len(barriers) >= 3 and len(waits) >= 8, "the kernel has hardly any: this tests little"
    for instruction in barriers + waits[::every]:
        outcome = case.mutant(instruction)
        # To wait for a barrier that was not signalled is no error of strict mode alone.
        assert outcome.notice == ("error" if instruction.mnemonic == "s_barrier_signal" else "strict"), outcome


@sweep("arch", ("gfx942", "gfx1100", "gfx1201"), 3)
def test_matmul_without_a_wait_or_barrier(arch: str):
    check_waits_and_barriers(matmul(arch))


def loading_to_lds(stages: int) -> Case:
    return matmul("gfx950", stages, ("a", "b", "c", "m", "n", "k"))


@sweep("stages", (3, 2), 2)
def test_loads_to_lds_without_a_wait_or_barrier(stages: int):
    """With three stages loads are outstanding across barriers."""
    case = loading_to_lds(stages)
    assert any(found.field("lds") for found in case.instructions)
    for instruction in case.instructions:
        if is_barrier(instruction) or is_wait(instruction):
            outcome = case.mutant(instruction)
            assert outcome.notice == "strict", outcome


@pytest.mark.slow
def test_softmax_without_a_wait_or_barrier(softmax_case: Case):
    check_waits_and_barriers(softmax_case)


@pytest.mark.slow
def test_attention_without_a_wait_or_barrier(attention_case: Case):
    check_waits_and_barriers(attention_case, every=5)


@pytest.mark.slow
def test_decoding_without_a_wait_or_barrier(decode_path: Path):
    check_waits_and_barriers(decode(decode_path, "decode_split"), every=5)


@pytest.mark.slow
def test_a_merge_of_parts_without_a_wait(decode_path: Path):
    case = decode(decode_path, "merge_parts")
    waits = [found for found in case.instructions if is_wait(found)]
    assert len(waits) >= 4
    for wait in waits[::2]:
        outcome = case.mutant(wait)
        assert outcome.notice == "strict", outcome


def test_what_does_not_change_is_not_noticed():
    case = matmul()
    wait = next(filter(is_wait, case.instructions))
    stricter = wait.fields["simm16"] & ~0xC00F  # vmcnt(0)
    same = wait.fields["simm16"].to_bytes(2, "little") + b"\x8c\xbf"
    assert case.mutant(wait, same).notice == "nothing"
    assert case.mutant(wait, stricter.to_bytes(2, "little") + b"\x8c\xbf").notice == "nothing"


@sweep("case", (matmul, partial(loading_to_lds, 3)), 2, ids=lambda case: "to_registers" if case is matmul else "to_lds")
def test_a_wait_for_one_too_few(case: Callable[[], Case]):
    case = case()
    for wait in filter(is_wait, case.instructions):
        value = wait.fields["simm16"]
        if value & 15 != 15:  # of vmcnt
            outcome = case.mutant(wait, (value + 1).to_bytes(2, "little") + b"\x8c\xbf")
            assert outcome.notice == "strict" and outcome.detail.startswith("wait: "), outcome


@pytest.mark.slow
def test_most_mutants_of_matmul_are_noticed():
    case = matmul()
    outcomes = [case.mutant(found) for found in case.instructions[::4]]
    unnoticed = [outcome for outcome in outcomes if outcome.notice == "nothing"]
    assert len(unnoticed) < 0.25 * len(outcomes), "\n".join(map(str, unnoticed))
    assert {outcome.notice for outcome in outcomes} == {"result", "error", "strict", "nothing"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name,share",
    [("matmul", 0.25), ("softmax", 0.4), ("attention", 0.25), ("decode_split", 0.4), ("merge_parts", 0.4)],
)
def test_every_mutant(name: str, share: float, request: pytest.FixtureRequest):
    if name == "matmul":
        case = matmul()
    elif name in ("decode_split", "merge_parts"):
        case = decode(request.getfixturevalue("decode_path"), name)
    else:
        case = request.getfixturevalue(f"{name}_case")
    outcomes = list(case.mutants())
    unnoticed = [outcome for outcome in outcomes if outcome.notice == "nothing"]
    print(f"\n{name}: {counts(outcomes)}", *unnoticed, sep="\n")
    assert not [outcome for outcome in unnoticed if is_wait(outcome.instruction) or is_barrier(outcome.instruction)]
    assert len(unnoticed) < share * len(outcomes)
