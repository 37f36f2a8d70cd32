"""Facts about libamdhip64, checked with AMD's own library (`--on rocm`) and always with its double."""

from __future__ import annotations

import ctypes
import os
import re
from types import SimpleNamespace

import pytest

pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")

from tests.support.emulated_launches import as_hip_copies
from tests.support.hip_conformance import FACTS, Hip
from tests.support.hip_double.double import DoubleLibrary
from tests.support.hip_kernels import scale_code
from tests.support.session_builds import ROOT

FUNCTIONS = re.compile(r"X\((hip[A-Z]\w+)\)")


def check(path: str, *names: str) -> set[str]:
    """Hold a library to facts; return the functions that were called."""
    hip = Hip(ctypes.CDLL(path))
    for name in names:
        before = len(hip.differences)
        FACTS[name](hip)
        hip.differences[before:] = [f"{name}: {difference}" for difference in hip.differences[before:]]
    assert not hip.differences, "\n".join(hip.differences)
    return hip.called


def check_double(*names: str) -> None:
    print(*check(f"{os.environ['ROCM_PATH']}/lib/libamdhip64.so", *names))


def test_the_double(hip_double: DoubleLibrary):
    """Each function that the double has is in a fact."""
    hip_double.only("AMD's library has tests of its own")
    for arch in ("gfx942", "gfx1100"):
        scale_code(arch)
    called = set(hip_double.run(check_double, *FACTS, HIP_DOUBLE_DEVICES=2).split())
    assert called == set(FUNCTIONS.findall((ROOT / "tests/support/hip_double/common.h").read_text()))


@pytest.mark.on("rocm")
@pytest.mark.parametrize("name", FACTS)
def test_the_library(name: str):
    from tests.rocm.session import inside

    check(str(inside().hip), name)


def test_padding_between_arguments_is_garbage():
    args = [SimpleNamespace(offset=offset, size=size) for offset, size in ((0, 4), (8, 8), (40, 8))]
    found = as_hip_copies(bytes(range(20)), SimpleNamespace(args=args))
    assert found == bytes([0, 1, 2, 3, *[0x55] * 4, *range(8, 16), *[0x55] * 4])
