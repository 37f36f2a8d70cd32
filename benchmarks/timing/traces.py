"""Compile a configuration of a kernel for gfx942, run one workgroup on the emulator, and keep its trace.

Traces are kept as pickles in a folder: compiling and running one takes a second or two.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import struct
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import structures
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from aot_emulator import ARCHS, EmulatorDriver, Options, Statistics
from aot_emulator.machine.launch_records import Launch
from aot_emulator.state.arrays import Array
from aot_emulator.state.device_memory import Memory
from aot_emulator.timing.constants import machine_of
from aot_emulator.timing.costs import Unit
from aot_emulator.timing.trace import Trace, record
from aot_runtime.contract.occupancy import occupancy

Tensor = int | Array
"""A tensor that a kernel gets: the size in bytes of one that is all zeros, or its contents."""
ARCH, NUM_CUS, NUM_XCDS = "gfx942", 304, 8
STEPS = (17, 65)
"""Numbers of steps of the loop that are tried: the larger one if LLVM unrolls the loop."""


@dataclass(frozen=True)
class Product:
    """A configuration of `structures.product`.

    Attributes:
        layout: TN or TT.
        split: programs for each tile, each with a part of K; 0 if programs are persistent. 0 and 1 have the same trace;
            larger numbers share another, in which results are added.
    """

    bm: int
    bn: int
    bk: int
    warps: int
    nonkdim: int = 16
    kpack: int = 2
    layout: str = "TN"
    split: int = 0

    @property
    def name(self) -> str:
        added = "_added" if self.split > 1 else ""
        return f"{self.bm}x{self.bn}x{self.bk}_w{self.warps}_n{self.nonkdim}_k{self.kpack}_{self.layout}{added}"

    @property
    def step_bytes(self) -> int:
        """Return the bytes that a step of the loop loads."""
        return (self.bm + self.bn) * self.bk * 2

    def compiled(self, attributes: str) -> Any:
        names = ("a", "b", "c", "m", "n", "k", "stride_am", "stride_bn", "stride_cm")
        signature = {name: "*fp16" if name in "abc" else "i32" for name in names}
        constants = {"BM": self.bm, "BN": self.bn, "BK": self.bk, "GROUP_M": 4, "NUM_SMS": NUM_CUS,
                     "NUM_XCDS": NUM_XCDS, "B_ROWS": self.layout == "TT", "ADDED": self.split > 1}  # fmt: skip
        options = {"num_warps": self.warps, "num_stages": 2, "waves_per_eu": 0, "matrix_instr_nonkdim": self.nonkdim,
                   "kpack": self.kpack, "llvm_fn_attrs": attributes}  # fmt: skip
        with triton.knobs.amd.scope():
            triton.knobs.amd.use_in_thread_transpose = False  # of 2025; the tables of products are older
            return _compiled(structures.product, signature, dict.fromkeys(names, 16), constants, options)

    def steps(self, at_least: int) -> int:
        return at_least

    def arguments(self, steps: int) -> tuple[list[Tensor], bytes]:
        """Return (tensors, scalars) of one tile with this many steps."""
        k = self.bk * steps
        sizes: list[Tensor] = [self.bm * k * 2, self.bn * k * 2, self.bm * self.bn * 2]
        across = self.bn if self.layout == "TT" else k
        return sizes, struct.pack("<6i", self.bm, self.bn, k, k, across, self.bn)


@dataclass(frozen=True)
class Scaled:
    """A configuration of `structures.scaled_product`. `group` is GROUP_M, which does not change the trace."""

    bm: int
    bn: int
    bk: int = 128
    warps: int = 4
    group: int = 8

    @property
    def name(self) -> str:
        return f"scaled_{self.bm}x{self.bn}x{self.bk}_w{self.warps}"

    @property
    def step_bytes(self) -> int:
        return (self.bm + self.bn) * self.bk

    def compiled(self, attributes: str) -> Any:
        sizes = ("m", "n", "k", "stride_am", "stride_bn", "stride_cm", "stride_as", "stride_bs")
        signature = {"a": "*fp8e4b8", "b": "*fp8e4b8", "c": "*bf16", "a_scales": "*fp32", "b_scales": "*fp32"}
        constants = {"BM": self.bm, "BN": self.bn, "BK": self.bk, "GROUP_M": 8}
        options = {"num_warps": self.warps, "num_stages": 2, "matrix_instr_nonkdim": 16, "llvm_fn_attrs": attributes}
        divisible = dict.fromkeys((*signature, *sizes[:6]), 16)
        return _compiled(
            structures.scaled_product, signature | dict.fromkeys(sizes, "i32"), divisible, constants, options
        )

    def steps(self, at_least: int) -> int:
        return at_least

    def arguments(self, steps: int) -> tuple[list[Tensor], bytes]:
        """Return (tensors, scalars) of one tile with this many steps."""
        k = self.bk * steps
        sizes: list[Tensor] = [self.bm * k, self.bn * k, self.bm * self.bn * 2]
        sizes += [self.bm * steps * 4, -(-self.bn // 128) * steps * 4]
        return sizes, struct.pack("<8i", self.bm, self.bn, k, k, k, self.bn, steps, steps)


@dataclass(frozen=True)
class Experts:
    """A configuration of `structures.experts`. `rows` is the number of tokens in the traced block; 0: a full block."""

    bm: int
    bn: int
    bk: int
    warps: int
    nonkdim: int = 16
    kpack: int = 2
    rows: int = 0

    @property
    def name(self) -> str:
        rows = f"_r{self.rows}" if self.rows else ""
        return f"experts_{self.bm}x{self.bn}x{self.bk}_w{self.warps}_n{self.nonkdim}_k{self.kpack}{rows}"

    @property
    def few(self) -> int:
        """Return the rows of the trace that is used for blocks that are less than half full."""
        return max(1, self.bm // 8)

    @property
    def step_bytes(self) -> int:
        return ((self.rows or self.bm) + self.bn) * self.bk * 2

    def compiled(self, attributes: str) -> Any:
        pointers = {"a": "*fp16", "b": "*fp16", "c": "*fp16", "weights": "*fp32"}
        pointers |= dict.fromkeys(("tokens", "expert_of", "padded"), "*i32")
        sizes = ("n", "k", "em", "valid", "stride_am", "stride_be", "stride_bn", "stride_cm")
        constants = {"BM": self.bm, "BN": self.bn, "BK": self.bk, "GROUP_M": 4, "TOP_K": 2}
        options = {"num_warps": self.warps, "num_stages": 2, "waves_per_eu": 0, "matrix_instr_nonkdim": self.nonkdim,
                   "kpack": self.kpack, "llvm_fn_attrs": attributes}  # fmt: skip
        divisible = dict.fromkeys((*pointers, *(name for name in sizes if name not in ("em", "valid"))), 16)
        return _compiled(structures.experts, pointers | dict.fromkeys(sizes, "i32"), divisible, constants, options)

    def steps(self, at_least: int) -> int:
        return at_least

    def arguments(self, steps: int) -> tuple[list[Tensor], bytes]:
        """Return (tensors, scalars) of one block with this many steps."""
        k, valid = self.bk * steps, 2 * self.bm
        tokens = np.full(self.bm, valid, np.int32)
        tokens[: self.rows or self.bm] = np.arange(self.rows or self.bm) * 2 + 1
        sizes: list[Tensor] = [self.bm * k * 2, self.bn * k * 2, valid * self.bn * 2, valid * 4]
        sizes += [tokens, np.zeros(1, np.int32), np.array([self.bm], np.int32)]
        return sizes, struct.pack("<8i", self.bn, k, self.bm, valid, k, self.bn * k, k, self.bn)


_STRIDES = {"q": "zhm", "k": "zhn", "v": "zhk", "out": "zhm"}
"""Tensor of attention → its axes with a stride."""


@dataclass(frozen=True)
class Attention:
    """A configuration of `structures.attention`."""

    d: int
    bm: int
    bn: int
    warps: int
    waves_per_eu: int
    preload: int
    causal: bool = False
    dtype: str = "fp16"

    @property
    def name(self) -> str:
        form = f"{'c' if self.causal else ''}{self.dtype}"
        return f"flash_{form}_d{self.d}_{self.bm}x{self.bn}_w{self.warps}_e{self.waves_per_eu}_p{self.preload}"

    @property
    def step_bytes(self) -> int:
        return 4 * self.bn * self.d

    def compiled(self, attributes: str) -> Any:
        strides = [f"{tensor[0]}{axis}" for tensor, axes in _STRIDES.items() for axis in axes]
        signature = dict.fromkeys(_STRIDES, f"*{self.dtype}") | {"lse": "*fp32", "counter": "*i32", "scale": "fp32"}
        numbers = ("heads", "batch", "sq", "sk", "right", "first")
        signature |= dict.fromkeys(strides, "u64") | dict.fromkeys(numbers, "i32")
        divisible = dict.fromkeys((*_STRIDES, "lse", "counter"), 16) | dict.fromkeys(strides, 8)
        constants = {"D": self.d, "BM": self.bm, "BN": self.bn, "PRELOAD_V": bool(self.preload), "CAUSAL": self.causal}
        options = {
            "num_warps": self.warps,
            "num_stages": 1,
            "waves_per_eu": self.waves_per_eu,
            "llvm_fn_attrs": attributes,
        }
        return _compiled(structures.attention, signature, divisible, constants, options)

    def arguments(self, steps: int) -> tuple[list[Tensor], bytes]:
        """Return (tensors, scalars) of a block with this many unmasked steps, or slightly more if it is causal."""
        block = -(-steps * self.bn // self.bm) if self.causal else 0
        sq, sk = (block + 1) * self.bm, (block + 1) * self.bm if self.causal else steps * self.bn
        sizes: list[Tensor] = [sq * self.d * 2, sk * self.d * 2, sk * self.d * 2, sq * self.d * 2, sq * 4, 4]
        strides = [stride for length in (sq, sk, sk, sq) for stride in (length * self.d, length * self.d, self.d)]
        return sizes, struct.pack("<f4x12Q6i", 0.1, *strides, 1, 1, sq, sk, 0, block)

    def steps(self, at_least: int) -> int:
        """Return the unmasked steps of the block that `arguments` returns."""
        return -(-at_least * self.bn // self.bm) * self.bm // self.bn if self.causal else at_least


Config = Product | Attention | Scaled | Experts


@dataclass(frozen=True, eq=False)
class Traced:
    """A configuration's trace.

    Attributes:
        trace: the trace of one workgroup, without texts and statistics.
        steps: the steps of the kernel's loop that the workgroup made.
        resident: the workgroups that fit on a compute unit.
        spills: the number of scratch instructions.
    """

    config: Config
    trace: Trace
    steps: int
    resident: int
    spills: int

    @property
    def trips(self) -> int:
        """The number of iterations of the code's loop."""
        return max(count for _, count in self.trace.waves[0][0].parts)

    @cached_property
    def unroll(self) -> int:
        """The number of steps of the kernel's loop in one iteration of the code's loop.

        It is counted by matrix instructions; in causal attention, whose masked steps also have some, by loads.
        """
        trace = self.trace
        body = [part for part, count in trace.waves[0][0].parts if count > 1]
        if not getattr(self.config, "causal", False):
            matrix = np.array([cost.unit is Unit.MATRIX for cost in trace.costs])
            every = sum(int(matrix[part].sum()) * count for part, count in trace.waves[0][0].parts)
            return max(1, round(sum(int(matrix[part].sum()) for part in body) * self.steps / every))
        loads = trace.amounts[:, 1] * np.array([not cost.near for cost in trace.costs])
        loaded = sum(float(loads[part].sum()) for part in body) * len(trace.waves[0])
        return max(1, round(loaded / self.config.step_bytes))

    @property
    def peeled(self) -> int:
        """Return the number of steps outside the code's loop."""
        return max(0, self.steps - self.trips * self.unroll)


def _compiled(
    kernel: Any,
    signature: dict[str, str],
    divisible: dict[str, int],
    constants: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    attributes = {
        (at,): [["tt.divisibility", divisible[name]]] for at, name in enumerate(signature) if name in divisible
    }
    source = ASTSource(kernel, signature | dict.fromkeys(constants, "constexpr"), constants, attributes)
    with triton.knobs.amd.scope():
        # Neither was the default when the tables were made.
        triton.knobs.amd.use_block_pingpong = triton.knobs.amd.use_buffer_ops = False
        return triton.compile(source, target=GPUTarget("hip", ARCH, 64), options=options)


def _spilled(compiled: Any) -> int:
    return len(re.findall(r"^\s+scratch_", compiled.asm["amdgcn"], re.M))


def traced(config: Config, folder: Path) -> Traced:
    """Return the trace of a configuration from the folder, or make it. Raises `ValueError` if the kernel has no loop.

    If the compiler spills registers in a product, LLVM's other scheduling strategy is tried. The winners were published
    in 2024, and the Triton of that year is unlikely to have spilled in them. The tables of attention are as new as this
    compiler.
    """
    path = folder / f"{config.name}.pickle"
    if path.exists():
        return pickle.loads(path.read_bytes())  # type: ignore[no-any-return]
    folder.mkdir(parents=True, exist_ok=True)
    compiled = config.compiled("")
    if _spilled(compiled) and not isinstance(config, Attention):
        other = config.compiled("amdgpu-sched-strategy=max-ilp")
        compiled = other if _spilled(other) < _spilled(compiled) else compiled
    # Options that change nothing give the same code, which has to be run once.
    rows = f"_r{config.rows}" if isinstance(config, Experts) and config.rows else ""
    same = folder / f"code_{hashlib.sha256(compiled.asm['hsaco']).hexdigest()[:20]}{rows}"
    if same.exists():
        found = replace(pickle.loads((folder / same.read_text()).read_bytes()), config=config)
    else:
        runs = (_run(config, compiled, steps) for steps in STEPS)
        found = next((run for run in runs if run is not None), None)
        if found is None:
            raise ValueError("no loop was executed often enough")
        same.write_text(path.name)
    path.write_bytes(pickle.dumps(found))
    return found


def _run(config: Config, compiled: Any, steps: int) -> Traced | None:
    found: list[tuple[Trace, Launch]] = []
    machine = machine_of(ARCH)
    given, scalars = config.arguments(steps)
    held = [np.zeros(of, np.uint8) if isinstance(of, int) else of for of in given]

    def run(launch: Launch, memory: Memory, options: Options) -> Statistics:
        found.append((record(launch, memory, options, (0,), machine), launch))
        return found[-1][0].statistics

    driver, device = EmulatorDriver(Options()), list(ARCHS).index(ARCH)
    metadata = compiled.metadata
    function = driver.get_function(
        device, driver.load_module(device, compiled.asm["hsaco"]), metadata.name, metadata.shared
    )
    tensors = [driver.allocate_now(device, values.nbytes) for values in held]
    for tensor, values in zip(tensors, held, strict=True):
        driver.copy_to_device(device, tensor, values.ctypes.data, values.nbytes, 0)
    packed = struct.pack(f"<{len(held)}Q", *tensors) + scalars
    kernargs = packed.ljust(-(-len(packed) // 8) * 8 + 16, b"\0")
    with driver.run_by(run):
        driver.prepare(device, function, (1, 1, 1), config.warps * 64, metadata.shared, kernargs).run(0)
    trace, launch = found[0]
    return _traced(config, trace, launch, _spilled(compiled), config.steps(steps))


def _traced(config: Config, trace: Trace, launch: Launch, spills: int, steps: int) -> Traced | None:
    (waves,) = trace.waves
    if any(sum(count > 1 for _, count in wave.parts) != 1 for wave in waves) or waves[0].repetitions() < 4:
        return None
    metadata = launch.kernel.metadata
    fits = occupancy(ARCH, vgprs=metadata.allocated_vgprs, sgprs=metadata.sgprs, lds_bytes=launch.lds_bytes,
                     num_warps=config.warps)  # fmt: skip
    slim = replace(trace, statistics=Statistics())
    return Traced(config, slim, steps, fits.workgroups, spills)
