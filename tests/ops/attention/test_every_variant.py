"""Every variant that the manifest of attention builds for gfx942, on the emulator in strict mode."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from aot_runtime import Bundle
from aot_runtime.call.planner import op_planner
from tests.ops.attention.building import key_of, needed_by
from tests.ops.attention.cases import Case, make_call
from tests.ops.attention.checking import check
from tests.support.emulation.bundling import built

DIMS = ((32, 32), (64, 64), (128, 128), (256, 256), (256, 128))
PADDED = ((48, 48), (80, 80), (144, 144), (192, 112))
ODD = ((63, 63), (100, 127), (200, 200))
LENGTHS = ((33, 83), (100, 83), (600, 83))


def cases() -> Iterator[Case]:
    for mode, dtype in itertools.product(("batch", "varlen"), ("float16", "bfloat16")):
        for dims, lengths in itertools.product((*DIMS, *PADDED, *ODD), LENGTHS):
            for mask in ("0", "b", "b:30,4"):
                yield Case(mask, dims, lengths=lengths, mode=mode, dtype=dtype)
            yield Case("b", dims, lengths=lengths, mode=mode, dtype=dtype, schedule="dynamic")
            features = "alibi softcap" if mode == "varlen" else "bias alibi softcap"
            yield Case("b:30,4", dims, features, lengths, mode=mode, dtype=dtype)
            yield Case("b", dims, features, lengths, mode=mode, dtype=dtype, v_rows=False)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_variant(tmp_path_factory: pytest.TempPathFactory):
    bundle: Bundle = built(tmp_path_factory, "attention")
    planners = {op: op_planner(bundle.index, op) for op in bundle.ops}
    seen: set[tuple[object, ...]] = set()
    for case in cases():
        call = make_call(case)
        needed = set(needed_by(call, planners[call.op], "gfx942"))
        if needed - seen:
            check(bundle, call)
            seen |= needed
    assert seen == {key_of(variant) for variant in bundle.index.variants}
