"""Tests of rocBLAS's own test program: which are drawn, and what its output says."""

from __future__ import annotations

from benchmarks.rocm.own_tests import Outcome, drawn, listed, outcome

LISTED = """\
rocBLAS info: reading
_/asum.  # TypeParam = x
  blas1/quick_blas1_1  # GetParam() = { name: "a" }
  blas1/nightly_blas1_2
_/gemm.
  blas3/pre_checkin_gemm_3
command line: rocblas-test
"""
BEGUN = """\
[----------] 1 test from _/asum
[----------] 1 test from _/asum (5 ms total)

[----------] 1 test from _/gemm
"""
FAILED = "[  FAILED  ] _/gemm.a/b_3, where GetParam() = { }"


def test_names_are_those_of_suites():
    asum = ["_/asum.blas1/quick_blas1_1", "_/asum.blas1/nightly_blas1_2"]
    assert listed(LISTED) == [*asum, "_/gemm.blas3/pre_checkin_gemm_3"]


def test_one_quick_test_of_each_suite_is_drawn():
    names = [f"_/{suite}.a/{kind}_{index}" for suite in "ab" for kind in ("quick", "nightly") for index in range(50)]
    found = drawn(names, 1)
    assert [name[:13] for name in found] == ["_/a.a/quick_" + found[0][12], "_/b.a/quick_" + found[1][12]]
    assert drawn(names, 1) == found != drawn(names, 2)


def test_outcomes():
    assert outcome(BEGUN + "[  PASSED  ] 2 tests.\n") == Outcome(2, [])
    failed = f"{FAILED} (9 ms)\n[  PASSED  ] 1 test.\n[  FAILED  ] 1 test, listed below:\n{FAILED}\n"
    assert outcome(BEGUN + failed) == Outcome(1, ["_/gemm.a/b_3"])
    assert outcome(BEGUN + "Memory access fault by GPU\n") == Outcome(1, ["_/gemm"])
    assert outcome("cannot load") == Outcome(0, ["the program did not start"])
