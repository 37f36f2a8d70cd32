"""A call that is made with one candidate after the other, its tensors in a device's memory."""

from __future__ import annotations

from collections.abc import Mapping

from aot_emulator.profile.profile_call import MadeCall, make_call

from aot.manifest.calls import CallEntrySpec
from aot.plan.calls import call_spec
from aot_runtime.call.planner import Planner
from aot_runtime.opened import Bundle

from .candidates import SCALAR


def made_call(bundle: Bundle, op: str, call: CallEntrySpec, content: Mapping[str, str]) -> MadeCall:
    """Make the tensors of a call. Raises `ArgumentError`."""
    planner: Planner = bundle[op].planner  # type: ignore[attr-defined]
    return make_call(bundle, op, call_spec(call, planner), content)


def run_with(made: MadeCall, number: int) -> None:
    """Make the call with a candidate; 0: with the configs as they are."""
    made.bundle[made.planner.op.name](**made.arrays, **{**made.scalars, SCALAR: number})
