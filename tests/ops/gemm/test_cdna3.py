"""Products by the Gluon kernel for CDNA 3: its tiles, on a device with one compute unit, and their code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from aot_bundle.callspec import CallSpec
from aot_bundle.isa import load_bits
from aot_runtime import Bundle
from tests.ops.gemm.checking import LAYOUTS, check, matrix, on_device
from tests.support.choices import configs, with_few_units
from tests.support.dtypes import BF16, FP16, FP32, INT32, eight_bits
from tests.support.kernel_compiling import check_resources, compile_variant, instructions, loads_of, loops, variants

pytestmark = pytest.mark.sampled(3)

TILES = {"tile_256x224": (195, 136, 216), "tile_192x192": (131, 136, 216), "tile_192x128": (131, 72, 216),
         "tile_128x128": (67, 120, 216), "tile_128x112": (67, 88, 216), "tile_128x64": (67, 8, 216),
         "tile_64x64": (17, 8, 40)}  # fmt: skip
"""Config, and a shape with ragged edges for which it costs the least if there is one compute unit."""
WHOLE = {"splits": 1}
"""Asks for a product of whole k, which has these tiles even if its rows are few."""
ACROSS = {"across_256x224": (195, 136, 216), "across_192x192": (131, 136, 216), "across_128x128": (83, 120, 216),
          "across_64x64": (33, 8, 40)}  # fmt: skip
"""The same for operands that are not both contiguous along k."""
OTHER_LAYOUTS = [
    (config, a_columns, b_columns)
    for config in ACROSS
    for a_columns, b_columns in LAYOUTS
    if (a_columns or not b_columns) and not (a_columns and config == "across_192x192")
]
EIGHT_BITS = {"tile_192x192": (130, 144, 288), "tile_256x224": (129, 208, 288), "tile_128x128": (65, 128, 288),
              "tile_192x128": (129, 80, 288), "tile_128x64": (65, 16, 1008), "tile_128x112": (67, 112, 2000),
              "tile_64x64": (33, 16, 288), "tile_32x128": (17, 80, 288)}  # fmt: skip
"""The same for operands of 8 bits. Their order makes the cases that run by default use other tiles than those above."""
PARTS = {"tile_128x128": (195, 200, 456, 3), "tile_128x64": (67, 56, 456, 3), "tile_64x64": (33, 70, 456, 3),
         "tile_32x128": (30, 136, 2056, 8)}  # fmt: skip
"""Config, and a shape with ragged edges, and a number of parts, that it serves if there is one compute unit."""

UNALIGNED = {("tile_256x224", True): (251, 219, 203), ("tile_128x128", True): (125, 119, 201),
             ("tile_64x64", True): (60, 63, 133), ("across_256x224", False): (251, 219, 203),
             ("across_128x128", False): (125, 119, 201), ("tile_64x64", False): (60, 63, 133)}  # fmt: skip
"""Config and whether b is column-major, and a shape that it serves if there is one compute unit."""

EIGHT_BITS_PARTS = {"tile_192x192": (5, 130, 80, 1824), "tile_128x128": (3, 68, 80, 1168),
                    "tile_128x64": (5, 66, 16, 1616), "tile_64x64": (5, 37, 144, 3600),
                    "tile_32x128": (5, 17, 144, 1616)}  # fmt: skip
"""Config, and a number of compute units and a shape for which parts of k and this config cost the least."""

SCALED_BLOCKS = {"tile_256x224": (129, 208, 288), "tile_192x192": (130, 144, 288), "tile_128x128": (65, 80, 288),
                 "tile_64x64": (33, 16, 288), "tile_32x64": (17, 80, 288)}  # fmt: skip
"""The same for operands with scales of blocks."""
SCALED_PARTS = {"tile_192x192": (5, 130, 80, 1824), "tile_128x128": (3, 68, 80, 1056), "tile_64x64": (3, 37, 16, 1200),
                "tile_32x64": (5, 17, 48, 1616)}  # fmt: skip
"""The same for parts of k."""


def across(config: str, a_columns: bool) -> tuple[int, int, int]:
    """Return the shape for a config. Contiguous columns of a are multiples of 16."""
    m, n, k = ACROSS[config]
    return m - m % 16 if a_columns else m, n, k


def few_units(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, count: int) -> Bundle:
    """Return the bundle on a device with few compute units."""
    if bundle.index.target.arch != "gfx942":
        pytest.skip("the kernel is for gfx942")
    with_few_units(bundle, monkeypatch, count)
    return bundle


@pytest.fixture
def one_unit(gemm: Bundle, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """The bundle on a device with one compute unit."""
    return few_units(gemm, monkeypatch, 1)


@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
@pytest.mark.parametrize("epilogue", ("none", "bias", "any"))
@pytest.mark.parametrize("config", TILES)
def test_tiles(one_unit: Bundle, config: str, epilogue: str, dtype: np.dtype[Any]):
    """Rows, columns and k are cut short by edges with poison behind them; results repeat."""
    (m, n, k), rng = TILES[config], np.random.default_rng(7)
    given: dict[str, Any] = {"a": matrix(rng, (m, k), dtype), "b": matrix(rng, (k, n), dtype, True), "alpha": 0.5}
    if epilogue != "none":
        given["bias"] = matrix(rng, (n,), dtype)
    if epilogue == "any":
        given |= {"d": matrix(rng, (m, n), dtype), "beta": -2.0, "activation": "silu"}
    one, other = (check(one_unit, "matmul", dtype, WHOLE, **given) for _ in range(2))
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))
    placed = {name: on_device(one_unit, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    assert configs(one_unit, "matmul", **placed, **WHOLE) == [config]


@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
@pytest.mark.parametrize("added", (False, True))
@pytest.mark.parametrize("config, a_columns, b_columns", OTHER_LAYOUTS)
def test_tiles_across_k(
    one_unit: Bundle, config: str, a_columns: bool, b_columns: bool, added: bool, dtype: np.dtype[Any]
):
    """Operands that are contiguous along rows or columns."""
    (m, n, k), rng = across(config, a_columns), np.random.default_rng(7)
    given: dict[str, Any] = {"a": matrix(rng, (m, k), dtype, a_columns), "b": matrix(rng, (k, n), dtype, b_columns)}
    if added:
        given |= {"bias": matrix(rng, (n,), dtype), "d": matrix(rng, (m, n), dtype), "activation": "gelu"}
    one, other = (check(one_unit, "matmul", dtype, **given) for _ in range(2))
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))
    placed = {name: on_device(one_unit, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    assert configs(one_unit, "matmul", **placed) == [config]


@pytest.mark.parametrize("epilogue", ("none", "any"))
@pytest.mark.parametrize("config, n", (("tile_128x128", 119), ("tile_128x112", 87), ("tile_64x64", 11)))
def test_rows_of_any_length(one_unit: Bundle, config: str, n: int, epilogue: str):
    """Rows of e begin anywhere; operands are aligned, and are loaded as such. Nothing is written beside e."""
    (m, _, k), rng = TILES[config], np.random.default_rng(n)
    given: dict[str, Any] = {"a": matrix(rng, (m, k), FP16), "b": matrix(rng, (k, n), FP16, True)}
    if epilogue == "any":
        given |= {"d": matrix(rng, (m, n), FP16), "activation": "silu"}
    check(one_unit, "matmul", FP16, WHOLE, **given)
    placed = {name: on_device(one_unit, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    assert configs(one_unit, "matmul", **placed, **WHOLE) == [config]
    wide = on_device(one_unit, np.full((m, n + 2), 7, FP16))
    one_unit.matmul(**placed, **WHOLE, e=wide[:, :n])
    assert (wide.numpy()[:, n:] == 7).all()


@pytest.mark.parametrize("added", (True, False))
@pytest.mark.parametrize("config, b_columns", UNALIGNED)
def test_rows_at_any_address(one_unit: Bundle, config: str, b_columns: bool, added: bool):
    """Rows of all matrices begin anywhere, and are cut short by edges. Nothing is written beside e."""
    (m, n, k), rng = UNALIGNED[config, b_columns], np.random.default_rng(12)
    given: dict[str, Any] = {"a": matrix(rng, (m, k), BF16), "b": matrix(rng, (k, n), BF16, b_columns)}
    if added:
        given |= {"bias": matrix(rng, (n,), BF16), "d": matrix(rng, (m, n), BF16), "activation": "gelu"}
    check(one_unit, "matmul", BF16, **given)
    placed = {name: on_device(one_unit, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    assert configs(one_unit, "matmul", **placed) == [config]
    wide = on_device(one_unit, np.full((m, n + 2), 7, BF16))
    one_unit.matmul(**placed, e=wide[:, :n])
    assert (wide.numpy()[:, n:] == 7).all()


@pytest.mark.parametrize("b_columns", (True, False))
@pytest.mark.parametrize("k", (17, 63, 64, 65, 71, 129))
def test_lengths_of_rows_at_any_address(one_unit: Bundle, k: int, b_columns: bool):
    """k has one step or more, of which the last one begins earlier so that its pieces are whole."""
    rng = np.random.default_rng(k)
    check(one_unit, "matmul", FP16, a=matrix(rng, (19, k), FP16), b=matrix(rng, (k, 37), FP16, b_columns))


@pytest.mark.parametrize("seed", range(20))
def test_random_products(gemm: Bundle, seed: int):
    """Products of any extents, layouts and dtypes of 16 bits, with and without a bias, are right."""
    rng = np.random.default_rng([42, seed])
    m, n, k = (round(np.exp(rng.uniform(0, np.log(400)))) for _ in range(3))
    dtype = (BF16, FP16)[int(rng.integers(2))]
    a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, bool(rng.integers(2)))
    check(gemm, "matmul", dtype, a=a, b=b, bias=matrix(rng, (n,), dtype) if rng.integers(2) else None)


@pytest.mark.parametrize("config, shape", (("tile_64x64", (33, 69, 457, 3)), ("tile_32x128", (30, 135, 2057, 8))))
def test_parts_of_rows_at_any_address(one_unit: Bundle, config: str, shape: tuple[int, int, int, int]):
    (m, n, k, splits), rng = shape, np.random.default_rng(13)
    given = {"a": matrix(rng, (m, k), BF16), "b": matrix(rng, (k, n), BF16, True)}
    check(one_unit, "matmul", BF16, {"splits": splits}, **given)
    placed = {name: on_device(one_unit, x) for name, x in given.items()}
    assert configs(one_unit, "matmul", **placed, splits=splits)[0] == config


@pytest.mark.parametrize("biased", (True, False))
@pytest.mark.parametrize("kind", ("int8", "e4m3", "e5m2"))
@pytest.mark.parametrize("config", EIGHT_BITS)
def test_tiles_of_eight_bits(one_unit: Bundle, config: str, kind: str, biased: bool):
    (m, n, k), rng, dtype = EIGHT_BITS[config], np.random.default_rng(8), eight_bits(one_unit, kind)
    given: dict[str, Any] = {"a": matrix(rng, (m, k), dtype), "b": matrix(rng, (k, n), dtype, True)}
    if kind == "int8" and not biased:
        check(one_unit, "integer_matmul", INT32, **given)
    given["scale_a"] = rng.uniform(1e-3, 1e-2, m if biased else 1).astype(FP32)
    given["scale_b"] = rng.uniform(0.5, 2, n if biased else 1).astype(FP32)
    given |= {"bias": matrix(rng, (n,), BF16)} if biased else {}
    check(one_unit, "scaled_matmul", BF16, **given)
    placed = {name: on_device(one_unit, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    assert configs(one_unit, "scaled_matmul", **placed, e=one_unit.device.empty((m, n), BF16)) == [config]


def scaled_operands(bundle: Bundle, kind: str, shape: Sequence[int], epilogue: str) -> dict[str, Any]:
    """Draw operands of `scaled_matmul`. epilogue: `bias`; `zeros`, of a; or `any`, an addend and an activation."""
    (m, n, k), rng, dtype = shape, np.random.default_rng(12), eight_bits(bundle, kind)
    given: dict[str, Any] = {"a": matrix(rng, (m, k), dtype), "b": matrix(rng, (k, n), dtype, True)}
    given |= {"bias": matrix(rng, (n,), BF16), "scale_a": rng.uniform(1e-3, 1e-2, m).astype(FP32)}
    given["scale_b"] = rng.uniform(0.5, 2, n).astype(FP32)
    if epilogue == "zeros":
        given |= {"zero_a": rng.integers(-99, 99, m).astype(INT32), "colsum": given["b"].sum(0, dtype=INT32)}
    elif epilogue == "any":
        given |= {"d": matrix(rng, (m, n), BF16), "activation": "silu"}
    return given


@pytest.mark.parametrize("kind, epilogue", (("int8", "zeros"), ("int8", "any"), ("e4m3", "any"), ("e4m3", "bias")))
@pytest.mark.parametrize("config", EIGHT_BITS_PARTS)
def test_parts_of_eight_bits(gemm: Bundle, monkeypatch: pytest.MonkeyPatch, config: str, kind: str, epilogue: str):
    """Parts have different numbers of steps, and the last step is cut short; the epilogue follows their sum."""
    units, *shape = EIGHT_BITS_PARTS[config]
    bundle = few_units(gemm, monkeypatch, units)
    given = scaled_operands(bundle, kind, shape, epilogue)
    one, other = (check(bundle, "scaled_matmul", BF16, **given) for _ in range(2))
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))
    placed = {name: on_device(bundle, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    chosen = configs(bundle, "scaled_matmul", **placed, e=bundle.device.empty(tuple(shape[:2]), BF16))
    assert chosen[0] == config and len(chosen) == 2


@pytest.mark.parametrize("added", (True, False))
@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
@pytest.mark.parametrize("a_columns, b_columns", LAYOUTS)
def test_batches(one_unit: Bundle, a_columns: bool, b_columns: bool, dtype: np.dtype[Any], added: bool):
    """b is one matrix for all, or one for each."""
    batch, m, n, k, rng = 3, 80 if a_columns else 66, 72, 136, np.random.default_rng(9)
    a = matrix(rng, (batch, m, k), dtype, a_columns)
    b = matrix(rng, (1 if added else batch, k, n), dtype, b_columns)
    more = {"d": matrix(rng, (batch, 1, n), dtype), "activation": "gelu"} if added else {}
    check(one_unit, "batched_matmul", dtype, a=a, b=b, alpha=0.5, **more)
    (config,) = configs(one_unit, "batched_matmul", on_device(one_unit, a), on_device(one_unit, b))
    assert config.startswith("across" if a_columns or not b_columns else "tile")


@pytest.mark.parametrize("shared", (True, False))
@pytest.mark.parametrize("kind", ("int8", "e4m3"))
def test_batches_of_eight_bits(one_unit: Bundle, kind: str, shared: bool):
    """Each of a batch has scales and a bias of its own; b and what belongs to it may be one for all."""
    batch, m, n, k, rng, dtype = 3, 66, 80, 144, np.random.default_rng(11), eight_bits(one_unit, kind)
    of_b = 1 if shared else batch
    given = {"a": matrix(rng, (batch, m, k), dtype), "b": matrix(rng, (of_b, k, n), dtype, True),
             "scale_a": rng.uniform(1e-3, 1e-2, (batch, m)).astype(FP32),
             "scale_b": rng.uniform(0.5, 2, (of_b, n)).astype(FP32), "bias": matrix(rng, (of_b, n), BF16)}  # fmt: skip
    check(one_unit, "batched_scaled_matmul", BF16, **given)
    placed = {name: on_device(one_unit, x) for name, x in given.items()}
    taken = configs(one_unit, "batched_scaled_matmul", **placed, e=one_unit.device.empty((batch, m, n), BF16))
    assert taken[0].startswith("tile")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("a_columns, b_columns", LAYOUTS)
@pytest.mark.parametrize("k", (8, 64, 72, 128, 136, 192))
def test_lengths_of_k(one_unit: Bundle, k: int, a_columns: bool, b_columns: bool):
    """k has one step, two, or three, the first of them whole or cut short."""
    rng, m = np.random.default_rng(k), 80 if a_columns else 65
    check(one_unit, "matmul", BF16, a=matrix(rng, (m, k), BF16, a_columns), b=matrix(rng, (k, 72), BF16, b_columns))


def scaled_blocks(bundle: Bundle, shape: Sequence[int], rows: int, by_columns: bool = False) -> dict[str, Any]:
    """Draw operands of `block_scaled_matmul` with scales that differ by factors up to 100."""
    (m, n, k), rng, dtype = shape, np.random.default_rng(10), eight_bits(bundle, "e4m3")
    scale_a = (10 ** rng.uniform(-3, -1, (-(-m // rows), -(-k // 128)))).astype(FP32)
    scale_b = (10 ** rng.uniform(-1, 1, (-(-k // 128), -(-n // 128)))).astype(FP32)
    return {"a": matrix(rng, (m, k), dtype), "b": matrix(rng, (k, n), dtype, True), "rows_per_scale": rows,
            "scale_a": np.asfortranarray(scale_a) if by_columns else scale_a, "scale_b": scale_b}  # fmt: skip


@pytest.mark.parametrize("rows", (1, 128))
@pytest.mark.parametrize("config", SCALED_BLOCKS)
def test_tiles_of_scaled_blocks(one_unit: Bundle, config: str, rows: int):
    """Rows, columns, k and blocks of columns are cut short by edges; results repeat."""
    (m, n, _), dtype = SCALED_BLOCKS[config], BF16 if rows == 1 else FP16
    given = scaled_blocks(one_unit, SCALED_BLOCKS[config], rows, by_columns=rows == 1)
    one, other = (check(one_unit, "block_scaled_matmul", dtype, **given) for _ in range(2))
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))
    placed = {name: on_device(one_unit, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    assert configs(one_unit, "block_scaled_matmul", **placed, e=one_unit.device.empty((m, n), dtype)) == [config]


@pytest.mark.parametrize("config", SCALED_PARTS)
def test_parts_of_scaled_blocks(gemm: Bundle, monkeypatch: pytest.MonkeyPatch, config: str):
    """Each part has its own scales."""
    units, *shape = SCALED_PARTS[config]
    bundle = few_units(gemm, monkeypatch, units)
    given = scaled_blocks(bundle, shape, 1, by_columns=config == "tile_64x64")
    check(bundle, "block_scaled_matmul", BF16, **given)
    placed = {name: on_device(bundle, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    chosen = configs(bundle, "block_scaled_matmul", **placed, e=bundle.device.empty(tuple(shape[:2]), BF16))
    assert chosen[0] == config and len(chosen) == 2


@pytest.mark.parametrize("k", (16, 128, 144, 256, 400, 512))
def test_blocks_along_k(one_unit: Bundle, k: int):
    check(one_unit, "block_scaled_matmul", BF16, **scaled_blocks(one_unit, (65, 80, k), 1))


@pytest.mark.on("emulator")
@pytest.mark.parametrize(
    "config, split", [(config, False) for config in SCALED_BLOCKS] + [(config, True) for config in SCALED_PARTS]
)
def test_code_of_scaled_blocks(config: str, split: bool):
    """Nothing is spilled; in the loop each block is loaded, written and read once; packed instructions add products."""
    (variant,) = variants(
        "gfx942",
        "gemm",
        "block_scaled_matmul",
        kernel="block_scaled_matmul_cdna3",
        config=config,
        SPLIT=split,
        E="float16",
    )
    compiled = compile_variant(variant)
    check_resources(compiled)
    body = max(loops(compiled, "v_mfma"), key=len)
    settings: dict[str, Any] = dict(variant.job.constants) | dict(variant.job.options)
    rows, columns = settings["ROWS"], settings["COLUMNS"]
    products = [name for name in body if name.startswith("v_mfma")]
    steps, rest = divmod(len(products), 4 * rows * columns)
    assert steps in (1, 2) and rest == 0
    assert sum(name == "ds_read_b128" for name in body) == 2 * steps * (rows + columns)
    loads = [load_bits(name) for name in loads_of(body) if name != "buffer_load_dword"]
    assert sum(loads) == steps * 256 * (settings["WAVES_M"] * rows + columns) // settings["num_warps"]
    assert len([name for name in body if name.startswith("v_")]) - len(products) <= 1.7 * len(products)


@pytest.mark.on("emulator")
@pytest.mark.parametrize("dtype", ("int8", "float8_e4m3fnuz"))
@pytest.mark.parametrize(
    "config, split", [(config, False) for config in EIGHT_BITS] + [(config, True) for config in EIGHT_BITS_PARTS]
)
def test_code_of_eight_bits(config: str, split: bool, dtype: str):
    """Nothing is spilled; the epilogue is loaded and stored without branches, and rows in 16 bytes a lane."""
    (variant,) = variants(
        "gfx942", "gemm", "scaled_matmul", kernel="matmul_cdna3", config=config, SPLIT=split, T=dtype,
        E="bfloat16", EPILOGUE="any" if split else "bias",
    )  # fmt: skip
    compiled = compile_variant(variant)
    check_resources(compiled)
    names = instructions(compiled)
    assert sum(name.startswith(("s_cbranch", "s_branch")) for name in names) <= 8
    assert {name for name in names if "store" in name} <= {"buffer_store_dwordx4", "buffer_store_dwordx2"}


@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
@pytest.mark.parametrize("config", PARTS)
def test_parts_of_k(one_unit: Bundle, config: str, dtype: np.dtype[Any]):
    """Parts have different numbers of steps, and the last step is cut short; results repeat."""
    m, n, k, splits = PARTS[config]
    rng, how = np.random.default_rng(10), {"splits": splits}
    given: dict[str, Any] = {"a": matrix(rng, (m, k), dtype), "b": matrix(rng, (k, n), dtype, True), "alpha": 0.5}
    given |= {"bias": matrix(rng, (n,), dtype), "d": matrix(rng, (m, n), dtype), "activation": "silu"}
    one, other = (check(one_unit, "matmul", dtype, how, **given) for _ in range(2))
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))
    placed = {name: on_device(one_unit, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    assert configs(one_unit, "matmul", **placed, **how) == [config, "base"]


@pytest.mark.on("emulator")
@pytest.mark.parametrize("config", PARTS)
def test_stores_of_parts(config: str):
    """Parts are stored in 16 bytes a lane, whatever n is."""
    (variant,) = variants(
        "gfx942", "gemm", "matmul", kernel="matmul_cdna3", config=config, SPLIT=True, UNALIGNED=False, T="bfloat16"
    )
    stores = {name for name in instructions(compile_variant(variant)) if "store" in name}
    assert stores == {"buffer_store_dwordx4"}


@pytest.mark.parametrize("splits", (2, 3, 4))
def test_parts_of_a_step(one_unit: Bundle, splits: int):
    """There are as many steps as parts, or fewer: then the general kernel has the parts."""
    rng = np.random.default_rng(splits)
    check(one_unit, "matmul", FP16, {"splits": splits}, a=matrix(rng, (33, 136), FP16),
          b=matrix(rng, (136, 40), FP16, True))  # fmt: skip


@pytest.mark.on("emulator")
@pytest.mark.parametrize("config, a_columns, b_columns", [*((config, False, True) for config in TILES), *OTHER_LAYOUTS])
def test_no_bank_conflicts(one_unit: Bundle, config: str, a_columns: bool, b_columns: bool):
    from aot_bundle.profile.profile_call import profile_on
    from aot_bundle.profile.profile_report import profile_data

    shape = TILES[config] if config in TILES else across(config, a_columns)
    innermost = {"a": 1 - a_columns, "b": 1 - b_columns}
    call = CallSpec(
        dims=dict(zip("mnk", shape, strict=True)),
        dtypes={"T": "bfloat16"},
        innermost=innermost,
        scalars={"splits": "1"},
    )
    profile = profile_on(one_unit.device.driver, one_unit, "matmul", call)
    (launch,) = profile_data(profile, by_instruction=False)["launches"]
    accesses = [launch["accesses"][f"lds_{action}"] for action in ("load", "store")]
    assert [(access["passes"] > 0, access["conflicts"]) for access in accesses] == [(True, 0)] * 2


@pytest.mark.on("emulator")
@pytest.mark.parametrize(
    ("config", "epilogue"), [(config, epilogue) for config in TILES for epilogue in ("none", "bias", "any")]
    + [(config, "parts") for config in PARTS],
)  # fmt: skip
def test_code(config: str, epilogue: str):
    """Nothing is spilled; in the loop each block is loaded, written and read once, and little else is issued."""
    of_parts = epilogue == "parts"
    (variant,) = variants(
        "gfx942", "gemm", "matmul", kernel="matmul_cdna3", config=config, EPILOGUE="any" if of_parts else epilogue,
        UNALIGNED=False, SPLIT=of_parts, T="float16",
    )  # fmt: skip
    compiled = compile_variant(variant)
    check_resources(compiled, scalar=epilogue != "any")  # which has two ways to store, outside of the loop
    body = max(loops(compiled, "v_mfma"), key=len)
    settings: dict[str, Any] = dict(variant.job.constants) | dict(variant.job.options)
    rows, columns, warps = settings["ROWS"], settings["COLUMNS"], settings["num_warps"]
    products = [name for name in body if name.startswith("v_mfma")]
    steps, rest = divmod(len(products), 4 * rows * columns)  # small tiles are unrolled
    assert steps in (1, 2) and rest == 0
    assert not [name for name in body if name.startswith("v_") and not name.startswith("v_mfma")]
    loads, bits = loads_of(body), 128 * 16 * (rows * settings["WAVES_M"] + columns * settings["WAVES_N"]) // (8 * warps)
    assert set(loads) <= {"buffer_load_dwordx4", "buffer_load_dwordx2"}
    assert sum(map(load_bits, loads)) == steps * bits
    assert sum(name.startswith("ds_write") for name in body) <= len(loads)
    assert sum(name == "ds_read_b128" for name in body) == 2 * steps * (rows + columns)
    assert len(body) - len(products) <= steps * (24 + 6 * (rows + columns))


@pytest.mark.on("emulator")
@pytest.mark.parametrize("epilogue", ("none", "any"))
@pytest.mark.parametrize("config, a_columns, b_columns", OTHER_LAYOUTS)
def test_code_across_k(config: str, a_columns: bool, b_columns: bool, epilogue: str):
    """Nothing is spilled; a vector instruction reorders two elements, and bases of loads are scalar."""
    layout = {"A_ROWS": not a_columns, "B_ROWS": not b_columns}
    (variant,) = variants(
        "gfx942", "gemm", "matmul", config=config, EPILOGUE=epilogue, UNALIGNED=False, T="bfloat16", **layout
    )
    compiled = compile_variant(variant)
    check_resources(compiled, scalar=not a_columns and epilogue == "none")
    body = max(loops(compiled, "v_mfma"), key=len)
    settings: dict[str, Any] = dict(variant.job.constants) | dict(variant.job.options)
    rows, columns = settings["ROWS"] * settings["WAVES_M"], settings["COLUMNS"] * settings["WAVES_N"]
    steps = sum(name.startswith("v_mfma") for name in body) // (4 * settings["ROWS"] * settings["COLUMNS"])
    pairs = steps * 8 * (rows * a_columns + columns * (not b_columns)) // settings["num_warps"]
    assert body.count("v_perm_b32") == pairs
    assert not {"v_readlane_b32", "v_writelane_b32"} & set(body)
    others = [name for name in body if name.startswith("v_") and not name.startswith(("v_mfma", "v_perm"))]
    assert len(others) <= steps * len(body) // 50, others
    assert sum(map(load_bits, loads_of(body))) == steps * 256 * (rows + columns) // settings["num_warps"]
    assert sum(name == "ds_read_b128" for name in body) == 2 * steps * (settings["ROWS"] + settings["COLUMNS"])


@pytest.mark.on("emulator")
@pytest.mark.parametrize("config", ("tile_256x224", "tile_128x128", "tile_64x64"))
def test_code_for_rows_at_any_address(config: str):
    """Loads are as wide as those of aligned rows, and nothing is spilled."""
    (variant,) = variants(
        "gfx942", "gemm", "matmul", kernel="matmul_cdna3", config=config, EPILOGUE="none", B_ROWS=False, UNALIGNED=True,
        T="float16",
    )  # fmt: skip
    compiled = compile_variant(variant)
    check_resources(compiled)
    assert set(loads_of(max(loops(compiled, "v_mfma"), key=len))) == {"buffer_load_dwordx4"}
