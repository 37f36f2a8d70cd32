"""Random calls on the emulator: their modelled times, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from aot_bundle.profile.profile_call import make_call
from aot_bundle.profile.time_call import time_on
from aot_runtime import Bundle
from aot_runtime.call.choosing import Decision
from aot_runtime.contract.dtypes import numpy_dtype

from .checks import wrong
from .family import Call, Family, plan

BYTES = "uint8"


def modelled_seconds(driver: Any, bundle: Bundle, call: Call) -> float:
    """Model the time of a call. Only values on which it depends are made: lists, lengths and packed codes."""
    decision = plan(bundle, call)
    values = {name: given for name, given in call.values.items() if isinstance(given, np.ndarray)}
    packed = {name: "0..255" for name, layout in decision.layouts.items() if layout.dtype == BYTES}
    with TemporaryDirectory() as folder:
        contents = packed | _files(Path(folder), values)
        return time_on(driver, bundle, call.op, call.spec, contents).seconds


def wrong_on(bundle: Bundle, family: Family, call: Call) -> str:
    """Run a call and compare it with float64. Return the fault in words, or an empty string."""
    decision = plan(bundle, call)
    with TemporaryDirectory() as folder:
        contents = _files(Path(folder), values_of(call, decision))
        made = make_call(bundle, call.op, call.spec, contents)
        made.run()
    results = {name: array.numpy() for name, array in made.arrays.items()}
    return wrong(family, bundle[call.op].planner.op, decision, call, results, lambda x, dtype: x)


def values_of(call: Call, decision: Decision) -> dict[str, np.ndarray]:
    """Make the values of a call's tensors that are not N(0, 1)."""
    rng, found = np.random.default_rng(0), {}
    for name, layout in decision.layouts.items():
        given, dtype = call.values.get(name), numpy_dtype(layout.dtype)
        if isinstance(given, np.ndarray):
            found[name] = given
        elif isinstance(given, tuple) or dtype.kind in "iu":
            found[name] = uniform(rng, given, layout.shape, dtype)
        elif given is not None:
            found[name] = rng.standard_normal(layout.shape) * given
    return found


def uniform(
    rng: np.random.Generator, bounds: tuple[float, float] | None, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Draw uniform numbers between bounds, or integers of all bits."""
    if dtype.kind not in "iu":
        return rng.uniform(*bounds, shape)
    low, high = bounds or (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return rng.integers(int(low), int(high), shape, endpoint=True)


def _files(folder: Path, values: Mapping[str, np.ndarray]) -> dict[str, str]:
    for name, array in values.items():
        np.save(folder / f"{name}.npy", array)
    return {name: str(folder / f"{name}.npy") for name in values}
