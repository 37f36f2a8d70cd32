"""How tests write memory instructions for each instruction set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from aot_emulator.isa.archs import ARCHS
from aot_emulator.isa.memory.atomics import MEMORY_ATOMICS

from tests.support.emulation.memory_machine import is_rdna
from tests.support.emulation.sweeps import sweep

NOT_IN_MEMORY = (("gfx942", "min_f32"), ("gfx942", "max_f32"))  # in LDS only
TESTED = ("gfx942", "gfx1100", "gfx1201")
every_arch = pytest.mark.parametrize("arch", TESTED)


def named(table: Mapping[str, Any], every: int = 1) -> Any:
    """Parameters `arch` and `name`, from a table of names by ISA; packed atomics have a test of their own."""
    found = [(arch, name) for arch in TESTED for name in table[ARCHS[arch].isa] if not name.startswith("pk_")]
    if table is MEMORY_ATOMICS:
        found = [pair for pair in found if pair not in NOT_IN_MEMORY]
    return sweep("arch,name", found, every)


def no_soffset(arch: str) -> str:
    return "null" if is_rdna(arch) else "0"


def block(words: int, first: int = 8) -> str:
    return f"v[{first}:{first + words - 1}]" if words > 1 else f"v{first}"
