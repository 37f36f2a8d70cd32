"""Mutation of code objects: each instruction replaced by s_nop in turn, to see which of them the checks notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from aot_emulator import EmulatorDriver, Options
from aot_emulator.errors import SanitizerError
from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.disassembly import disassemble
from aot_runtime import open_bundle
from aot_runtime.bundle.codeobject import read_loaded_image
from aot_runtime.device.device import Device
from aot_runtime.errors import AotError
from tests.support.emulation.launching import compile_kernel, launch

_NOP = b"\x00\x00\x80\xbf"
Run = Callable[[EmulatorDriver], bool]
"""Does the work of a case on a driver; returns whether the result is right. May raise `AotError`."""


class SubstitutingDriver(EmulatorDriver):
    """A driver that loads other code objects than it is told to: `substitutes`, by image."""

    def __init__(self, options: Options, substitutes: dict[bytes, bytes] | None = None):
        super().__init__(options)
        self.substitutes, self.images = substitutes or {}, {}

    def load_module(self, device: int, image: bytes) -> int:
        module = super().load_module(device, self.substitutes.get(image, image))
        self.images[module] = image
        return module


@dataclass(frozen=True)
class Outcome:
    """The outcome of a mutant. `notice`: `result` or `error` (without strict mode), `strict`, or `nothing`."""

    instruction: Instruction
    notice: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.instruction.pc:#07x}  {self.notice:8s} {disassemble(self.instruction):60s} {self.detail}"


@dataclass(frozen=True)
class Case:
    """A kernel, alone in its code object, and work for it."""

    name: str
    run: Run

    @cached_property
    def _recorded(self) -> tuple[bytes, Any]:
        driver = SubstitutingDriver(Options(strict=True))
        assert self.run(driver), f"{self.name}: the kernel is wrong as it is"
        ((module, kernel),) = driver._functions.values()
        return driver.images[module], kernel

    @cached_property
    def instructions(self) -> list[Instruction]:
        """Return the instructions that the case executes, except the end of the kernel."""
        runs = self._recorded[1].program._runs.values()
        executed = {found.pc: found for run in runs for found in run.instructions if found.mnemonic != "s_endpgm"}
        return [executed[pc] for pc in sorted(executed)]

    def mutant(self, instruction: Instruction, code: bytes | None = None) -> Outcome:
        """Run a kernel with other code in place of an instruction (None: s_nop), and return what the checks notice."""
        image, kernel = self._recorded
        code = code or _NOP * (instruction.size // 4)
        assert len(code) == instruction.size
        start = _file_offset(image, kernel.program.address - kernel.module.base + instruction.pc)
        changed = image[:start] + code + image[start + len(code) :]
        for strict in (False, True):
            options = Options(strict=strict, launch_budget=2_000_000)  # mutants may loop
            try:
                right = self.run(SubstitutingDriver(options, {image: changed}))
            except SanitizerError as error:
                return Outcome(instruction, "strict", f"{error.kind}: {error.message}")
            except AotError as error:
                return Outcome(instruction, "error", f"{type(error).__name__}: {error}")
            if not right:
                return Outcome(instruction, "result")
        return Outcome(instruction, "nothing")


def _file_offset(image: bytes, address: int) -> int:
    segments = read_loaded_image(image).segments
    segment = next(s for s in segments if s.address <= address < s.address + len(s.data))
    return image.index(segment.data) + address - segment.address


# Cases


def matmul(arch: str = "gfx942", stages: int = 2, aligned: tuple[str, ...] = ("m", "n", "k")) -> Case:
    """Multiply 32 x 32 x 128 integers, so that every order of sums gives the same."""
    arguments = ("a", "*fp16"), ("b", "*fp16"), ("c", "*fp32"), ("m", "i32"), ("n", "i32"), ("k", "i32")
    blocks = ("BLOCK_M", 32), ("BLOCK_N", 32), ("BLOCK_K", 32)
    options = ("num_warps", 4), ("num_stages", stages)
    kernel = compile_kernel("matmul_blocks", arguments, blocks, options, aligned, arch)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, shape).astype(np.float16) for shape in ((32, 128), (128, 32)))
    exact = a.astype(np.float32) @ b.astype(np.float32)

    def run(driver: EmulatorDriver) -> bool:
        given = {"a": a, "b": b, "c": np.full((32, 32), np.nan, np.float32), "m": 32, "n": 32, "k": 128}
        try:
            after, _ = launch(kernel, (1, 1), given, driver=driver)
        except AssertionError:  # written beside an array
            return False
        return np.array_equal(after["c"], exact)

    return Case("matmul", run)


def attention(path: Any) -> Case:
    """Run a bundle's causal attention: the first block of queries has no keys, and the last is ragged."""
    from kernels.attention.reference import attention as reference

    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, length, 64)).astype(np.float16) for length in (280, 150, 150))
    exact = reference(q, k, v, scale=0.125, causal=True)[0]

    def run(driver: EmulatorDriver) -> bool:
        bundle = open_bundle(path, device=Device(driver, 0))
        out = bundle.device.array(np.full(q.shape, np.nan, q.dtype))
        bundle.flash_attention(*(bundle.device.array(x) for x in (q, k, v)), out=out, causal=True, return_lse=True)
        return bool((np.abs(out.numpy().astype(np.float64) - exact) <= 4e-3).all())

    return Case("attention", run)
