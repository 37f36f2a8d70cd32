"""Memory traffic of row-wise ops, counted by the emulator."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle

pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")

from tests.support.emulation.traffic import loaded_and_stored, profiled

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(2)]

FLOATS = ("T=bfloat16", "T=float32")
WIDTHS = (3, 127, 1000, 1024, 4096, 5008, 8192, 32768)
WRITTEN = ("out", "row_scales")
CALLS = (
    *(("softmax", dtype, "", {"rows": 20, "cols": cols}) for dtype in FLOATS for cols in WIDTHS),
    # Of one row, for which the weights are read once too
    *(("rms_norm", dtype, "residual", {"rows": 1, "cols": cols}) for dtype in FLOATS for cols in WIDTHS),
    *(("layer_norm", dtype, "residual bias", {"rows": 1, "cols": cols}) for dtype in FLOATS for cols in WIDTHS),
    *((f"{op}_norm_quantised", f"T=bfloat16 Q={kind}", "residual", {"rows": 1, "cols": cols})
      for op, kind in (("rms", "int8"), ("layer", "float8_e4m3fnuz")) for cols in (127, 4096, 32768)),
    ("silu_mul", "T=bfloat16", "", {"rows": 3, "cols": 5008}),
    ("gelu_mul", "T=bfloat16", "", {"rows": 3, "cols": 1000}),
    ("cast", "S=bfloat16 D=float32", "", {"rows": 3, "cols": 1000}),
    ("transpose", "T=bfloat16", "", {"batch": 2, "rows": 130, "cols": 200}),
)  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("op, dtypes, given, dims", CALLS, ids=str)
def test_each_element_is_read_or_written_once(rows: Bundle, op: str, dtypes: str, given: str, dims: dict[str, int]):
    launch = profiled(rows, op, dtypes, given, **dims)
    sizes = {name: counts["nbytes"] for name, counts in launch["tensors"].items()}
    wanted = {name: (0 if name in WRITTEN else n, n if name in (*WRITTEN, "residual") else 0)
              for name, n in sizes.items()}  # fmt: skip
    assert touched(launch) == wanted
    assert loaded_and_stored(launch) == tuple(map(sum, zip(*wanted.values(), strict=True))), "nothing twice"


def touched(launch: dict) -> dict[str, tuple[int, int]]:
    """Return how many distinct bytes of each tensor are read and written."""
    return {name: (counts["read"], counts["written"]) for name, counts in launch["tensors"].items()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count, cols, programs", [(2700, 512, 675), (300, 4096, 300), (70 * 304, 1024, 8 * 304)])
def test_programs_read_the_weights_once(rows: Bundle, count: int, cols: int, programs: int):
    """With many rows, x and out are touched once, and the cached weights once a program."""
    n, weight = 2 * count * cols, 2 * cols
    launch = profiled(rows, "rms_norm", "T=bfloat16", rows=count, cols=cols)
    assert touched(launch) == {"x": (n, 0), "weight": (weight, 0), "out": (0, n)}
    assert loaded_and_stored(launch) == (n + programs * weight, n)


@pytest.mark.parametrize("pairs", (64, 16))
def test_rotary_reads_and_writes_each_element_once(rows: Bundle, pairs: int):
    """All of a head is rotated, or a part of it. Lanes read the cached angles for each of the eight heads."""
    launch = profiled(rows, "rotary", "T=bfloat16", tokens=1, heads=8, head_dim=128, pairs=pairs, max_position=9)
    n, angle = 2 * 8 * 128, 4 * pairs
    assert touched(launch) == {"x": (n, 0), "cos": (angle, 0), "sin": (angle, 0), "positions": (4, 0), "out": (0, n)}
    assert loaded_and_stored(launch) == (n + 8 * 2 * angle, n)


@pytest.mark.slow
def test_heads_are_read_and_written_once(rows: Bundle):
    """Queries and keys are read and written once, normalised and rotated."""
    extents = {"tokens": 1, "heads": 16, "heads_kv": 8, "head_dim": 128, "pairs": 64, "max_position": 9}
    launch = profiled(rows, "qk_norm_rotary", "T=bfloat16", **extents)
    n, angles, weights = 2 * 8 * 128, (4 * 64, 0), (2 * 128, 0)
    of_q, of_k = ({"q": (2 * n, 0), "q_out": (0, 2 * n)}, {"k": (n, 0), "k_out": (0, n)})
    shared = {"cos": angles, "sin": angles, "positions": (4, 0), "q_weight": weights, "k_weight": weights}
    assert touched(launch) == of_q | of_k | shared
    loaded, stored = loaded_and_stored(launch)
    # Lanes of each of the 24 heads read angles and weights, which are in cache.
    assert (loaded, stored) == (3 * n + 24 * (2 * angles[0] + weights[0]), 3 * n)


def test_embedding_reads_the_rows_that_are_asked_for(rows: Bundle):
    """The ids are read by scalar loads."""
    launch = profiled(rows, "embedding", "T=bfloat16 I=int32", tokens=1, vocabulary=9, cols=4096)
    assert touched(launch) == {"table": (8192, 0), "ids": (4, 0), "out": (0, 8192)}
    assert loaded_and_stored(launch) == (8192, 8192)
