"""The attention kernel's arithmetic, on the CPU: every case against float64, and every planted fault noticed."""

from __future__ import annotations

import shutil
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.tolerance import assert_close
from tests.ops.attention.cases import Call, Case, Placed, expected, make_call
from tests.ops.sources.kernel_interpreting import GUARD, NULL, Tensor, launch, planted

KERNELS = Path(__file__).parents[3] / "kernels"
FLOORS = {"float16": 1e-5, "bfloat16": 1e-4}
HEADS = ("batch", "heads", "rows", "columns")
DIMS = {**dict.fromkeys(("q", "k", "v", "bias", "out"), HEADS), "alibi_slopes": HEADS[:2], "lse": HEADS[:3]}
VARLEN_DIMS = {**dict.fromkeys(("q", "k", "v", "out"), ("rows", "heads", "columns")), "alibi_slopes": HEADS[:2],
               "lse": ("heads", "rows")}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A case, and how the kernel is to do it."""

    case: Case
    blocks: tuple[int, int] = (16, 16)
    xcds: int = 1
    bf16_cvt: bool = True


def run(blocks: tuple[int, int] = (16, 16), xcds: int = 1, bf16_cvt: bool = True, **case: Any) -> Run:
    defaults = {"head_dims": (32, 32), "heads": (1, 1), "scale": 0.2}
    return Run(Case(**(defaults | case)), blocks, xcds, bf16_cvt)


RUNS = {
    "whole blocks": run(lengths=(32, 64)),
    "whole blocks, causal": run(lengths=(48, 48), mask="b"),
    "ragged": run(lengths=(37, 53), heads=(2, 2)),
    "ragged, causal": run(lengths=(37, 53), mask="b", heads=(2, 2)),
    "wide query block": run(lengths=(70, 90), mask="b", blocks=(64, 16)),
    "wide key block": run(lengths=(40, 100), mask="b", blocks=(16, 64)),
    "one query": run(lengths=(1, 75), mask="b", heads=(2, 1)),
    "one key": run(lengths=(19, 1)),
    "one of each": run(lengths=(1, 1), mask="b"),
    "fewer keys than queries": run(lengths=(40, 21), mask="b", heads=(2, 2)),
    "far fewer keys than queries": run(lengths=(70, 3), mask="b"),
    "no keys": run(lengths=(20, 0), mask="b"),
    "top-left": run(lengths=(37, 53), mask="t", heads=(2, 2)),
    "top-left, fewer keys than queries": run(lengths=(53, 37), mask="t"),
    "window": run(lengths=(70, 90), mask="b:20,5"),
    "window, whole blocks inside": run(lengths=(64, 100), mask="b:60,30"),
    "window, wide key block": run(lengths=(40, 130), mask="t:50,60", blocks=(16, 32)),
    "window of one key": run(lengths=(40, 70), mask="t:0,0"),
    "window to the left only": run(lengths=(60, 90), mask="b:20,-1"),
    "window to the right only": run(lengths=(60, 90), mask="t:-1,17"),
    "window past the keys": run(lengths=(90, 40), mask="t:3,2"),
    "window that begins right of the diagonal": run(lengths=(50, 70), mask="g:-5,20"),
    "window that ends left of the diagonal": run(lengths=(50, 70), mask="g:40,-6"),
    "varlen": run(lengths=(37, 53), mode="varlen", heads=(2, 1)),
    "varlen, causal": run(lengths=(37, 53), mode="varlen", mask="b", layout="bshd"),
    "varlen, window": run(lengths=(53, 37), mode="varlen", mask="t:10,4", score="alibi of batches", layout="packed"),
    "bias": run(lengths=(37, 53), heads=(2, 1), score="bias"),
    "bias, causal": run(lengths=(37, 53), heads=(2, 1), score="bias", mask="b"),
    "bias of keys": run(lengths=(37, 64), heads=(2, 1), score="bias of keys"),
    "alibi": run(lengths=(37, 53), heads=(2, 1), score="alibi", mask="b"),
    "alibi, top-left": run(lengths=(37, 53), heads=(2, 1), score="alibi", mask="t:-1,20"),
    "alibi of batches": run(lengths=(37, 64), heads=(2, 1), score="alibi of batches"),
    "soft-cap": run(lengths=(37, 53), score="softcap", magnitude=8.0),
    "soft-cap, negative scale": run(lengths=(37, 64), score="softcap", magnitude=8.0, scale=-0.3),
    "bias, window": run(lengths=(37, 70), heads=(2, 1), score="bias", mask="b:20,5"),
    "bias, alibi and soft-cap": run(lengths=(37, 53), heads=(2, 1), score="bias alibi softcap", mask="b"),
    "bias, values by column": run(lengths=(37, 53), heads=(2, 1), score="bias", v_rows=False),
    "varlen, alibi, values by column": run(lengths=(37, 53), mode="varlen", score="alibi", v_rows=False),
    "values by column": run(lengths=(37, 53), v_rows=False, mask="b", heads=(2, 2)),
    "values by column, padded": run(lengths=(37, 53), v_rows=False, head_dims=(40, 24)),
    "narrow values": run(lengths=(37, 53), head_dims=(64, 32), mask="b"),
    "wide values": run(lengths=(37, 53), head_dims=(20, 48)),
    "grouped heads": run(lengths=(20, 33), heads=(6, 2), mask="b"),
    "one key head": run(lengths=(20, 33), heads=(3, 1)),
    "padded head_dim": run(lengths=(21, 35), mask="b", head_dims=(33, 33)),
    "padded head_dim, whole blocks": run(lengths=(32, 32), head_dims=(40, 40), heads=(2, 2)),
    "head_dim 1": run(lengths=(17, 18), head_dims=(1, 1)),
    "sequence before heads": run(lengths=(21, 35), heads=(2, 2), layout="bshd", mask="b"),
    "packed": run(lengths=(21, 35), heads=(2, 1), layout="packed"),
    "bfloat16": run(lengths=(37, 53), mask="b", dtype="bfloat16", head_dims=(64, 64)),
    "bfloat16 rounded by hand": run(lengths=(37, 53), mask="b", dtype="bfloat16", bf16_cvt=False),
    "bfloat16 rounded by hand, large": run(
        lengths=(37, 90), dtype="bfloat16", magnitude=8.0, scale=1.0, bf16_cvt=False
    ),
    # The result is the ratio of the rounded probabilities' sum to the sum: a bias of the rounding shows.
    "bfloat16 rounded by hand, equal values": run(lengths=(37, 90), dtype="bfloat16", bf16_cvt=False, values=1.0),
    "large scores": run(lengths=(37, 90), magnitude=8.0, scale=1.0),
    "large scores, causal": run(lengths=(37, 90), mask="b", magnitude=8.0, scale=1.0),
    "negative scale": run(lengths=(37, 53), mask="b", scale=-0.7, magnitude=4.0),
    "negative scale, whole blocks": run(lengths=(32, 64), scale=-0.7, magnitude=4.0),
    "zero scale": run(lengths=(37, 53), mask="b", scale=0.0),
    "no lse": run(lengths=(20, 33), return_lse=False),
    "eight dies": run(lengths=(40, 20), heads=(5, 5), xcds=8),
    "eight dies, causal": run(lengths=(70, 70), heads=(3, 3), mask="b", xcds=8),
    "more dies than programs": run(lengths=(20, 20), heads=(2, 2), xcds=8),
}

# Name: the run that shows it, the file, what is right there, and what is wrong.
FAULTS = {
    "acc not rescaled": ("whole blocks", "inner", "acc * rescale[:, None])", "acc)"),
    # See tests/ops/attention/test_missing_factor.py.
    "block not rescaled": (
        "whole blocks", "common/softmax", "return p, rescale",
        "return p * tl.exp2(origin - block_max)[:, None], rescale"),
    "sum not rescaled": ("whole blocks", "common/softmax", "row_sum * rescale + ", "row_sum + "),
    "maximum not kept": ("whole blocks", "common/softmax", "rescale, new_max,", "rescale, row_max,"),
    "right edge one key short": (
        "whole blocks, causal", "inner", "offsets[None, :] < 0\n    elif", "offsets[None, :] <= 0\n    elif"),
    "right edge one key long": (
        "whole blocks, causal", "inner", "offsets[None, :] < 0\n    elif", "offsets[None, :] < -1\n    elif"),
    "left edge one key short": (
        "window", "inner", "(tile.first_key - start)[:, None] < 0)", "(tile.first_key - start)[:, None] <= 0)"),
    "left edge one key long": (
        "window", "inner", "(tile.first_key - start)[:, None] < 0)", "(tile.first_key - start)[:, None] < -1)"),
    "mask always top-left": (
        "ragged, causal", "forward", "tl.where(window.bottom_right, seqlen_k - seqlen_q, 0)", "0"),
    "mask always bottom-right": (
        "top-left", "forward", "tl.where(window.bottom_right, seqlen_k - seqlen_q, 0)", "seqlen_k - seqlen_q"),
    "end mask one key long": ("ragged", "inner", "seqlen_k - start - offsets <= 0", "seqlen_k - start - offsets < 0"),
    "end mask one key short": ("ragged", "inner", "seqlen_k - start - offsets <= 0", "seqlen_k - start - offsets <= 1"),
    "keys past the end seen": (
        "top-left, fewer keys than queries", "forward", "tl.minimum(diagonal + right, seqlen_k - 1)",
        "diagonal + right"),
    "diagonal block unmasked": (
        "whole blocks, causal", "masks", "first_diagonal + right + 1", "last_diagonal + right + 1"),
    "last block dropped": ("whole blocks, causal", "masks", "last_diagonal + right + 1", "first_diagonal + right"),
    "first block dropped": (
        "window, whole blocks inside", "masks", "tl.maximum(first_diagonal - left, 0) //",
        "tl.maximum(last_diagonal - left, 0) //"),
    "left edge unmasked": (
        "window", "masks", "tl.cdiv(tl.maximum(last_diagonal - left, 0), BLOCK_N)", "tl.cdiv(begin, BLOCK_N)"),
    "hole not skipped": (
        "window, whole blocks inside", "inner", "at + (span.hole_end - span.hole)) if HOLE", "at) if HOLE"),
    "tail block dropped": ("ragged", "masks", "    end = seqlen_k\n", "    end = seqlen_k // BLOCK_N * BLOCK_N\n"),
    "row past the end read": ("ragged", "inner", "mask=rows[:, None] < row_end,", "mask=rows[:, None] <= row_end,"),
    "padding of head_dim read": (
        "values by column, padded", "inner", "mask=columns[None, :] < column_end,",
        "mask=columns[None, :] <= column_end,"),
    "padding of head_dim written": (
        "values by column, padded", "forward", "    if form.PADDED:\n        mask", "    if False:\n        mask"),
    "queries past the end written": ("ragged", "forward", "stored = rows < seqlen_q", "stored = rows <= seqlen_q"),
    "heads not grouped": ("ragged", "forward", "head // (extents.heads // extents.heads_kv)",
        "head % (extents.heads // extents.heads_kv)"),
    "strides of K for V": (
        "values by column", "inner", "rows_from(keys.v, start)",
        "Matrix(keys.v.ptr + start * keys.k.stride_rows, keys.v.stride_rows, keys.v.stride_columns)"),
    "batch stride dropped": (
        "whole blocks", "forward", "tensor.ptr + batch * tensor.stride_batch",
        "tensor.ptr + 0 * tensor.stride_batch"),
    "lse in base 2": ("whole blocks", "forward", "log2_sum(row_max, row_sum) * LN_2", "log2_sum(row_max, row_sum)"),
    "lse never written": ("whole blocks", "forward", "if lse.ptr.to(tl.int64) != 0:", "if False:"),
    "exp for exp2": ("whole blocks", "inner", "scoring.scale * LOG2_E, EMPTY", "scoring.scale, EMPTY"),
    "exp for exp2 where masked": (
        "whole blocks, causal", "inner", "products * (scoring.scale * LOG2_E)", "products * scoring.scale"),
    "sign of scale lost": (
        "soft-cap, negative scale", "forward", "q_tile = tl.where(scale < 0, -q_tile, q_tile)",
        "q_tile = q_tile + 0.0"),
    "no sum in a row without keys": (
        "fewer keys than queries", "common/softmax", "tl.where(total == 0, 1.0, total)", "total"),
    "no origin in a row without keys": (
        "fewer keys than queries", "common/softmax", 'tl.where(new_max == float("-inf"), 0.0, new_max) if',
        "new_max if"),
    "dies overlap": ("eight dies", "forward", " + tl.minimum(die, count % NUM_XCDS)", ""),
    "bfloat16 truncated": (
        "bfloat16 rounded by hand, equal values", "common/rounding", "bitcast=True) + 0x8000)", "bitcast=True))"),
    "V of the wrong block": ("whole blocks", "inner", "rows_from(keys.v, start)", "rows_from(keys.v, span.begin)"),
    "V by columns read by rows": (
        "values by column", "inner", "columns[None, :] * matrix.stride_columns", "columns[None, :]"),
    "bias of the wrong block": ("bias", "inner", "(scoring.bias + start)[:, None]", "scoring.bias[:, None]"),
    "bias in units of log2": ("bias", "inner", "bias.to(tl.float32) * LOG2_E", "bias.to(tl.float32)"),
    "bias of other queries": (
        "bias", "forward", "queries * bias.stride_rows", "queries % form.BLOCK_N * bias.stride_rows"),
    "bias without its heads": (
        "bias of keys", "forward", "head_of(bias, batch, head)", "head_of(bias, batch, 0)"),
    "slope of another head": (
        "alibi", "forward", "head_of(slopes, batch, head)", "head_of(slopes, batch, 0)"),
    "slope of another batch": (
        "varlen, window", "forward", "head_of(slopes, batch, head)", "head_of(slopes, 0, head)"),
    "ALiBi from the first key": ("alibi", "inner", "tile.diagonal - start", "tile.queries - start"),
    "ALiBi with a sign": ("varlen, window", "inner", "tl.abs(distance) *", "distance *"),
    "soft-cap without its factor": (
        "soft-cap", "inner", "cap(scores, LN_2, scoring.softcap)", "cap(scores, 1.0, scoring.softcap)"),
    "soft-cap of the wrong width": (
        "soft-cap", "common/softcap", "softcap - 2 * softcap / (e + 1)", "1 - 2 / (e + 1)"),
    "sequences overlap": (
        "varlen", "forward", "minimum(tl.load(cu_seqlens + batch + 1), rows) - first",
        "minimum(tl.load(cu_seqlens + batch + 1), rows)"),
    "sequences begin at 0": (
        "varlen", "forward", "matrix_of(out, batch, head, first_row)", "matrix_of(out, batch, head, 0)"),
    "sequences of K begin with Q's": (
        "varlen", "forward", "matrix_of(problem.k, batch, head_kv, first_row_k)",
        "matrix_of(problem.k, batch, head_kv, first_row_q)"),
    "slope not taken": ("alibi", "inner", "if scoring.has_slope:", "if False:"),
    "no soft-cap": ("soft-cap", "inner", "if scoring.softcap > 0:", "if False:"),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_matches_reference(interpreter: Executor, name: str):
    check(interpreter, KERNELS, RUNS[name])


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_noticed(interpreter: Executor, fault: str, tmp_path: Path):
    case, module, right, wrong = FAULTS[fault]
    mutant = tmp_path / "kernels"
    for family in ("attention", "common"):
        shutil.copytree(KERNELS / family, mutant / family, ignore=shutil.ignore_patterns("__pycache__"))
    path = mutant / (f"{module}.py" if "/" in module else f"attention/{module}.py")
    planted(path, right, wrong, path)
    with pytest.raises(AssertionError):
        check(interpreter, mutant, RUNS[case])


def test_one_hot_values_are_copied_exactly(interpreter: Executor):
    """A score that dwarfs the rest selects one row of V, bit for bit."""
    one = run(lengths=(48, 48), head_dims=(64, 64), scale=1.0)
    call = make_call(one.case)
    q, k, v = (call.inputs[name].values for name in "qkv")
    chosen = np.random.default_rng(1).permutation(48)
    k[...] = np.eye(48, 64)
    q[...] = 200 * k[:, :, chosen]
    out, lse = interpret(interpreter, KERNELS, one, call).values()
    np.testing.assert_array_equal(out, v[:, :, chosen])
    np.testing.assert_allclose(lse, 200, rtol=1e-6)


def test_equal_scores_average_integers_exactly(interpreter: Executor):
    one = run(lengths=(5, 64))
    call = make_call(one.case)
    q, v = (call.inputs[name].values for name in "qv")
    q[...] = 0
    v[...] = np.random.default_rng(2).integers(-8, 8, v.shape)
    out, lse = interpret(interpreter, KERNELS, one, call).values()
    np.testing.assert_array_equal(out, np.broadcast_to(v.mean(2, dtype=np.float64, keepdims=True), out.shape))
    np.testing.assert_allclose(lse, np.log(64), rtol=1e-6)


def check(interpreter: Executor, source: Path, one: Run) -> None:
    call = make_call(one.case)
    actual = interpret(interpreter, source, one, call)
    for name, exact, same_dtype in zip(("out", "lse"), *expected(call), strict=True):
        if name in actual:
            assert_close(actual[name], exact, same_dtype, FLOORS[one.case.dtype] if name == "out" else 1e-5, name)


def interpret(interpreter: Executor, source: Path, one: Run, call: Call) -> dict[str, np.ndarray]:
    """The outputs, after checking that nothing beside them was written."""
    tensors = {name: guarded(item) for name, item in (call.inputs | call.outputs).items()}
    arguments = kernel_arguments(one, call, tensors)
    batch = len(call.inputs["cu_seqlens_q"]) - 1 if "cu_seqlens_q" in call.inputs else tensors["q"].shape[0]
    grid = (arguments["work.query_blocks"], arguments["extents.heads"], batch)
    after = interpreter.submit(launch, source / "attention/forward.py", "attention_forward", grid, arguments).result()
    for name in call.outputs:
        assert np.isnan(after[f"{name}.ptr"].surroundings().astype(np.float32)).all(), f"written beside {name}"
    return {name: after[f"{name}.ptr"].view for name in call.outputs}


def kernel_arguments(one: Run, call: Call, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What the manifest makes of a call, for the kernel's general variant."""
    case, varlen = one.case, call.op == "flash_attention_varlen"
    seqlen_q, seqlen_k = (tensors[name].shape[0 if varlen else 2] for name in "qk")
    (dim, dim_v), (heads, heads_kv) = case.head_dims, case.heads
    widths = [max(16, 1 << (width - 1).bit_length()) for width in (dim, dim_v)]
    scalars = call.scalars
    generic = scalars.get("mask_align") == "generic"
    left, right = scalars.get("window_left", -1), 0 if scalars.get("causal") else scalars.get("window_right", -1)
    bound_left, bound_right = generic or left >= 0, generic or right >= 0
    features = bool({"bias", "alibi_slopes"} & tensors.keys() or "softcap" in scalars)
    queries = scalars.get("max_seqlen_q", seqlen_q)
    # Of windows, as of features, the family of variants that looks at what there is has all.
    bound_left, bound_right = bound_left or features, bound_right or features
    return {
        **{f"cu_seqlens_{x}": tensors[f"cu_seqlens_{x}"] for x in "qk" if varlen},
        **members({"lse": NULL, "alibi_slopes": NULL} | ({} if varlen else {"bias": NULL}) | tensors, varlen),
        "extents.heads": heads, "extents.heads_kv": heads_kv, "extents.seqlen_q": seqlen_q,
        "extents.seqlen_k": seqlen_k, "extents.head_dim": dim, "extents.head_dim_v": dim_v,
        "work.query_blocks": -(-queries // one.blocks[0]), "scale": scalars["scale"],
        "window.left": left if generic or left >= 0 else 1000,
        "window.right": right if generic or right >= 0 else 1000,
        "window.bottom_right": scalars.get("mask_align", "bottom_right") == "bottom_right",
        "HEAD_DIM": widths[0], "HEAD_DIM_V": widths[1], "PADDED": [dim, dim_v] != widths, "BOUND_LEFT": bound_left,
        "BOUND_RIGHT": bound_left or bound_right, "BLOCK_M": one.blocks[0], "BLOCK_N": one.blocks[1],
        "NUM_XCDS": one.xcds, "HAS_BF16_CVT": one.bf16_cvt, "softcap": scalars.get("softcap", 0.0),
        "FEATURES": features,
    }  # fmt: skip


def members(tensors: dict[str, Tensor], varlen: bool) -> dict[str, Any]:
    """The address and strides of each tensor, as members of its parameter."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        axes = (VARLEN_DIMS if varlen else DIMS).get(name)
        if axes is None:
            continue
        found |= {f"{name}.stride_{axis}": 0 for axis in DIMS[name]} | {f"{name}.ptr": tensor}
        for axis, extent, stride in zip(axes, tensor.shape, tensor.strides, strict=tensor is not NULL):
            found[f"{name}.stride_{axis}"] = 0 if extent == 1 else stride
    return found


def guarded(item: Placed | np.ndarray) -> Tensor:
    """A tensor of a case in memory that is NaN before and after the array that it is in."""
    values, whole = (item.values, item.whole) if isinstance(item, Placed) else (item, item)
    offset = values.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    guard = np.full(GUARD, np.nan, whole.dtype) if whole.dtype.kind != "i" else np.zeros(GUARD, whole.dtype)
    storage = np.concatenate([guard, whole.ravel(), guard])
    strides = tuple(stride // whole.itemsize for stride in values.strides)
    return Tensor(storage, GUARD + offset // whole.itemsize, values.shape, strides)
