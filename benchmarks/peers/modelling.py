"""The modelled time of a call, and what its hot loop does. Results are kept: a kernel that is as it was is not run."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from aot_emulator import EmulatorDriver
from aot_emulator.profile.profile_call import MadeCall, make_call, open_for
from aot_emulator.timing.sampling import Sampled
from aot_emulator.timing.time_call import time_on

from aot.tune.modelled import model_version
from aot_runtime.call.callspec import CallSpec
from aot_runtime.errors import AotError

from .building import Built, Call


@dataclass(frozen=True)
class Modelled:
    """A call, as the model sees it. What is of one kernel is of the launch that takes longest.

    Attributes:
        seconds: of all launches; infinite for what could not be built or run, which `reason` says.
        config: of the launch's kernel, in words.
        slots: instructions of the hot loop by matrix instruction of it; 0 without one.
        lds: passes of LDS by matrix instruction of the whole launch; 0 without one.
        conflicts: the part of these passes that bank conflicts add.
        loaded, stored: bytes that wavefronts ask for, all launches together.
        memory: bytes of device memory.
        matrix: part of the launch that matrix pipes are busy.
        clock_ghz, resident: of the launch.
        spills: registers.
    """

    seconds: float
    config: str = ""
    slots: float = 0.0
    lds: float = 0.0
    conflicts: float = 0.0
    loaded: float = 0.0
    stored: float = 0.0
    memory: float = 0.0
    matrix: float = 0.0
    clock_ghz: float = 0.0
    resident: int = 0
    spills: int = 0
    reason: str = ""


class Results:
    """Modelled times that are kept in a file, one a line, as soon as they are known."""

    def __init__(self, path: Path):
        self.path = path
        self._known: dict[str, Modelled] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                key = row.pop("key")
                self._known[key] = Modelled(**row)

    def of(self, call: Call, built: Built) -> Modelled:
        """Raises nothing that a kernel is at fault for: the result says it."""
        if built.folder is None:
            return Modelled(float("inf"), reason=built.reason)
        with tempfile.TemporaryDirectory() as scratch:
            try:
                return self._of(call, built.folder, Path(scratch))
            except AotError as error:
                return Modelled(float("inf"), reason=str(error).splitlines()[0])

    def _of(self, call: Call, folder: Path, scratch: Path) -> Modelled:
        driver = EmulatorDriver()
        bundle = open_for(driver, folder, call.entry["op"])
        spec = _spec(call.entry)
        content = _content(call, scratch)
        made = make_call(bundle, call.entry["op"], spec, content)
        key = _key(call, made)
        if key not in self._known:
            timed = time_on(driver, bundle, call.entry["op"], spec, content)
            longest = max(timed.launches, key=lambda launch: launch.sampled.time.seconds)
            settings = " ".join(f"{name}={value}" for name, value in longest.settings.items())
            counts = [_counts(launch.sampled) for launch in timed.launches]
            found = replace(
                _longest(longest.sampled), seconds=timed.seconds, config=f"{longest.config}: {settings}",
                **{name: sum(count[name] for count in counts) for name in ("loaded", "stored", "memory")},
                spills=sum(_spills(launch.decision.variant) for launch in timed.launches),
            )  # fmt: skip
            self._keep(key, found)
        return self._known[key]

    def _keep(self, key: str, found: Modelled) -> None:
        self._known[key] = found
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"key": key, **asdict(found)}) + "\n")


def _longest(sampled: Sampled) -> Modelled:
    statistics, time = sampled.trace.statistics, sampled.time
    summary = statistics.summary
    loops = [loop.own for loop in statistics.loops if loop.own.kinds["matrix"]]
    hot = max(loops, key=lambda own: own.kinds["matrix"], default=None)
    matrix = summary.kinds["matrix"]
    accesses = [count for (space, _), count in summary.accesses.items() if space == "lds"]
    passes, conflicts = sum(count.passes for count in accesses), sum(count.conflicts for count in accesses)
    return Modelled(
        time.seconds,
        slots=hot.instructions / hot.kinds["matrix"] if hot else 0.0,
        lds=passes / matrix if matrix else 0.0,
        conflicts=conflicts / passes if passes else 0.0,
        matrix=time.used["matrix"], clock_ghz=time.clock_ghz, resident=time.resident,
    )  # fmt: skip


def _counts(sampled: Sampled) -> dict[str, float]:
    statistics = sampled.trace.statistics
    scale = sampled.workgroups / statistics.workgroups
    asked = {"load": 0.0, "store": 0.0}
    for (space, action), count in statistics.summary.accesses.items():
        if space == "global":
            asked["load" if action == "load" else "store"] += count.bytes * scale
    return {"loaded": asked["load"], "stored": asked["store"], "memory": sampled.bytes}


def _spills(variant: Any) -> int:
    return (variant.resources.vgpr_spills or 0) + (variant.resources.sgpr_spills or 0)


def _spec(entry: dict[str, Any]) -> CallSpec:
    scalars = {name: str(value).lower() if isinstance(value, bool) else str(value)
               for name, value in entry.get("scalars", {}).items()}  # fmt: skip
    return CallSpec(dims=entry["dims"], dtypes=entry["dtypes"], scalars=scalars, innermost=entry.get("innermost", {}))


def _content(call: Call, scratch: Path) -> dict[str, str]:
    """Of what is drawn or counted, a file."""
    dims = call.entry["dims"]
    found = {}
    for name, text in call.way.content.items():
        if text in ("tables", "counting"):
            path = scratch / f"{name}.npy"
            if text == "tables":
                order = np.random.default_rng(0).permutation(dims["blocks"])
                np.save(path, order.reshape(dims["batch"], dims["blocks_per_sequence"]))
            else:
                np.save(path, np.arange(dims["batch"] + 1))
            text = str(path)
        found[name] = text
    return found


def _key(call: Call, made: MadeCall) -> str:
    """Of the code objects that the call launches, the call, and the model."""
    index = made.bundle.index
    launches = [
        (index.blobs[launch.variant.code].sha256, launch.variant.symbol, launch.grid) for launch in made.launched
    ]
    content = sorted(call.way.content.items())
    text = json.dumps([call.entry, content, launches, model_version()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
