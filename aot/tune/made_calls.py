"""A call to be made with one candidate after the other, its tensors in a device's memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from aot.manifest.calls import CallEntrySpec
from aot.plan.calls import call_spec
from aot_bundle.profile.profile_call import MadeCall, make_call
from aot_runtime.call.planner import Planner
from aot_runtime.contract.dtypes import INT8, UINT8
from aot_runtime.opening import Bundle

from .candidates import SCALAR


def made_call(bundle: Bundle, op: str, call: CallEntrySpec, content: Mapping[str, str]) -> MadeCall:
    """Make the tensors of a call. Raises `ArgumentError`.

    Unbounded 8-bit integers are random: with zeros, every candidate would compute the same.
    """
    planner: Planner = bundle[op].planner  # type: ignore[attr-defined]
    made = make_call(bundle, op, call_spec(call, planner), content)
    rng = np.random.default_rng(0)
    for tensor in planner.op.tensors:
        array = made.arrays.get(tensor.name)
        if array is None or tensor.name in content or tensor.range or tensor.offsets or tensor.role == "output":
            continue
        if array.dtype in (INT8.name, UINT8.name) and array.nbytes:
            layout = array.layout
            numbers = rng.integers(0, 256, (layout.high - layout.low) * layout.itemsize, np.uint8)
            bundle.device.write(array.ptr + layout.low * layout.itemsize, numbers, 0)
    return made


def run_with(made: MadeCall, number: int) -> None:
    """Make the call with a candidate; 0: with the present configs."""
    made.bundle[made.planner.op.name](**made.arrays, **{**made.scalars, SCALAR: number})
