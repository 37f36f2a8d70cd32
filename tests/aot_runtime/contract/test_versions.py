"""Versions of bundles are ordered as Python's packaging orders them."""

from __future__ import annotations

import itertools

import pytest
from packaging.version import Version

from aot_runtime.contract.versions import is_version, version_key

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
    with pytest.raises(ValueError, match="is no version"):
        version_key(text)
