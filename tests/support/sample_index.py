"""A bundle index with some of everything, made by hand: it has no code objects, and none of its tests needs any."""

from __future__ import annotations

import itertools

import msgspec

from aot_runtime.bundle.reading import bundle_id
from aot_runtime.contract import records
from aot_runtime.contract.index_encoding import encode_index
from aot_runtime.contract.index_file import FORMAT_VERSION, OLDEST_FORMAT

REDUCE_CONFIGS = (
    records.Config("long", {"BLOCK": 128}, {"num_warps": 8}, when="cols > 1024 and not WEIGHTED"),
    records.Config("wide", {"BLOCK": 64}, {"num_warps": 4, "waves_per_eu": 2}, when="num_cus > 100 and cols > 64"),
    records.Config("base", {"BLOCK": 32}, {"num_warps": 4}),
)


def _dims(*extents: str) -> tuple[records.Dim, ...]:
    return tuple(records.Dim(extent.removesuffix("|1"), extent.endswith("|1")) for extent in extents)


REDUCE = records.Op(
    name="reduce",
    doc="Weighted sum of each row.",
    tensors=(
        records.Tensor("x", _dims("rows", "cols"), "T", contiguous=(1,)),
        records.Tensor("weight", _dims("rows|1", "cols"), "T", optional=True, contiguous=(1,), doc="One per element."),
        records.Tensor("total", _dims("rows"), "T", role="output", contiguous=(0,)),
        records.Tensor("largest", _dims("rows"), "float32", role="output", when="return_largest", contiguous=(0,)),
    ),
    scalars=(
        records.Scalar("seed", "i64", min=0),
        records.Scalar("scale", "fp32", default="cols ** -0.5", doc="Factor of each sum."),
        records.Scalar("rounding", "choice", default="'nearest'", choices=("nearest", "stochastic")),
        records.Scalar("return_largest", "flag", default="False"),
    ),
    launches=(
        records.Launch("reduce_rows", ("cdiv(rows, BLOCK)", "splits", "1"), REDUCE_CONFIGS),
        records.Launch("add_partial", ("rows", "1", "1"), (records.Config("", {}, {}),), when="splits > 1"),
    ),
    dims=(records.DimLimit("cols", max=1 << 20),),
    dtypes={"T": ("float16", "bfloat16")},
    axes=(
        records.Axis("WEIGHTED", (False, True), "given(weight)"),
        records.Axis("WIDTH", (64, 256, 4096), "min(cols, 4096)", ">="),
    ),
    derived=(records.Derived("splits", "cdiv(cols, 4096)"),),
    require=("rows % 2 == 0",),
    workspace=(records.Workspace("partial", ("splits", "rows"), "float32", zero=True),),
)

SWAP = records.Op(
    name="swap",
    tensors=(
        records.Tensor("a", _dims("n"), "float32", role="inout", contiguous=(0,)),
        records.Tensor("b", _dims("n"), "float32", role="inout", contiguous=(0,)),
    ),
    scalars=(),
    launches=(records.Launch("swap", ("cdiv(n, 256)", "1", "1"), (records.Config("", {}, {}),)),),
)

# Every size of scalar, in an order that leaves gaps; parameters named like C keywords.
_REDUCE_KERNARGS = (
    records.Kernarg("x", "*float16", 0, 8, "x"),
    records.Kernarg("partial", "*float32", 8, 8, "partial"),
    records.Kernarg("default", "i1", 16, 1, "return_largest"),
    records.Kernarg("register", "fp64", 24, 8, "cols / 2"),
    records.Kernarg("tiny", "i8", 32, 1, "3"),
    records.Kernarg("small", "u16", 34, 2, "7"),
    records.Kernarg("rows", "i32", 36, 4, "rows"),
    records.Kernarg("seed", "i64", 40, 8, "seed"),
    records.Kernarg("scale", "fp32", 48, 4, "scale"),
    records.Kernarg("stride_x_rows", "i32", 52, 4, "stride(x, 0)"),
)
_SWAP_KERNARGS = (
    records.Kernarg("a", "*float32", 0, 8, "a"),
    records.Kernarg("b", "*float32", 8, 8, "b"),
    records.Kernarg("n", "i32", 16, 4, "n"),
)
_REDUCE_GENERAL = (*_REDUCE_KERNARGS[:-1], records.Kernarg("stride_x_rows", "i64", 56, 8, "stride(x, 0)"))


def _with_scratch(kernargs: tuple[records.Kernarg, ...]) -> tuple[records.Kernarg, ...]:
    end = -(-(kernargs[-1].offset + kernargs[-1].size) // 8) * 8
    names = (records.GLOBAL_SCRATCH, records.PROFILE_SCRATCH)
    return (*kernargs, *(records.Kernarg(name, "*int8", end + 8 * i, 8) for i, name in enumerate(names)))


def _variant(
    op: str, launch: int, kernargs: tuple[records.Kernarg, ...], symbol: str, **fields: object
) -> records.Variant:
    full = _with_scratch(kernargs)
    values: dict[str, object] = {
        "axis_values": {}, "aligned": True, "config": 0, "code": "aaaaaaaaaaaaaaaa", "lds_bytes": 0, "num_warps": 4,
        "warp_size": 64, "resources": records.Resources(vgprs=32, sgprs=24, waves_per_simd=8, occupancy_limit="waves"),
        "options": {}, "compiler": "triton 3.9.0",
    }  # fmt: skip
    return records.Variant(op=op, launch=launch, kernargs=full, kernarg_bytes=full[-1].offset + 8, symbol=symbol,
                       **values | fields)  # fmt: skip


def _reduce_variants() -> list[records.Variant]:
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
                    "reduce", 0, kernargs, "reduce_rows", axis_values=point, aligned=aligned, config=config,
                    code="bbbbbbbbbbbbbbbb" if aligned else "aaaaaaaaaaaaaaaa", lds_bytes=16 * settings.values["BLOCK"],
                    num_warps=settings.options["num_warps"], global_scratch=records.Scratch(64 if weighted else 0, 16),
                    resources=records.Resources(
                        vgprs=256 if spilling else 64, agprs=4, sgprs=30, vgpr_spills=17 if spilling else 0,
                        sgpr_spills=0, scratch_bytes=68 if spilling else 0, waves_per_simd=2, occupancy_limit="vgprs",
                        code_bytes=4096,
                    ),
                )
            )  # fmt: skip
        variants.append(
            _variant("reduce", 1, (records.Kernarg("total", "*float16", 0, 8, "total"),), "add_partial",
                     axis_values=point, aligned=aligned)
        )  # fmt: skip
    return variants


def _swap_variants() -> list[records.Variant]:
    return [_variant("swap", 0, _SWAP_KERNARGS, "swap", aligned=aligned) for aligned in (True, False)]


def sample_index(arch: str = "gfx942", backend: str = "hip") -> records.Index:
    """Return the index, with its id as a bundle's writer fills it in."""
    blobs = {
        key: records.Blob(f"{records.CODE_FOLDER}/{key}.hsaco", size, digit * 64)
        for key, size, digit in (("aaaaaaaaaaaaaaaa", 9000, "a"), ("bbbbbbbbbbbbbbbb", 12000, "b"))
    }
    index = records.Index(
        format=FORMAT_VERSION,
        oldest_reader=OLDEST_FORMAT,
        id="0" * 64,
        name="sample",
        target=records.Target(arch, backend, 64 if backend == "hip" else 32),
        toolchain={"compiler": "triton 3.9.0"},
        ops=(REDUCE, SWAP),
        variants=(*_reduce_variants(), *_swap_variants()),
        blobs=blobs,
        selftest=(
            records.Case(
                op="reduce",
                name="weighted",
                vectors=records.Blob(f"{records.SELFTEST_FOLDER}/cccccccccccccccc.npz", 5000, "c" * 64),
                bounds={"total": 1e-3, "largest": 1e-6},
                dtypes={"T": "float16"},
                scalars={"seed": 3, "rounding": "nearest", "return_largest": True},
            ),
        ),
    )
    return msgspec.structs.replace(index, id=bundle_id(encode_index(index)))
