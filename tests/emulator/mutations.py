"""Which faults in a code object a check notices: each instruction is replaced by s_nop, one at a time.

    PYTHONPATH=tests:tests/emulator python -m emulator.mutations matmul --strict --only s_waitcnt

prints a line for each mutant that nothing notices, and how many of each mnemonic were noticed.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import click
import numpy as np
from launching import Kernel, Options, compile_kernel, launch

from aot_runtime.codeobject import read_loaded_image
from aot_runtime.drivers.emulator.archs import ARCHS
from aot_runtime.drivers.emulator.decode import Instruction, decode
from aot_runtime.drivers.emulator.disassembly import disassemble
from aot_runtime.errors import EmulationError, SanitizerError

NOP, END = struct.pack("<I", 0xBF800000), struct.pack("<I", 0xBF810000)


@dataclass(frozen=True)
class Case:
    """A kernel, and a run of it that raises `AssertionError` for a wrong result."""

    kernel: Kernel
    run: Callable[[Kernel, Options], None]


@dataclass(frozen=True)
class Mutant:
    """An instruction that was deleted, and how that was noticed: empty if it was not."""

    instruction: Instruction
    noticed: str

    def __str__(self) -> str:
        return f"{self.instruction.pc:#6x}  {disassemble(self.instruction):60}  {self.noticed or 'NOT NOTICED'}"


def code_range(kernel: Kernel) -> tuple[int, bytes]:
    """Where the kernel's machine code begins in its file, and the code."""
    image = kernel.compiled.image
    loaded = read_loaded_image(image)
    address, size = loaded.symbols[kernel.compiled.symbol]
    segment = next(s for s in loaded.segments if s.address <= address < s.address + s.size)
    code = segment.data[address - segment.address :][:size]
    return image.index(code), code


def instructions(kernel: Kernel, arch: str = "gfx942") -> list[Instruction]:
    """What a launch may execute, but its end: with preloaded arguments, what follows the entry for older firmware."""
    found = decode(code_range(kernel)[1], ARCHS[arch])
    first = 256 if _preloads(found) else 0
    return [i for pc, i in found.items() if pc >= first and not i.mnemonic.startswith(("s_endpgm", "s_nop"))]


def _preloads(found: dict[int, Instruction]) -> bool:
    """Whether the first 256 bytes are loads for firmware that does not preload, and a jump over the rest of them."""
    return any(i.mnemonic == "s_branch" and i.branch_target() == 256 for pc, i in found.items() if pc < 256)


def without(kernel: Kernel, instruction: Instruction, by: bytes = NOP) -> Kernel:
    """The kernel with one instruction replaced by s_nop, or by another of 4 bytes."""
    begin, _ = code_range(kernel)
    image = bytearray(kernel.compiled.image)
    at = begin + instruction.pc
    image[at : at + instruction.size] = by + NOP * (instruction.size // 4 - 1)
    return replace(kernel, compiled=replace(kernel.compiled, image=bytes(image)))


def mutants(case: Case, options: Options, only: str = "") -> Iterator[Mutant]:
    """Every mutant of the instructions whose mnemonic starts with `only`."""
    case.run(case.kernel, options)
    for instruction in instructions(case.kernel):
        if instruction.mnemonic.startswith(only):
            yield Mutant(instruction, how_noticed(case, without(case.kernel, instruction), options))


def how_noticed(case: Case, mutant: Kernel, options: Options) -> str:
    try:
        case.run(mutant, options)
    except SanitizerError as error:
        return f"{error.kind}: {error.message}"
    except EmulationError as error:
        return f"{type(error).__name__}: {error.message}"
    except AssertionError:
        return "wrong result"
    return ""


# The cases


def matmul() -> Case:
    """64 by 64 by 96 through LDS, of small integers: exact."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((64, 96), (96, 64)))
    signature = (("a", "*fp16"), ("b", "*fp16"), ("c", "*fp32"), ("m", "i32"), ("n", "i32"), ("k", "i32"))
    blocks = (("BLOCK_M", 32), ("BLOCK_N", 32), ("BLOCK_K", 32))
    kernel = compile_kernel("matmul_blocks", signature, blocks, (("num_warps", 4),), ("m", "n", "k"))

    def run(kernel: Kernel, options: Options) -> None:
        c = np.full((64, 64), np.nan, np.float32)
        found, _ = launch(kernel, (2, 2), {"a": a, "b": b, "c": c, "m": 64, "n": 64, "k": 96}, options)
        assert np.array_equal(found["c"], a.astype(np.float32) @ b.astype(np.float32))

    return Case(kernel, run)


def layernorm() -> Case:
    """5 rows of 700 columns: reductions across the wavefronts of a workgroup, through LDS."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 700)).astype(np.float32)
    weight, bias = (rng.standard_normal(700).astype(np.float32) for _ in range(2))
    signature = (("x", "*fp32"), ("weight", "*fp32"), ("bias", "*fp32"), ("out", "*fp32"), ("columns", "i32"),
                 ("eps", "fp32"))  # fmt: skip
    kernel = compile_kernel("layernorm", signature, (("BLOCK", 1024),))
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * weight + bias

    def run(kernel: Kernel, options: Options) -> None:
        arguments = {
            "x": x,
            "weight": weight,
            "bias": bias,
            "out": np.full_like(x, np.nan),
            "columns": 700,
            "eps": 1e-5,
        }
        found, _ = launch(kernel, (5,), arguments, options)
        assert (np.abs(found["out"] - exact) <= 1e-5).all()

    return Case(kernel, run)


CASES: dict[str, Callable[[], Case]] = {"matmul": matmul, "layernorm": layernorm}


@click.command(help="Delete each instruction of a kernel in turn, and see what notices.")
@click.argument("case", type=click.Choice(list(CASES)))
@click.option("--strict", is_flag=True, help="In the emulator's strict mode.")
@click.option("--only", default="", help="Instructions whose mnemonic starts with this.")
def main(case: str, strict: bool, only: str) -> None:
    total: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    for mutant in mutants(CASES[case](), Options(strict=strict, budget=20_000), only):
        total[mutant.instruction.mnemonic] += 1
        noticed[mutant.instruction.mnemonic] += bool(mutant.noticed)
        if not mutant.noticed:
            click.echo(str(mutant))
    for mnemonic, count in total.most_common():
        click.echo(f"{mnemonic:28}{noticed[mnemonic]:4} of {count:4} noticed")
    click.echo(f"{'all':28}{noticed.total():4} of {total.total():4} noticed")


if __name__ == "__main__":
    main()
