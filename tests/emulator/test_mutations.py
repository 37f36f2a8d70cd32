"""Strict mode notices every deleted barrier and every deleted wait that is executed; results notice most of the rest."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from launching import Options
from mutations import CASES, END, Case, how_noticed, mutants, without

STRICT = Options(strict=True, budget=20_000)


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def test_every_deleted_barrier_is_noticed(case: Case):
    found = list(mutants(case, STRICT, "s_barrier"))
    assert len(found) >= 3
    assert [str(mutant) for mutant in found if not mutant.noticed] == []


def test_results_alone_do_not_notice_deleted_barriers(case: Case):
    assert not all(mutant.noticed for mutant in mutants(case, Options(), "s_barrier"))


def test_every_deleted_wait_is_noticed(case: Case):
    """But those that are never executed: replaced by s_endpgm they would end the kernel too early."""
    found = list(mutants(case, STRICT, "s_waitcnt"))
    assert sum(bool(mutant.noticed) for mutant in found) >= 10
    for mutant in found:
        if not mutant.noticed:
            assert not how_noticed(case, without(case.kernel, mutant.instruction, END), Options()), str(mutant)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ("v_mfma", "ds_", "buffer_", "global_", "v_xor", "v_add_u32", "v_lshl"))
def test_most_deleted_instructions_are_noticed(case: Case, prefix: str):
    found = list(mutants(case, STRICT, prefix))
    assert sum(bool(mutant.noticed) for mutant in found) >= 0.8 * len(found), "\n".join(map(str, found))
