"""Captured graphs."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from aot_runtime.bundle.vector_files import dtype_of
from aot_runtime.call.selftests import Prepared, prepare
from tests.ops.decode.cases import FP16, assert_right, normal, packed, paged
from tests.support.op_bundles import OpBundles


def test_a_captured_step_decodes_token_after_token(decode: Bundle):
    """One graph writes a token to the cache and attends to all; lengths and slots change between its launches."""
    case = paged([(1, 200), (1, 100), (1, 33)], 16)
    there = {name: packed(decode, x) for name, x in vars(case).items()}
    rng = np.random.default_rng(1)
    k_new, v_new = (packed(decode, np.zeros((3, 2, 64), FP16)) for _ in range(2))
    slots, out = packed(decode, np.full(3, -1, np.int32)), decode.device.empty(case.q.shape, np.float16)
    stream = decode.device.stream()

    def step() -> None:
        decode.append_kv(k_new, v_new, there["k"], there["v"], slots, stream=stream)
        decode.paged_attention(**there, num_splits=3, out=out, stream=stream)

    step()  # loads the code and makes the workspace
    stream.synchronize()
    with decode.device.capture(stream) as graph:
        step()
    for _ in range(4):
        block, place = case.block_tables[np.arange(3), case.seqlens_k // 16], case.seqlens_k % 16
        for array, cache in ((k_new, case.k), (v_new, case.v)):
            cache[block, place] = normal(rng, 3, 2, 64)
            array.copy_from(cache[block, place])
        slots.copy_from(block * 16 + place)
        case.seqlens_k[...] += 1
        there["seqlens_k"].copy_from(case.seqlens_k)
        out.copy_from(np.full(case.q.shape, np.nan, FP16))
        graph.launch(stream)
        stream.synchronize()
        assert_right("paged_attention", [out], vars(case))


@pytest.mark.on("gpu")  # where the vectors are there: elsewhere every op would have to be built for them
def test_every_op_gives_the_same_each_time_and_from_a_graph(op_bundles: OpBundles):
    decode = op_bundles.with_vectors("decode")
    stream = decode.device.stream()
    for item in prepare(decode):
        function, results = getattr(decode, item.case.op), set()
        for captured in (False, False, True):
            arrays = arrays_of(decode, item)
            if captured:
                with decode.device.capture(stream) as graph:
                    function(**arrays, **item.case.scalars, stream=stream)
                graph.launch(stream)
            else:
                function(**arrays, **item.case.scalars, stream=stream)
            stream.synchronize()
            results.add(tuple(arrays[name].numpy().tobytes() for name in item.vectors.expected))
        assert len(results) == 1, (item.case.op, item.case.name)


def arrays_of(bundle: Bundle, item: Prepared) -> dict[str, DeviceArray]:
    """The tensors of a selftest case on the device, outputs poisoned."""
    op = getattr(bundle, item.case.op).planner.op
    values = dict(item.vectors.inputs)
    for tensor in op.tensors:
        if tensor.role == "output" and tensor.name in item.vectors.expected:
            shape = item.vectors.expected[tensor.name].shape
            values[tensor.name] = np.full(shape, np.nan, dtype_of(tensor, item.case.dtypes))
    return {name: packed(bundle, array) for name, array in values.items()}
