"""A bundle index with some of everything, made by hand: it has no code objects, and none of its tests needs any."""

from __future__ import annotations

import itertools

import msgspec

from aot_runtime import format as fmt
from aot_runtime.bundle import bundle_id

REDUCE_CONFIGS = (
    fmt.Config("long", {"BLOCK": 128}, {"num_warps": 8}, when="cols > 1024 and not WEIGHTED"),
    fmt.Config("wide", {"BLOCK": 64}, {"num_warps": 4, "waves_per_eu": 2}, when="num_cus > 100 and cols > 64"),
    fmt.Config("base", {"BLOCK": 32}, {"num_warps": 4}),
)


def _dims(*extents: str) -> tuple[fmt.Dim, ...]:
    return tuple(fmt.Dim(extent.removesuffix("|1"), extent.endswith("|1")) for extent in extents)


REDUCE = fmt.Op(
    name="reduce",
    doc="Weighted sum of each row.",
    tensors=(
        fmt.Tensor("x", _dims("rows", "cols"), "T", contiguous=(1,)),
        fmt.Tensor("weight", _dims("rows|1", "cols"), "T", optional=True, contiguous=(1,), doc="One per element."),
        fmt.Tensor("total", _dims("rows"), "T", role="output", contiguous=(0,)),
        fmt.Tensor("largest", _dims("rows"), "float32", role="output", when="return_largest", contiguous=(0,)),
    ),
    scalars=(
        fmt.Scalar("seed", "i64", min=0),
        fmt.Scalar("scale", "fp32", default="cols ** -0.5", doc="Factor of each sum."),
        fmt.Scalar("rounding", "choice", default="'nearest'", choices=("nearest", "stochastic")),
        fmt.Scalar("return_largest", "flag", default="False"),
    ),
    launches=(
        fmt.Launch("reduce_rows", ("cdiv(rows, BLOCK)", "splits", "1"), REDUCE_CONFIGS),
        fmt.Launch("add_partial", ("rows", "1", "1"), (fmt.Config("", {}, {}),), when="splits > 1"),
    ),
    dims=(fmt.DimLimit("cols", max=1 << 20),),
    dtypes={"T": ("float16", "bfloat16")},
    axes=(
        fmt.Axis("WEIGHTED", (False, True), "given(weight)"),
        fmt.Axis("WIDTH", (64, 256, 4096), "min(cols, 4096)", ">="),
    ),
    let=(fmt.Let("splits", "cdiv(cols, 4096)"),),
    require=("rows % 2 == 0",),
    workspace=(fmt.Workspace("partial", ("splits", "rows"), "float32", zero=True),),
)

SWAP = fmt.Op(
    name="swap",
    tensors=(
        fmt.Tensor("a", _dims("n"), "float32", role="inout", contiguous=(0,)),
        fmt.Tensor("b", _dims("n"), "float32", role="inout", contiguous=(0,)),
    ),
    scalars=(),
    launches=(fmt.Launch("swap", ("cdiv(n, 256)", "1", "1"), (fmt.Config("", {}, {}),)),),
)

# Every size of scalar, in an order that leaves gaps; parameters named like C keywords.
_REDUCE_KERNARGS = (
    fmt.Kernarg("x", "*float16", 0, 8, "x"),
    fmt.Kernarg("partial", "*float32", 8, 8, "partial"),
    fmt.Kernarg("default", "i1", 16, 1, "return_largest"),
    fmt.Kernarg("register", "fp64", 24, 8, "cols / 2"),
    fmt.Kernarg("tiny", "i8", 32, 1, "3"),
    fmt.Kernarg("small", "u16", 34, 2, "7"),
    fmt.Kernarg("rows", "i32", 36, 4, "rows"),
    fmt.Kernarg("seed", "i64", 40, 8, "seed"),
    fmt.Kernarg("scale", "fp32", 48, 4, "scale"),
    fmt.Kernarg("stride_x_rows", "i32", 52, 4, "stride(x, 0)"),
)
_SWAP_KERNARGS = (
    fmt.Kernarg("a", "*float32", 0, 8, "a"),
    fmt.Kernarg("b", "*float32", 8, 8, "b"),
    fmt.Kernarg("n", "i32", 16, 4, "n"),
)
_REDUCE_GENERAL = (*_REDUCE_KERNARGS[:-1], fmt.Kernarg("stride_x_rows", "i64", 56, 8, "stride(x, 0)"))


def _with_scratch(kernargs: tuple[fmt.Kernarg, ...]) -> tuple[fmt.Kernarg, ...]:
    end = -(-(kernargs[-1].offset + kernargs[-1].size) // 8) * 8
    names = (fmt.GLOBAL_SCRATCH, fmt.PROFILE_SCRATCH)
    return (*kernargs, *(fmt.Kernarg(name, "*int8", end + 8 * i, 8) for i, name in enumerate(names)))


def _variant(op: str, launch: int, kernargs: tuple[fmt.Kernarg, ...], symbol: str, **fields: object) -> fmt.Variant:
    full = _with_scratch(kernargs)
    values: dict[str, object] = {
        "point": {}, "aligned": True, "config": 0, "code": "aaaaaaaaaaaaaaaa", "lds_bytes": 0, "num_warps": 4,
        "warp_size": 64, "resources": fmt.Resources(vgprs=32, sgprs=24, waves_per_simd=8, occupancy_limit="waves"),
        "options": {}, "compiler": "triton 3.9.0",
    }  # fmt: skip
    return fmt.Variant(op=op, launch=launch, kernargs=full, kernarg_bytes=full[-1].offset + 8, symbol=symbol,
                       **values | fields)  # fmt: skip


def _reduce_variants() -> list[fmt.Variant]:
    variants = []
    for aligned, dtype, weighted, width in itertools.product(
        (True, False), ("float16", "bfloat16"), (False, True), (64, 256, 4096)
    ):
        point = {"T": dtype, "WEIGHTED": weighted, "WIDTH": width}
        kernargs = _REDUCE_KERNARGS if aligned else _REDUCE_GENERAL
        for config, settings in enumerate(REDUCE_CONFIGS):
            if (config == 0 and weighted) or (config == 1 and dtype == "bfloat16"):
                continue  # config 1 was left out by hand for bfloat16, though calls reach it
            spilling = width == 4096 and weighted
            variants.append(
                _variant(
                    "reduce", 0, kernargs, "reduce_rows", point=point, aligned=aligned, config=config,
                    code="bbbbbbbbbbbbbbbb" if aligned else "aaaaaaaaaaaaaaaa", lds_bytes=16 * settings.values["BLOCK"],
                    num_warps=settings.options["num_warps"], global_scratch=fmt.Scratch(64 if weighted else 0, 16),
                    resources=fmt.Resources(
                        vgprs=256 if spilling else 64, agprs=4, sgprs=30, vgpr_spills=17 if spilling else 0,
                        sgpr_spills=0, scratch_bytes=68 if spilling else 0, waves_per_simd=2, occupancy_limit="vgprs",
                        code_bytes=4096,
                    ),
                )
            )  # fmt: skip
        variants.append(
            _variant("reduce", 1, (fmt.Kernarg("total", "*float16", 0, 8, "total"),), "add_partial", point=point,
                     aligned=aligned)
        )  # fmt: skip
    return variants


def _swap_variants() -> list[fmt.Variant]:
    return [_variant("swap", 0, _SWAP_KERNARGS, "swap", aligned=aligned) for aligned in (True, False)]


def sample_index(arch: str = "gfx942", backend: str = "hip") -> fmt.Index:
    """The index, with its id as a bundle's writer fills it in."""
    blobs = {
        key: fmt.Blob(f"{fmt.CODE_FOLDER}/{key}.hsaco", size, digit * 64)
        for key, size, digit in (("aaaaaaaaaaaaaaaa", 9000, "a"), ("bbbbbbbbbbbbbbbb", 12000, "b"))
    }
    index = fmt.Index(
        format=fmt.FORMAT_VERSION,
        oldest_reader=1,
        id="0" * 64,
        name="sample",
        target=fmt.Target(arch, backend, 64 if backend == "hip" else 32),
        toolchain={"compiler": "triton 3.9.0"},
        ops=(REDUCE, SWAP),
        variants=(*_reduce_variants(), *_swap_variants()),
        blobs=blobs,
        selftest=(
            fmt.Case(
                op="reduce",
                name="weighted",
                vectors=fmt.Blob(f"{fmt.SELFTEST_FOLDER}/cccccccccccccccc.npz", 5000, "c" * 64),
                bounds={"total": 1e-3, "largest": 1e-6},
                dtypes={"T": "float16"},
                scalars={"seed": 3, "rounding": "nearest", "return_largest": True},
            ),
        ),
    )
    return msgspec.structs.replace(index, id=bundle_id(fmt.encode_index(index)))
