"""Model the time of a call, and count the work of its hot loop. Results are kept, so unchanged kernels are not run
again.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aot.tune.model_timer import model_version
from aot_bundle.callspec import CallSpec, plan_call
from aot_bundle.profile.profile_call import MadeCall, make_call, open_for
from aot_emulator import EmulatorDriver
from aot_emulator.timing.sampling import Sampled, SamplingRunner
from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import Planner
from aot_runtime.errors import AotError
from aot_runtime.opening import Bundle

from .building import Built, Call
from .cases import Way


@dataclass(frozen=True)
class Modelled:
    """The modelled time and work of a call. Figures of one kernel are those of the launch that takes longest.

    Attributes:
        seconds: time of all launches; infinite if the call could not be built or run, with the cause in `reason`.
        config: the kernel's config, in words.
        slots: instructions for each matrix instruction in the hot loop; 0 if it has none.
        lds: LDS passes for each matrix instruction in the launch; 0 if it has none.
        conflicts: the share of these passes that bank conflicts add.
        loaded, stored: bytes that wavefronts request, in all launches together.
        memory: bytes of device memory.
        matrix: the share of the time in which matrix pipes are busy.
        clock_ghz, resident: clock and resident workgroups of the launch.
        spills: spilled registers.
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
    """A file of modelled times, to which each is appended once it is known."""

    def __init__(self, path: Path):
        self.path = path
        self._known: dict[str, Modelled] = {}
        self._opened: tuple[Path, EmulatorDriver, Bundle] | None = None
        self._made: tuple[Way, MadeCall] | None = None
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                key = row.pop("key")
                self._known[key] = Modelled(**row)

    def of(self, call: Call, built: Built) -> Modelled:
        """Return the modelled time of a call. Failures of the kernel are reported in the result, not raised."""
        if built.folder is None:
            return Modelled(float("inf"), reason=built.reason)
        with tempfile.TemporaryDirectory() as scratch:
            try:
                return self._of(call, built.folder, Path(scratch))
            except AotError as error:
                return Modelled(float("inf"), reason=str(error).splitlines()[0])

    def _of(self, call: Call, folder: Path, scratch: Path) -> Modelled:
        driver, bundle = self._open(folder, call.entry["op"])
        planner: Planner = bundle[call.entry["op"]].planner  # type: ignore[attr-defined]
        spec, device = _spec(call.entry), bundle.device.properties
        decision = plan_call(bundle.index, planner, spec, device.num_cus, device.num_xcds)
        key = _key(call, bundle, decision)
        if key not in self._known:
            made = self._made_with(call, bundle, spec, decision, scratch)
            runner = SamplingRunner()
            with driver.run_by(runner):
                made.run()
            self._keep(key, _modelled(made, runner.found))
        return self._known[key]

    def _open(self, folder: Path, op: str) -> tuple[EmulatorDriver, Bundle]:
        if self._opened is None or self._opened[0] != folder:
            self._made = None
            driver = EmulatorDriver()
            self._opened = folder, driver, open_for(driver, folder, op)
        return self._opened[1:]

    def _made_with(self, call: Call, bundle: Bundle, spec: CallSpec, decision: Decision, scratch: Path) -> MadeCall:
        """Return the call with its tensors, which all calls of a way share: they differ only in configs."""
        if self._made is None or self._made[0] is not call.way:
            self._made = None  # whose memory goes first
            self._made = call.way, make_call(bundle, call.entry["op"], spec, _content(call, scratch))
        made = self._made[1]
        return replace(made, decision=decision, scalars={**made.scalars, **call.entry.get("scalars", {})})

    def _keep(self, key: str, found: Modelled) -> None:
        self._known[key] = found
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"key": key, **asdict(found)}) + "\n")


def _modelled(made: MadeCall, found: Sequence[Sampled]) -> Modelled:
    launch, longest = max(zip(made.launched, found, strict=True), key=lambda pair: pair[1].time.seconds)
    config = made.planner.op.launches[launch.index].configs[launch.variant.config]
    settings = " ".join(f"{name}={value}" for name, value in {**config.values, **config.options}.items())
    counts = [_counts(sampled) for sampled in found]
    return replace(
        _longest(longest), seconds=sum(sampled.time.seconds for sampled in found), config=f"{config.name}: {settings}",
        **{name: sum(count[name] for count in counts) for name in ("loaded", "stored", "memory")},
        spills=sum(_spills(launch.variant) for launch in made.launched),
    )  # fmt: skip


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


def _key(call: Call, bundle: Bundle, decision: Decision) -> str:
    launches = [
        (bundle.index.blobs[launch.variant.code].sha256, launch.variant.symbol, launch.grid)
        for launch in decision.launches
        if 0 not in launch.grid
    ]
    content = sorted(call.way.content.items())
    text = json.dumps([call.entry, content, launches, model_version()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
