"""Random products that are compared with hipBLASLt's, and the file of their modelled times."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import distribution
from benchmarks.rocm.comparison import MOST_WORK, MULTIPLES, Results, drawn


def test_a_seed_gives_the_same_products():
    found = list(drawn(8, 3))
    assert found == list(drawn(8, 3)) != list(drawn(8, 4))
    assert list(drawn(2, 3)) == found[:6]
    for product in found:
        assert product.m * product.n * product.k <= MOST_WORK
        assert all(size % MULTIPLES[product.group] == 0 for size in product.sizes)
        assert product.group != "odd" or all(size % 2 for size in product.sizes)


def test_a_distribution():
    assert distribution([2.0, 1.0, 0.5, *[3.0] * 8]) == "11 products, median 3.00, lowest tenth 1.00, worst 0.50"


def test_known_times_are_not_modelled_again(tmp_path: Path):
    assert Results(tmp_path / "results").of("a", lambda: 1.5) == 1.5
    again = Results(tmp_path / "results")
    assert again.of("a", lambda: 2.5) == 1.5
    assert again.of("b", lambda: None) is None
