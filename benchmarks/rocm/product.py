"""Compute a product with one library on a GPU: D = op(A) op(B), column-major as in BLAS.

    python product.py hipblaslt|rocblas|BUNDLE TYPE OPS M N K [--check]

It is checked against float64. Without --check, memory is uninitialised, which does not change the modelled time.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
from arrays import TYPES, Array, Hip, Pointer, check, decoded, encoded, relative_error

_WORKSPACE = 32 << 20
_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


class Product:
    """Operands on the device."""

    def __init__(self, given: argparse.Namespace):
        self.kind, self.ops, self.hip = given.type, given.ops, Hip()
        self.m, self.n, self.k = given.m, given.n, given.k
        rng = np.random.default_rng(self.m + self.n + self.k)
        # A matrix by columns is its transpose by rows.
        shapes = [(cols, rows) for rows, cols in self.stored()]
        self.checked = given.check
        if given.check:
            self.host = [encoded(rng.standard_normal(shape, np.float32), self.kind) for shape in shapes]
            self.a, self.b = map(self.hip.array, self.host)
        else:
            self.a, self.b = (self.hip.empty(rows * cols * TYPES[self.kind].itemsize) for rows, cols in shapes)
        self.d = self.hip.empty(self.m * self.n * TYPES[self.kind].itemsize)

    def stored(self) -> list[tuple[int, int]]:
        """Return rows and columns of A and B as they lie in memory."""
        a, b = (self.m, self.k), (self.k, self.n)
        return [a if self.ops[0] == "N" else a[::-1], b if self.ops[1] == "N" else b[::-1]]

    def operands(self) -> list[Array]:
        """Return op(A) and op(B), float64."""
        found = (decoded(matrix, self.kind) for matrix in self.host)
        return [matrix.T if op == "N" else matrix for matrix, op in zip(found, self.ops, strict=True)]

    def wanted(self) -> Array:
        a, b = self.operands()
        return a @ b

    def error(self) -> float:
        got = self.hip.read(np.zeros((self.n, self.m), TYPES[self.kind]), self.d)
        return relative_error(decoded(got, self.kind).T, self.wanted())


def hipblaslt(product: Product) -> None:
    """The kernel is the first that the library's heuristic offers."""
    library, types = ctypes.CDLL("libhipblaslt.so.1"), {"f16": 2, "bf16": 14, "f32": 0}
    handle, desc, preference = Pointer(), Pointer(), Pointer()
    check(library.hipblasLtCreate(ctypes.byref(handle)), "hipblasLtCreate")
    check(library.hipblasLtMatmulDescCreate(ctypes.byref(desc), 2, 0), "hipblasLtMatmulDescCreate")
    for attribute, op in enumerate(product.ops):
        value = ctypes.c_int(111 if op == "N" else 112)
        status = library.hipblasLtMatmulDescSetAttribute(desc, attribute, ctypes.byref(value), ctypes.c_size_t(4))
        check(status, "hipblasLtMatmulDescSetAttribute")
    layouts = []
    for rows, cols in [*product.stored(), (product.m, product.n)]:
        layout, sizes = Pointer(), (ctypes.c_uint64(rows), ctypes.c_uint64(cols), ctypes.c_int64(rows))
        status = library.hipblasLtMatrixLayoutCreate(ctypes.byref(layout), types[product.kind], *sizes)
        check(status, "hipblasLtMatrixLayoutCreate")
        layouts.append(layout)
    check(library.hipblasLtMatmulPreferenceCreate(ctypes.byref(preference)), "hipblasLtMatmulPreferenceCreate")
    size = ctypes.c_uint64(_WORKSPACE)
    status = library.hipblasLtMatmulPreferenceSetAttribute(preference, 1, ctypes.byref(size), ctypes.c_size_t(8))
    check(status, "hipblasLtMatmulPreferenceSetAttribute")
    result, found = ctypes.create_string_buffer(64), ctypes.c_int()  # hipblasLtMatmulHeuristicResult_t; algo is first
    a, b, d = layouts
    status = library.hipblasLtMatmulAlgoGetHeuristic(
        handle, desc, a, b, d, d, preference, 1, result, ctypes.byref(found)
    )
    check(status or not found.value, "hipblasLtMatmulAlgoGetHeuristic")
    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    status = library.hipblasLtMatmul(
        handle, desc, one, product.a, a, product.b, b, zero, product.d, d, product.d, d, result,
        product.hip.empty(_WORKSPACE), ctypes.c_size_t(_WORKSPACE), Pointer(0),
    )  # fmt: skip
    check(status, "hipblasLtMatmul")


def rocblas(product: Product) -> None:
    library, types = ctypes.CDLL("librocblas.so.4"), {"f16": 150, "bf16": 168, "f32": 151}
    handle, kind = Pointer(), types[product.kind]
    check(library.rocblas_create_handle(ctypes.byref(handle)), "rocblas_create_handle")
    ops = (111 if op == "N" else 112 for op in product.ops)
    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    (lda, _), (ldb, _) = product.stored()
    d = (product.d, kind, product.m)
    status = library.rocblas_gemm_ex(
        handle, *ops, product.m, product.n, product.k, one, product.a, kind, lda, product.b, kind, ldb, zero, *d, *d,
        types["f32"], 0, 0, 0,
    )  # fmt: skip
    check(status, "rocblas_gemm_ex")


def ours(product: Product, folder: Path) -> float | None:
    """Compute the product by rows, with A as it lies in memory: the bundle's own device has the operands."""
    from aot_runtime import open_bundle

    bundle = open_bundle(folder, "hip")
    device, dtype = bundle.device, _DTYPES[product.kind]
    shapes = ((product.m, product.k), (product.k, product.n))
    orders = [(1, 0) if op == "N" else (0, 1) for op in product.ops]
    operands = [device.empty(shape, dtype, order=order) for shape, order in zip(shapes, orders, strict=True)]
    if product.checked:
        for operand, matrix in zip(operands, product.operands(), strict=True):
            operand.copy_from(matrix.astype(operand.numpy().dtype))
    result = bundle.matmul(*operands)
    device.synchronize()
    if not product.checked:
        return None
    return relative_error(result.numpy().astype(np.float64), product.wanted())


LIBRARIES: dict[str, Callable[[Product], None]] = {"hipblaslt": hipblaslt, "rocblas": rocblas}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("who")
    parser.add_argument("type", choices=TYPES)
    parser.add_argument("ops", choices=("NN", "NT", "TN", "TT"))
    for size in "mnk":
        parser.add_argument(size, type=int)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    product = Product(given)
    if given.who in LIBRARIES:
        LIBRARIES[given.who](product)
        product.hip.synchronize()
        error = product.error() if given.check else None
    else:
        error = ours(product, Path(given.who))
    if error is not None:
        print(f"relative error {error:.3g}")


if __name__ == "__main__":
    main()
