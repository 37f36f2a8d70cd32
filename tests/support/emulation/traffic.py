"""What a call reads and writes, as the emulator counts it."""

from __future__ import annotations

from typing import Any

from aot_emulator import EmulatorDriver
from aot_emulator.profile.profile_call import profile_on
from aot_emulator.profile.profile_report import profile_data

from aot_runtime import Bundle
from aot_runtime.call.callspec import CallSpec


def profiled(bundle: Bundle, op: str, dtypes: str = "", given: str = "", **dims: int) -> dict[str, Any]:
    """What a call of one launch does, as `aotbundle profile --json` says it.

    dtypes: those of variables, as `T=bfloat16 Q=int8`. given: optional tensors that the call has.
    """
    driver = bundle.device.driver
    assert isinstance(driver, EmulatorDriver)
    named = dict(text.split("=") for text in dtypes.split())
    call = CallSpec(dims=dims, dtypes=named, given=frozenset(given.split()))
    (launch,) = profile_data(profile_on(driver, bundle, op, call), by_instruction=False)["launches"]
    assert launch["other_memory"] == {"read": 0, "written": 0}
    return launch


def loaded_and_stored(launch: dict[str, Any]) -> tuple[int, int]:
    """How many bytes the lanes load and store."""
    loads, stores = (launch["accesses"].get(f"global_{kind}", {"bytes": 0}) for kind in ("load", "store"))
    return loads["bytes"], stores["bytes"]
