"""Plan the trials of a run: the group of each call, and the kernels that each candidate needs for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from aot.manifest.loading import Manifest, OpSource
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import PlannedBundle
from aot.plan.calls import PlannedCall, WantedCalls
from aot_runtime.contract.records import Op

from .calls import TunedCall
from .candidates import Candidate, Group, with_candidates

Plan = Callable[[Manifest, WantedCalls], PlannedBundle]
"""Plans a manifest for calls."""


@dataclass(frozen=True)
class Trial:
    """A call with a candidate, to be timed.

    Attributes:
        call: position of the call in the plan.
        group: position of the group; None for the present configs.
        number: the candidate's number; 0 for the present configs.
        keys: keys of the kernels that it launches.
        identity: digest of everything that decides its time, except the device.
    """

    call: int
    group: int | None
    number: int
    keys: tuple[str, ...]
    identity: str


@dataclass(frozen=True)
class PlannedTuning:
    """A planned run of tuning.

    Attributes:
        bundle: the variants of all trials.
        defaults: (launch, name of the config) that each call uses at present.
        unreached: candidate → why calls of its group do not use it.
        unserved: number of calls that no group serves.
    """

    bundle: PlannedBundle
    op: Op
    groups: tuple[Group, ...]
    calls: tuple[TunedCall, ...]
    trials: tuple[Trial, ...]
    defaults: tuple[frozenset[tuple[int, str]], ...]
    unreached: dict[int, str]
    unserved: int

    def candidate(self, trial: Trial) -> Candidate | None:
        if trial.group is None:
            return None
        return next(item for item in self.groups[trial.group].candidates if item.number == trial.number)

    def calls_of(self, group: int) -> tuple[int, ...]:
        """Positions of the calls on which a group is compared."""
        return tuple(dict.fromkeys(trial.call for trial in self.trials if trial.group == group))


def plan_tuning(
    plan: Plan, source: OpSource, groups: Sequence[Group], calls: Sequence[TunedCall], arch: str,
    num_cus: int | None = None, num_xcds: int | None = None,
) -> PlannedTuning:  # fmt: skip
    """Plan every trial. Raises `ManifestError` if a call is not served by anything, or not by its group."""
    unique = list({(call.text, call.group): call for call in calls}.values())
    used = [group for group in groups if group.candidates]
    served = _served(plan, source, used, unique, arch, (num_cus, num_xcds))
    compared: dict[str, tuple[TunedCall, frozenset[int]]] = {}
    for call, found in zip(unique, served, strict=True):  # one that stands in several groups is one call
        if found:
            compared[call.text] = call, found | compared.get(call.text, (call, frozenset()))[1]
    wanted = [
        (index, group, number, call.with_candidate(number, num_cus, num_xcds))
        for index, (call, found) in enumerate(compared.values())
        for group, number in ((None, 0), *((g, item.number) for g in sorted(found) for item in used[g].candidates))
    ]
    bundle = plan(with_candidates(source, used, arch), WantedCalls(tuple(entry for *_, entry in wanted), False))
    (op,) = bundle.ops
    identity, texts = _identity(op), list(compared)
    keys = {_key(variant.spec): variant.key for variant in bundle.variants}
    trials: list[Trial] = []
    defaults: list[frozenset[tuple[int, str]]] = []
    unreached: dict[int, str] = {}
    for (index, group, number, entry), planned in zip(wanted, bundle.calls, strict=True):
        configs = _configs(op, planned)
        if group is None:
            defaults.append(configs)
        elif (used[group].launch, f"candidate{number}") not in configs:
            unreached[number] = f"not compiled for {texts[index]}, which the manifest denies"
            continue
        compiled = tuple(keys[_key(spec)] for spec in planned.variants)
        text = json.dumps([identity, texts[index], entry.spec.num_cus, entry.spec.num_xcds, compiled])
        trials.append(Trial(index, group, number, compiled, hashlib.sha256(text.encode()).hexdigest()))
    tuned = tuple(call for call, _ in compared.values())
    unserved = sum(not found for found in served)
    bundle = replace(bundle, wanted=None, calls=())
    return PlannedTuning(bundle, op, tuple(used), tuned, tuple(trials), tuple(defaults), unreached, unserved)


def _served(
    plan: Plan, source: OpSource, groups: Sequence[Group], calls: Sequence[TunedCall], arch: str,
    device: tuple[int | None, int | None],
) -> list[frozenset[int]]:  # fmt: skip
    entries = tuple(call.with_candidate(0, *device) for call in calls)
    bundle = plan(with_candidates(source, groups, arch, first_alone=True), WantedCalls(entries, False))
    (op,) = bundle.ops
    places = {(group.launch, group.candidates[0].name): i for i, group in enumerate(groups)}
    found: list[frozenset[int]] = []
    faults = []
    for call, planned in zip(calls, bundle.calls, strict=True):
        configs = _configs(op, planned)
        here = frozenset(place for key, place in places.items() if key in configs)
        if call.group is not None:
            own = frozenset(place for place in here if groups[place].name == call.group)
            if not own and any(group.name == call.group for group in groups):
                others = ", ".join(_shown(groups, places, key) for key in sorted(configs)) or "nothing"
                faults.append(
                    f"{call.locate()}: group '{call.group}' does not serve this call; it is served by {others}"
                )
            here = own
        found.append(here)
    if faults:
        raise ManifestError(faults)
    if calls and not any(found):
        names = ", ".join(group.name for group in groups)
        raise ManifestError(
            [f"{calls[0].locate()}: no group of the space serves any of the calls; its groups: {names}"]
        )
    return found


def _shown(groups: Sequence[Group], places: dict[tuple[int, str], int], key: tuple[int, str]) -> str:
    return f"group '{groups[places[key]].name}'" if key in places else f"config '{key[1]}'"


def _configs(op: Op, planned: PlannedCall) -> frozenset[tuple[int, str]]:
    return frozenset((spec.launch, op.launches[spec.launch].configs[spec.config].name) for spec in planned.variants)


def _key(spec: object) -> tuple[object, ...]:
    return tuple(getattr(spec, name) for name in ("launch", "point", "aligned", "config"))


def _identity(op: Op) -> str:
    launches = tuple(msgspec.structs.replace(launch, configs=()) for launch in op.launches)
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(op, launches=launches))).hexdigest()
