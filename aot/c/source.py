"""Write the C source of a bundle's dispatcher: the tables of its contracts, and the support code that uses them.

It is a single file for C11 or C++17 that needs only the bundle's header and system headers. Everything except its
`aot_library` is static, so sources of several bundles can be linked into one program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aot_runtime.contract import records
from aot_runtime.contract.arch import ARCHITECTURES, BACKENDS
from aot_runtime.contract.variant_names import prefix_of, variant_names

from .api import dispatched_ops, signature
from .c_names import function_names
from .dtypes import DTYPE_NUMBERS
from .expressions import Functions, Texts
from .slots import Slots
from .spelling import comment, string
from .support import support_text
from .tables import KEY_EXTRAS, OpTables

_BEFORE = ("values.h", "tables.h")
_AFTER = (
    "overlap.h", "checking.h", "arguments.h", "choosing.h", "files.h", "driver_{backend}.h", "loading.h", "maps.h",
    "calls.h",
)  # fmt: skip
_SYSTEM = ("dlfcn", "errno", "inttypes", "math", "pthread", "stdarg", "stdio", "stdlib", "string")


def source_text(index: records.Index) -> str:
    """Return the C source of a bundle.

    Args:
        index: with its `id` filled in, which the source repeats.
    """
    ops = dispatched_ops(index)
    functions, slots = Functions(Texts()), Slots()
    names = dict(zip(map(id, index.variants), variant_names(index), strict=True))
    codes = {key: position for position, key in enumerate(index.blobs)}
    function_of = function_names(index.name, ops)
    key_bytes = max((KEY_EXTRAS + len(op.dtypes) + len(op.axes) for op in ops), default=KEY_EXTRAS)
    tables = [
        OpTables(
            op, index.target,
            [(names[id(v)], v, codes[v.code]) for v in index.variants if v.op == op.name],
            functions, slots, function_of[op.name], number, key_bytes,
        )
        for number, op in enumerate(ops)
    ]  # fmt: skip
    rows = [table.write(f"UINT64_C(0x{signature(table.op)})") for table in tables]
    parts = [
        *_head(index),
        *_limits(index, tables, functions.chains, len(slots), key_bytes),
        *map(support_text, _BEFORE),
        *functions.texts.lines,
        *functions.lines,
        *(line for table in tables for line in table.lines),
        *_library_tables(index, tables, rows),
        *(support_text(name.format(backend=index.target.backend)) for name in _AFTER),
        *_library(index),
    ]
    return "\n".join(parts) + "\n"


def _head(index: records.Index) -> Iterator[str]:
    yield comment(f"""\
The dispatcher of bundle '{index.name}' for {index.target.arch}, behind {index.name}.h. Compile it with the program, as
C11 or C++17, and link libm and, where they are not in the C library, libdl and libpthread.
Generated together with the bundle of id {index.id}.""")
    yield "#ifndef _GNU_SOURCE\n#define _GNU_SOURCE\n#endif"
    yield from (f"#include <{name}.h>" for name in _SYSTEM)
    yield f'#include "../include/{index.name}.h"\n'


def _limits(index: records.Index, tables: list[OpTables], chains: int, slots: int, key_bytes: int) -> Iterator[str]:
    used = [variant for table in tables for _, _, variant, _ in table.variants]
    product = ARCHITECTURES[index.target.arch].product
    limits: Mapping[str, int | str] = {
        "ARCH": string(index.target.arch),
        "COUNTS_THREADS": int(BACKENDS[index.target.backend].counts_threads),
        "DTYPES": len(DTYPE_NUMBERS) + 1,
        "OPS": len(tables),
        "VARIANTS": len(used),
        "CODE_OBJECTS": len(index.blobs),
        "MAX_CHAINS": chains,
        "MAPS": int(any(arg.map for variant in used for arg in variant.kernargs)),
        "MAX_KEY": key_bytes,
        "MAX_SLOTS": slots,
        "MAX_TENSORS": max((len(table.op.tensors) for table in tables), default=0),
        "MAX_LAUNCHES": max((len(table.op.launches) for table in tables), default=0),
        "MAX_WORKSPACES": max((len(table.op.workspace) for table in tables), default=0),
        "MAX_KERNARG_BYTES": max((variant.kernarg_bytes for variant in used), default=0),
        "PRODUCT_CUS": product.num_cus if product else 1,
        "PRODUCT_XCDS": ARCHITECTURES[index.target.arch].num_xcds if product else 0,
        "LIBRARY": prefix_of(index),
    }
    yield from (f"#define AOT_{name} {value}" for name, value in limits.items())
    yield f"\nstatic const char aot_bundle_name[] = {string(index.name)};"
    yield f"static const char aot_bundle_id[] = {string(index.id)};\n"


def _library_tables(index: records.Index, tables: list[OpTables], rows: list[str]) -> Iterator[str]:
    """Return the tables of all ops and code objects. An array ends with an empty member, as C forbids empty arrays."""
    yield "static const aot_op aot_ops[AOT_OPS + 1] = {"
    yield from (f"    {row}," for row in rows)
    yield f"    {{{', '.join(['NULL', '0', *['NULL'] * 15, *['0'] * 14, *['0'] * 4, 'false', 'NULL'])}}}"
    yield "};"
    firsts = [sum(len(table.variants) for table in tables[:i]) for i in range(len(tables) + 1)]
    yield f"static const int aot_first_variant[AOT_OPS + 1] = {{{', '.join(map(str, firsts))}}};"
    yield "static const aot_code_object aot_code_objects[AOT_CODE_OBJECTS + 1] = {"
    for blob in index.blobs.values():
        yield f"    {{{string(blob.file)}, {string(blob.sha256)}, {blob.size}u}},"
    yield "    {NULL, NULL, 0}"
    yield "};"


def _library(index: records.Index) -> Iterator[str]:
    yield "\nconst aot_library AOT_LIBRARY = {"
    yield "    aot_bundle_name, AOT_ARCH, aot_bundle_id, aot_library_open, aot_library_close, aot_library_call"
    yield "};"
