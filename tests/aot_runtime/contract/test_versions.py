"""Versions of bundles are ordered as Python's packaging orders them."""

from __future__ import annotations

import itertools
import re

import pytest
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from aot_runtime.contract.versions import is_version, meets, parse_clauses, version_key

VERSIONS = [
    "0", "0.9.9", "1.dev0", "1.0.dev3", "1.0a1.dev2", "1.0a1", "1.0a2", "1.0a1.post1", "1.0b1", "1.0rc1",
    "1.0rc1.post2", "1", "1.0", "1.0.0", "1.0+rocm7", "1.0.post1.dev1", "1.0.post1", "1.0.1", "1.2", "1.10",
    "2.0rc10", "2.0",
]  # fmt: skip


def test_the_order_is_that_of_python_packages():
    for first, second in itertools.product(VERSIONS, repeat=2):
        public = [Version(text.partition("+")[0]) for text in (first, second)]
        keys = [version_key(text) for text in (first, second)]
        assert (keys[0] < keys[1]) == (public[0] < public[1]), (first, second)
        assert (keys[0] == keys[1]) == (public[0] == public[1]), (first, second)


@pytest.mark.parametrize("text", ["", "1.", "v1", "1.02", "1!2", "1.0-1", "1.2\n", "1" * 65])
def test_what_is_no_version_has_no_place_in_the_order(text: str):
    assert not is_version(text)
    with pytest.raises(ValueError, match="is not a version"):
        version_key(text)


def test_conditions_mean_what_they_mean_of_python_packages():
    """Installed pre-releases meet `>=` like other versions."""
    versions = [*VERSIONS, "1.0+rocm8", "1.0.post2", "1.2.3", "1.2.0.1", "2.0.dev1"]
    clauses = [f"{operator}{version}" for operator in ("==", "!=", "~=", ">=", "<=", ">", "<") for version in VERSIONS]
    clauses += [f"{operator}{version}.*" for operator in ("==", "!=") for version in ("0", "1", "1.0", "1.2.0", "2")]
    several = [">=1.0,<2", "~=1.0, !=1.0.1", ">1,<1.2,!=1.0.*", ">=1.0+x", "~=1.*", ">1.*"]
    several += ["==1.0rc1.*", "1.2", "==", "=>1"]
    known = 0
    for clause in [*clauses, *several]:
        try:
            wanted = SpecifierSet(clause)
            if "post" in clause and re.search("[ab]|rc", clause):
                continue  # no rule says what these exclude, and versions of `packaging` differ
        except InvalidSpecifier:
            with pytest.raises(
                ValueError, match=r"invalid version specifier|is not a version|goes with|needs two numbers"
            ):
                parse_clauses(clause)
            continue
        mine, known = parse_clauses(clause), known + 1
        for version in versions:
            assert meets(version, mine) == wanted.contains(version, prereleases=True), (version, clause)
    assert known > 140


def test_what_has_no_version_meets_no_condition():
    assert meets("", ()) and not meets("", parse_clauses("!=1"))
