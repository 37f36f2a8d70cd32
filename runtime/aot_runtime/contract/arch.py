"""The table of GPU architectures that code objects can be built for. A new target is a new row.

`peaks.py` has the peak rates of products, and `aot_emulator/isa/archs.py` the facts that only the emulator needs.

**Sources**, which each field names:

- `LLVM`: the AMDGPU backend's user guide and target description (`AMDGPU.td`, `GCNSubtarget`, `AMDGPUBaseInfo`,
  `ELF.h`).
- `CUDA`: "Technical Specifications per Compute Capability" in the CUDA programming guide.
- `ISA`: AMD's instruction set documents.
- `white papers`: "AMD CDNA 2", "CDNA 3", "CDNA 4" and "RDNA".
- `data sheets`: AMD's data sheets of the products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

Tier = Literal["primary", "supported", "experimental"]
"""Level of support.

- `primary`: the shipped kernels are tuned for it first. The README says how far each was checked.
- `supported`: Triton's own test suite covers it.
- `experimental`: Triton compiles matrix products for it.
"""
Fp8 = Literal["", "fnuz", "ocp"]


class Backend(msgspec.Struct, frozen=True):
    """A GPU API, such as HIP.

    Attributes:
        name: the name of Triton's backend and of the runtime's driver.
        vendor: the maker of its GPUs.
        code_suffix: the suffix of the file names of code objects.
        dlpack_device: `DLDeviceType` of device memory (dlpack.h).
        counts_threads: a launch has at most 2**32 - 1 threads along x, whatever the size of a block. HIP takes more
            than 65535 blocks along y and z on some devices, but promises no more.
        has_tensor_maps: kernels may take tensor maps (`CUtensorMap`) as arguments.
        has_pointer_ranges: Triton's compiler uses the hint that the offsets from a pointer fit 32 bits.
        extra: the extra of the runtime that installs the driver's binding; empty if it is always installed.
    """

    name: str
    vendor: str
    code_suffix: str
    dlpack_device: int
    counts_threads: bool
    has_tensor_maps: bool
    has_pointer_ranges: bool
    extra: str

    def grid_limits(self, threads: int) -> tuple[int, int, int]:
        """Return the maximum number of blocks along x, y and z for blocks of `threads` threads."""
        return (2**32 - 1) // threads if self.counts_threads else 2**31 - 1, 65535, 65535


HIP = Backend(
    "hip", "AMD", "hsaco", dlpack_device=10, counts_threads=True, has_tensor_maps=False, has_pointer_ranges=True,
    extra="",
)  # fmt: skip
CUDA = Backend(
    "cuda", "NVIDIA", "cubin", dlpack_device=2, counts_threads=False, has_tensor_maps=True, has_pointer_ranges=False,
    extra="cuda",
)  # fmt: skip
BACKENDS: Mapping[str, Backend] = {backend.name: backend for backend in (HIP, CUDA)}
"""Every backend by name, in the order in which their GPUs are preferred."""

SIMDS = 4
"""SIMDs of a `ComputeUnit`."""
KIB = 1024


class ComputeUnit(msgspec.Struct, frozen=True):
    """The hardware that a workgroup runs on, with four SIMDs: a gfx9 compute unit, an RDNA work-group processor
    (Triton compiles for WGP mode) or an NVIDIA SM. From LLVM and CUDA.

    Attributes:
        waves: wave slots of a SIMD.
        vgprs, vgpr_granule: vector registers per lane of a SIMD, and their allocation granularity.
        lds, lds_granule: bytes of LDS, and their allocation granularity.
        workgroups: maximum number of resident workgroups.
        barriers: maximum number of resident workgroups with several waves, which need a barrier each; None: no limit.
        sgprs: scalar registers of a SIMD; None: they never limit occupancy.
        lds_reserved: bytes of LDS per workgroup that the system reserves and that code objects do not count.
        compute_units: compute units per multiprocessor, as HIP counts these: two in a work-group processor.
    """

    waves: int
    vgprs: int
    vgpr_granule: int
    lds: int
    lds_granule: int
    workgroups: int
    barriers: int | None = None
    sgprs: int | None = None
    lds_reserved: int = 0
    compute_units: int = 1


class Product(msgspec.Struct, frozen=True):
    """A GPU. `num_cus`: its compute units; RDNA's are halves of work-group processors (data sheets)."""

    title: str
    num_cus: int


class Architecture(msgspec.Struct, frozen=True):
    """A GPU architecture.

    Attributes:
        name: bare name as in `--arch`: `gfx942`, `sm_90`.
        tier: see `Tier`.
        elf_machine: EF_AMDGPU_MACH in the ELF flags of code objects (LLVM); None for NVIDIA.
        lds_bytes: maximum LDS (shared memory) of a workgroup. AMD: LLVM's "addressable local memory size"; NVIDIA:
            CUDA's "maximum amount of shared memory per thread block" with opt-in.
        unit: the hardware that a workgroup runs on.
        warp_size: lanes of a wavefront or warp in Triton's code (LLVM; CUDA).
        descriptor_vgprs: vector registers per step of GRANULATED_WORKITEM_VGPR_COUNT in a kernel descriptor (LLVM,
            `getVGPREncodingGranule`).
        num_xcds: XCDs of a whole GPU, to which the hardware deals workgroups in turn; each has an L2 cache (white
            papers). A partition has fewer, and so has an MI300A: devices report their own number.
        has_bf16_cvt: an instruction rounds fp32 to bfloat16: v_cvt_pk_bf16_f32 (LLVM, `FeatureBF16ConversionInsts`),
            cvt.rn.bf16.f32 (CUDA's PTX manual: sm_80 and later).
        has_tf32: matrix units multiply float32 with 10 bits of mantissa (ISA: xf32, which CDNA 4 dropped; CUDA: sm_80
            and later).
        has_wgmma: warpgroup matrix instructions with operands in shared memory (CUDA's PTX manual, `wgmma`: only
            sm_90a).
        fp8: the flavour of float8 that the hardware converts and multiplies: `fnuz` or `ocp`; empty if it has none
            (LLVM, `FeatureFP8Insts` and gfx12's WMMA; CUDA: sm_89 and later).
        descriptor_align: alignment in bytes of the address and strides of a tensor descriptor that a kernel makes
            (CUDA's driver API, `cuTensorMapEncodeTiled`: sm_90 and later); 1: Triton lowers descriptors to pointers.
        kernarg_start: offset of the kernarg segment in the constant bank (`EIATTR_PARAM_CBANK` of cubins), which
            determines the alignment of tensor maps.
        product: the GPU that the emulator models; None if the architecture is not emulated.
        gpus: common names of its GPUs, in lower case, letters and digits only (AMD's table of supported GPUs, LLVM's
            of processors, CUDA's list of GPUs).
        num_cus: compute units of a large GPU, for rows without a product: MI100, RX 7800 XT, RX 7600, RX 9060 XT, T4,
            A100, A40, L40S, H100, B200, RTX 5090 (data sheets); None if unknown.
    """

    name: str
    tier: Tier
    elf_machine: int | None
    lds_bytes: int
    unit: ComputeUnit
    warp_size: Literal[32, 64] = 32
    descriptor_vgprs: int = 8
    num_xcds: int = 1
    has_bf16_cvt: bool = False
    has_tf32: bool = False
    has_wgmma: bool = False
    fp8: Fp8 = ""
    descriptor_align: int = 1
    kernarg_start: int = 0
    product: Product | None = None
    gpus: str = ""
    num_cus: int | None = None

    @property
    def backend(self) -> str:
        """The name of its `Backend`."""
        return (CUDA if self.elf_machine is None else HIP).name

    @property
    def constants(self) -> dict[str, str | int | bool]:
        """The values of `EXPRESSION_NAMES`, in their order."""
        return {name: getattr(self, "name" if name == "arch" else name) for name in EXPRESSION_NAMES}

    @property
    def device_constants(self) -> dict[str, str | int | bool]:
        """The constants that all devices of the architecture share. A partition has fewer XCDs than a whole GPU."""
        return {name: value for name, value in self.constants.items() if name != "num_xcds" or value == 1}


EXPRESSION_NAMES: Mapping[str, type] = {
    "arch": str,
    "fp8": str,
    "has_bf16_cvt": bool,
    "has_tf32": bool,
    "has_wgmma": bool,
    "lds_bytes": int,
    "num_xcds": int,
    "warp_size": int,
}
"""Names that all expressions of manifests and bundles may use: columns of the architecture's row, with their types."""


def _cdna(waves: int, vgprs: int, vgpr_granule: int, lds_kib: int = 64, lds_granule: int = 512) -> ComputeUnit:
    return ComputeUnit(waves, vgprs, vgpr_granule, lds_kib * KIB, lds_granule, waves * SIMDS, barriers=16, sgprs=800)


def _rdna(vgprs: int, vgpr_granule: int, lds_kib: int = 128, compute_units: int = 2) -> ComputeUnit:
    lds = lds_kib * KIB
    return ComputeUnit(16, vgprs, vgpr_granule, lds, 1024, 16 * SIMDS, barriers=32, compute_units=compute_units)


def _sm(warps: int, blocks: int, shared_kib: int, reserved: int = 0) -> ComputeUnit:
    # 64 K registers an SM, handed out to a warp in 256s: 512 a lane and SIMD, in granules of 8.
    return ComputeUnit(warps // SIMDS, 512, 8, shared_kib * KIB, 128, blocks, lds_reserved=reserved)


_LARGE, _SMALL = _rdna(1536, 24), _rdna(1024, 16)
"""RDNA 3 and 4 with the register files of the larger and the smaller products."""

_MI250X = Product("AMD Instinct MI250X, one die", 110)  # each of the two dies is a device of its own
_MI300X = Product("AMD Instinct MI300X", 304)
_MI355X = Product("AMD Instinct MI355X", 256)
_RX7900XTX = Product("AMD Radeon RX 7900 XTX", 96)
_8060S = Product("AMD Radeon 8060S", 40)
_RX9070XT = Product("AMD Radeon RX 9070 XT", 64)

_AMD = (
    Architecture("gfx908", "experimental", 0x30, 64 * KIB, _cdna(10, 256, 4), 64, descriptor_vgprs=4, gpus="mi100",
                 num_cus=120),
    Architecture("gfx90a", "supported", 0x3F, 64 * KIB, _cdna(8, 512, 8), 64, product=_MI250X,
                 gpus="mi210 mi250 mi250x"),
    Architecture("gfx942", "primary", 0x4C, 64 * KIB, _cdna(8, 512, 8), 64, num_xcds=8, has_tf32=True, fp8="fnuz",
                 product=_MI300X, gpus="mi300a mi300x mi325x"),
    Architecture("gfx950", "supported", 0x4F, 160 * KIB, _cdna(8, 512, 8, 160, lds_granule=1280), 64, num_xcds=8,
                 has_bf16_cvt=True, fp8="ocp", product=_MI355X, gpus="mi350x mi355x"),
    Architecture("gfx1100", "supported", 0x41, 64 * KIB, _LARGE, product=_RX7900XTX,
                 gpus="rx7900xtx rx7900xt rx7900gre w7900 w7800"),
    Architecture("gfx1101", "supported", 0x46, 64 * KIB, _LARGE, gpus="rx7800xt rx7700xt w7700", num_cus=60),
    Architecture("gfx1102", "supported", 0x47, 64 * KIB, _SMALL, gpus="rx7600 rx7600xt w7600 w7500", num_cus=32),
    Architecture("gfx1103", "experimental", 0x44, 64 * KIB, _SMALL, gpus="780m 760m"),
    Architecture("gfx1150", "experimental", 0x43, 64 * KIB, _SMALL, gpus="890m 880m"),
    Architecture("gfx1151", "experimental", 0x4A, 64 * KIB, _LARGE, product=_8060S, gpus="8060s 8050s"),
    Architecture("gfx1152", "experimental", 0x55, 64 * KIB, _SMALL, gpus="860m 840m"),
    Architecture("gfx1153", "experimental", 0x58, 64 * KIB, _SMALL),
    Architecture("gfx1200", "supported", 0x48, 64 * KIB, _LARGE, fp8="ocp", gpus="rx9060xt", num_cus=32),
    Architecture("gfx1201", "supported", 0x4E, 64 * KIB, _LARGE, fp8="ocp", product=_RX9070XT,
                 gpus="rx9070xt rx9070 r9700"),
    Architecture("gfx1250", "experimental", 0x49, 320 * KIB, _rdna(1024, 16, 320, 1), descriptor_vgprs=16,
                 has_bf16_cvt=True, fp8="ocp"),
)  # fmt: skip


def _ampere(
    name: str, tier: Tier, lds_kib: int, unit: ComputeUnit, gpus: str, num_cus: int | None = None, fp8: Fp8 = ""
) -> Architecture:
    return Architecture(
        name, tier, None, lds_kib * KIB, unit, has_bf16_cvt=True, has_tf32=True, fp8=fp8, gpus=gpus, num_cus=num_cus
    )


def _hopper(
    name: str, tier: Tier, lds_kib: int, unit: ComputeUnit, gpus: str, num_cus: int | None = None
) -> Architecture:
    return replace(_ampere(name, tier, lds_kib, unit, gpus, num_cus, "ocp"), descriptor_align=16)


_NVIDIA = (
    Architecture("sm_75", "experimental", None, 64 * KIB, _sm(32, 16, 64), gpus="t4 rtx2080 rtx2080ti", num_cus=40),
    _ampere("sm_80", "supported", 163, _sm(64, 32, 164, reserved=1024), "a100 a30", 108),
    _ampere("sm_86", "supported", 99, _sm(48, 16, 100, reserved=1024), "a10 a40 a6000 rtx3090 rtx3080", 84),
    _ampere("sm_87", "experimental", 163, _sm(48, 16, 164, reserved=1024), "orin"),
    _ampere("sm_89", "supported", 99, _sm(48, 24, 100, reserved=1024), "l4 l40 l40s rtx4090 rtx4080", 142, "ocp"),
    replace(
        _hopper("sm_90", "primary", 227, _sm(64, 32, 228), "h100 h200 gh200", 132), kernarg_start=0x210, has_wgmma=True
    ),
    _hopper("sm_100", "supported", 227, _sm(64, 32, 228), "b200 gb200", 148),
    _hopper("sm_103", "experimental", 227, _sm(64, 32, 228), "b300 gb300"),
    _hopper("sm_110", "experimental", 227, _sm(48, 24, 228), "thor"),
    _hopper("sm_120", "supported", 99, _sm(48, 24, 100), "rtx5090 rtx5080 rtxpro6000", 170),
    _hopper("sm_121", "experimental", 99, _sm(48, 24, 100), "gb10"),
)

ARCHITECTURES: Mapping[str, Architecture] = {row.name: row for row in (*_AMD, *_NVIDIA)}
"""Architectures by name: AMD's, then NVIDIA's, each from the oldest to the newest."""


def likely_num_xcds(arch: str, num_cus: int) -> int:
    """Estimate the XCDs of a device with `num_cus` compute units, from the compute units per XCD of the product."""
    row = ARCHITECTURES.get(arch)
    if row is None or row.product is None:
        return 1
    return max(1, round(num_cus * row.num_xcds / row.product.num_cus))


def device_names(arch: str, num_cus: int, num_xcds: int | None = None) -> dict[str, str | int | bool]:
    """Return the values of the names that a device gives to expressions.

    Args:
        num_xcds: defaults to the XCDs of a whole GPU.
    """
    row = ARCHITECTURES[arch]
    return row.constants | {"num_cus": num_cus, "num_xcds": row.num_xcds if num_xcds is None else num_xcds}
