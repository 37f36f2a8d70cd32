"""Memory traffic of a call, as counted by the emulator."""

from __future__ import annotations

from typing import Any

from aot_bundle.callspec import CallSpec
from aot_bundle.profile.profile_call import profile_on
from aot_bundle.profile.profile_report import profile_data
from aot_emulator import EmulatorDriver
from aot_runtime import Bundle


def profiled(bundle: Bundle, op: str, values: str = "", given: str = "", **dims: int) -> dict[str, Any]:
    """Profile a call of one launch with `aotbundle profile --json`.

    values: of dtype variables and scalars, as `T=bfloat16 eps=1`. given: optional tensors that the call has.
    """
    driver = bundle.device.driver
    assert isinstance(driver, EmulatorDriver)
    named = dict(text.split("=") for text in values.split())
    call = CallSpec(dims=dims, given=frozenset(given.split()),
                    dtypes={name: value for name, value in named.items() if name.isupper()},
                    scalars={name: value for name, value in named.items() if not name.isupper()})  # fmt: skip
    (launch,) = profile_data(profile_on(driver, bundle, op, call), by_instruction=False)["launches"]
    assert launch["other_memory"] == {"read": 0, "written": 0}
    return launch


def loaded_and_stored(launch: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes that the lanes load and store."""
    loads, stores = (launch["accesses"].get(f"global_{kind}", {"bytes": 0}) for kind in ("load", "store"))
    return loads["bytes"], stores["bytes"]
