"""Write the C header of a bundle's variants, for programs that choose and launch kernels themselves.

Every variant gets a descriptor (symbol, code-object file, block, LDS), its kernarg struct, and an inline launcher.
Device addresses in the structs are `uint64_t` rather than `void *`. They have 8 bytes whatever the size of host
pointers, CUDA's `CUdeviceptr` is an integer too, and programs cannot dereference them by mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from aot_runtime.contract import records
from aot_runtime.contract.names import axis_names
from aot_runtime.contract.variant_names import prefix_of, variant_names

from .apis import APIS, Api
from .c_names import member_names, struct_name
from .spelling import c_type, comment, string, uncommented

_COMMON = """\
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#ifndef AOT_KERNEL
#define AOT_KERNEL
/* What a launch of one kernel needs besides its grid and its arguments. */
typedef struct aot_kernel {
    const char *symbol;      /* of the kernel in its module */
    const char *code_object; /* the module's file, below the bundle's folder */
    uint32_t block_threads;  /* threads of a workgroup, all of them along x */
    uint32_t lds_bytes;      /* dynamic LDS (shared memory) of a workgroup */
    uint32_t kernarg_bytes;
    uint32_t global_scratch_bytes;  /* that each workgroup of the grid needs at `global_scratch` */
    uint32_t profile_scratch_bytes; /* likewise at `profile_scratch` */
} aot_kernel;
#endif
"""


@dataclass(frozen=True)
class _Member:
    """A member of a kernarg struct: `count` bytes of padding or words of a tensor map, or one field (`count` 0)."""

    declared_type: str
    name: str
    offset: int
    comment: str = ""
    count: int = 0

    @property
    def declaration(self) -> str:
        return f"{self.declared_type} {self.name}{f'[{self.count}]' if self.count else ''};"


def variants_text(index: records.Index) -> str:
    """Return the C header of a bundle, valid as C11 and C++17, with and without the GPU API's header.

    Args:
        index: with its `id` filled in, which the header repeats.
    """
    prefix = prefix_of(index)
    names = variant_names(index)
    api = APIS[index.target.backend]
    return "\n".join(
        [
            _introduction(index),
            f"#ifndef {prefix.upper()}_VARIANTS_H",
            f"#define {prefix.upper()}_VARIANTS_H",
            "",
            _COMMON,
            _api_launcher(api),
            *_constants(index, prefix),
            *(line for op in index.ops for line in _op(index, names, op, prefix, api)),
            "#endif",
            "",
        ]
    )


def _introduction(index: records.Index) -> str:
    text = f"""\
Launch parameters of the kernels in bundle '{index.name}' for {index.target.arch}; valid as C11 and C++17.
Generated together with the bundle of id {index.id}.

A variant NAME has a descriptor `NAME`, a kernarg struct `NAME_kernargs` and a launcher `NAME_launch`. Comments say
which calls a variant serves, its grid and its arguments, as expressions of the op's dims and scalars; cdiv(a, b) is
a / b rounded up. Addresses are device addresses; extents and strides are in elements, and a stride is 0 where the
extent is 1. An `aligned` variant may be launched only where its tensors' addresses and strides are multiples of 16
bytes, the extents that the op aligns are multiples of that many elements, and no tensor reaches 2 GiB past its address
or below it, but for those that the op calls large. The address of a tensor that a call does not have is 0.

{APIS[index.target.backend].use}"""
    return comment(text)


def _constants(index: records.Index, prefix: str) -> list[str]:
    name = prefix.upper()
    return [
        f"#define {name}_BUNDLE_ID {string(index.id)}",
        f"#define {name}_ARCH {string(index.target.arch)}",
        f"#define {name}_WARP_SIZE {index.target.warp_size}",
        f"#define {name}_VARIANTS {len(index.variants)}",
        f"#define {name}_CODE_OBJECTS {len(index.blobs)}",
        "",
    ]


# Structs


def _op(index: records.Index, names: list[str], op: records.Op, prefix: str, api: Api) -> Iterator[str]:
    variants = [(name, item) for name, item in zip(names, index.variants, strict=True) if item.op == op.name]
    structs: dict[str, records.Variant] = {}
    for _, variant in variants:
        structs.setdefault(struct_name(prefix, variant), variant)
    yield f"/* {op.name}: {len(variants)} variants */"
    yield ""
    for name, variant in structs.items():
        yield from _struct(name, variant)
        yield from _guarded(api, _struct_launcher(name, api))
    for name, variant in variants:
        yield from _variant(index.blobs, op, name, variant, struct_name(prefix, variant), api)


def _struct(name: str, variant: records.Variant) -> Iterator[str]:
    members = list(_members(variant))
    width = max((len(member.declaration) for member in members), default=0)
    yield f"struct {name} {{"
    for member in members:
        yield f"    {member.declaration:<{width}} /* {member.offset}: {uncommented(member.comment)} */"
    yield "};"
    yield f'static_assert(sizeof(struct {name}) == {variant.kernarg_bytes}, "size of the segment");'
    for member in members:
        yield f'static_assert(offsetof(struct {name}, {member.name}) == {member.offset}, "{member.name}");'
    yield ""


def _members(variant: records.Variant) -> Iterator[_Member]:
    names = member_names(variant)
    end = 0
    for arg, name in zip(variant.kernargs, names, strict=True):
        yield from _padding(end, arg.offset, names)
        count = arg.size // 8 if arg.map is not None else 0
        yield _Member(c_type(arg), name, arg.offset, _meaning(arg), count)
        end = arg.offset + arg.size
    yield from _padding(end, variant.kernarg_bytes, names)


def _padding(start: int, end: int, taken: Iterable[str]) -> Iterator[_Member]:
    if end > start:
        name = f"padding_{start}"
        while name in taken:
            name += "_"
        yield _Member("uint8_t", name, start, "not read", end - start)


def _meaning(arg: records.Kernarg) -> str:
    if arg.map is not None:
        of_dims = f"its dims {', '.join(map(str, arg.map.dims))}" if len(arg.map.dims) > 1 else "it"
        return (
            f"the CUtensorMap of {arg.value}, of {of_dims} from the outermost on: boxes of {list(arg.map.box)}, "
            f"swizzled by {arg.map.swizzle} bytes, {'NaN' if arg.map.nan else 'zeros'} past its ends"
        )
    if arg.is_expression:
        bits = {"fp16": "the bits, as a float16, of ", "bf16": "the bits, as a bfloat16, of "}.get(arg.type, "")
        return f"{bits}{arg.value}"
    return f"address of {arg.value}" if arg.value else "address of scratch memory; 0 if the kernel needs none"


# Variants


def _variant(
    blobs: Mapping[str, records.Blob], op: records.Op, name: str, variant: records.Variant, struct: str, api: Api
) -> Iterator[str]:
    numbers = (
        variant.num_warps * variant.warp_size,
        variant.lds_bytes,
        variant.kernarg_bytes,
        variant.global_scratch.bytes,
        variant.profile_scratch.bytes,
    )
    yield comment(describe(op, variant))
    yield f"typedef struct {struct} {name}_kernargs;"
    yield f"static const aot_kernel {name} = {{"
    yield f"    {string(variant.symbol)}, {string(blobs[variant.code].file)}, {', '.join(map(str, numbers))}"
    yield "};"
    yield from _guarded(api, _variant_launcher(name, struct, api))


def describe(op: records.Op, variant: records.Variant) -> str:
    """Describe the calls that a variant serves, and its compilation."""
    launch = op.launches[variant.launch]
    config = launch.configs[variant.config]
    point = ", ".join(f"{name}={variant.axis_values[name]}" for name in axis_names(op))
    chosen = ", ".join(f"{name}={value}" for name, value in {**config.values, **config.options}.items())
    return "\n".join(
        [
            f"{op.name}[{point}], {'aligned' if variant.aligned else 'general'}",
            f"kernel {launch.kernel}{_when(launch.when)}; grid {', '.join(launch.grid)}",
            f"config '{config.name or variant.config}'{_when(config.when)}: {chosen or 'all default'}",
        ]
    )


def _when(condition: str) -> str:
    return f", when {condition}" if condition else ""


# Launchers

_GRID = "uint32_t grid_x, uint32_t grid_y, uint32_t grid_z"


def _guarded(api: Api, lines: Iterable[str]) -> Iterator[str]:
    yield f"#ifdef {api.macro}_END"
    yield from lines
    yield "#endif"
    yield ""


def _api_launcher(api: Api) -> str:
    return f"""\
#if defined({api.macro}_END) && !defined(AOT_{api.name.upper()}_LAUNCH)
#define AOT_{api.name.upper()}_LAUNCH
/* Launch a kernel over a grid of workgroups; a grid without any is no error. The kernargs may be reused at once. */
static inline {api.status} aot_{api.name}_launch({api.function} function, const aot_kernel *kernel,
    {_GRID}, const void *kernargs, {api.stream} stream)
{{
    size_t size = kernel->kernarg_bytes;
    void *extra[] = {{
        {api.macro}_BUFFER_POINTER, (void *)kernargs, {api.macro}_BUFFER_SIZE, &size, {api.macro}_END
    }};
    if (grid_x == 0 || grid_y == 0 || grid_z == 0)
        return {api.success};
    return {api.launch}(function, grid_x, grid_y, grid_z, kernel->block_threads, 1, 1,
                                 kernel->lds_bytes, stream, NULL, extra);
}}
#endif
"""


def _struct_launcher(name: str, api: Api) -> Iterator[str]:
    """Return a launcher for kernels with this struct, which the program chooses at run time."""
    yield f"static inline {api.status} {name}_launch("
    yield f"    {api.function} function, const aot_kernel *kernel, {_GRID},"
    yield f"    const struct {name} *kernargs, {api.stream} stream)"
    yield "{"
    yield f"    return aot_{api.name}_launch(function, kernel, grid_x, grid_y, grid_z, kernargs, stream);"
    yield "}"


def _variant_launcher(name: str, struct: str, api: Api) -> Iterator[str]:
    yield f"static inline {api.status} {name}_launch("
    yield f"    {api.function} function, {_GRID},"
    yield f"    const {name}_kernargs *kernargs, {api.stream} stream)"
    yield "{"
    yield f"    return {struct}_launch("
    yield f"        function, &{name}, grid_x, grid_y, grid_z, kernargs, stream);"
    yield "}"
