"""Captured graphs."""

from __future__ import annotations

import numpy as np

from aot_runtime import Bundle, DeviceArray
from aot_runtime.bundle.vector_files import dtype_of
from aot_runtime.call.selftests import Prepared, prepare
from kernels.decode.reference import (
    paged_attention,
    paged_attention_same_dtype,
)
from tests.ops.decode.cases import (
    FP16,
    check,
    paged,
)


def test_every_op_gives_the_same_each_time_and_from_a_graph(with_vectors: Bundle):
    decode = with_vectors
    stream = decode.device.stream()
    for item in prepare(decode):
        function = getattr(decode, item.case.op)
        results = []
        for captured in (False, False, True):
            arrays = arrays_of(decode, item)
            if captured:
                with decode.device.capture(stream) as graph:
                    function(**arrays, **item.case.scalars, stream=stream)
                graph.launch(stream)
            else:
                function(**arrays, **item.case.scalars, stream=stream)
            stream.synchronize()
            results.append([arrays[name].numpy().tobytes() for name in item.vectors.expected])
        assert results[0] == results[1] == results[2], (item.case.op, item.case.name)


def arrays_of(bundle: Bundle, item: Prepared) -> dict[str, DeviceArray]:
    """The tensors of a selftest case on the device, outputs poisoned."""
    op = getattr(bundle, item.case.op).planner.op
    values = dict(item.vectors.inputs)
    for tensor in op.tensors:
        if tensor.role == "output" and tensor.name in item.vectors.expected:
            shape = item.vectors.expected[tensor.name].shape
            values[tensor.name] = np.full(shape, np.nan, dtype_of(tensor, item.case.dtypes))
    return {name: bundle.device.array(array) for name, array in values.items()}


def test_a_captured_step_decodes_token_after_token(decode: Bundle):
    """One graph writes a token to the cache and attends to all; lengths and slots change between its launches."""
    case = paged([(1, 200), (1, 100), (1, 33)], 16)
    q, k, v, tables, lengths, starts = (decode.device.array(x) for x in case.values())
    rng = np.random.default_rng(1)
    k_new, v_new = (decode.device.array(np.zeros((3, 2, 64), FP16)) for _ in range(2))
    slots, out = decode.device.array(np.full(3, -1, np.int32)), decode.device.empty(case.q.shape, np.float16)
    stream = decode.device.stream()

    def step() -> None:
        decode.append_kv(k_new, v_new, k, v, slots, stream=stream)
        decode.paged_attention(q, k, v, tables, lengths, starts, out=out, stream=stream)

    step()  # loads the code and makes the workspace
    stream.synchronize()
    with decode.device.capture(stream) as graph:
        step()
    for _ in range(4):
        new = [rng.standard_normal((3, 2, 64)).astype(FP16) for _ in range(2)]
        block = case.block_tables[np.arange(3), case.seqlens_k // 16]
        place = case.seqlens_k % 16
        for array, rows, cache in zip((k_new, v_new), new, (case.k, case.v), strict=True):
            array.copy_from(rows)
            cache[block, place] = rows
        slots.copy_from(block * 16 + place)
        case.seqlens_k[...] += 1
        lengths.copy_from(case.seqlens_k)
        out.copy_from(np.full(case.q.shape, np.nan, FP16))
        graph.launch(stream)
        stream.synchronize()
        exact, same = (f(*case.values(), scale=0.125) for f in (paged_attention, paged_attention_same_dtype))
        check([out], (exact,), (same,))
