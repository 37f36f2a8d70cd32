"""Operations on rows of any number and width."""

from __future__ import annotations

from aot_bundle.callspec import CallSpec

from .family import DTYPES_16, MOST_ELEMENTS, Asked, Call, Drawn, Family, Offer, Part, Rng, extent, near, one_of, piece

OPS = ("softmax", "rms_norm", "layer_norm", "silu_mul")
WEIGHTED = ("rms_norm", "layer_norm")
COMPARED = 1 << 20
"""Elements that are compared with float64, if that is more than a row."""


def draw_rows(rng: Rng, offer: Offer) -> Drawn | None:
    op = one_of(rng, sorted(offer.among(*OPS)))
    rows, cols = extent(rng, 1, 1 << 20), extent(rng, 1, 1 << 18, one_of(rng, (1, 8, 64)))
    if rows * cols > MOST_ELEMENTS:
        return None
    name = "few" if rows <= 64 else "many" if rows > 16384 else "some"
    width = "short" if cols <= 512 else "long" if cols > 16384 else "middling"
    given = frozenset({"bias"} if op == "layer_norm" else ())
    dtypes, scalars = {"T": one_of(rng, (*DTYPES_16, "float32"))}, {"eps": "1e-05"} if op in WEIGHTED else {}

    def make(cols: int) -> Call:
        return Call(op, CallSpec(dims={"rows": rows, "cols": cols}, dtypes=dtypes, given=given, scalars=scalars))

    return Drawn(f"{name} {width} rows", make(cols), make(near(cols)))


def rows_part(call: Call, where: float) -> Part:
    """Cut some rows."""
    dims = call.spec.dims
    return Part({"rows": piece(dims["rows"], max(1, min(64, COMPARED // dims["cols"])), where)})


FAMILIES = {"rows": Family("rows", Asked(0.95, 0.75, 0.6), OPS, draw_rows, "out", rows_part)}
