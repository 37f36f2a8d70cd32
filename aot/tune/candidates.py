"""The candidates of a space's groups, and the manifest in which a scalar of the call selects one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aot.manifest.loading import Manifest, OpSource, Tuning
from aot.manifest.schema import ConfigSpec, Option, ScalarSpec, TuningSpec, Value
from aot.manifest.spaces import CandidatesSpec, GroupSpec, Space
from aot.manifest.yamlfile import Key, ManifestError
from aot.plan.configs import laid_configs, launch_name
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.expressions import nearest, parse
from aot_runtime.contract.partial_evaluation import evaluate
from aot_runtime.errors import ExpressionError

SCALAR = "tuning_candidate"
"""Scalar of ops while they are tuned: the number of the candidate that a call uses; 0: none."""
OTHERWISE = "otherwise"
"""Config of calls that do not get the candidate that they select, of launches whose configs have costs."""
MOST = 4096
"""Limit on the candidates of a group, before its constraints."""


@dataclass(frozen=True)
class Candidate:
    """A candidate. number: from 1 on, over all groups; chosen: its values in the order of the space."""

    number: int
    blocks: Mapping[str, Value]
    options: Mapping[str, Option]
    chosen: tuple[tuple[str, Value], ...]

    @property
    def name(self) -> str:
        """Name of its config."""
        return f"candidate{self.number}"

    @property
    def text(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.chosen)


@dataclass(frozen=True)
class Group:
    """The candidates for one config.

    Attributes:
        path: place of the group in the space's file.
        launch: position of the launch.
        launch_name: the launch's name in tuning files.
        base: the config that the best candidate replaces; None: it becomes a new one, in front of the launch's.
        left_out: constraint → number of candidates that do not meet it.
    """

    spec: GroupSpec
    path: tuple[Key, ...]
    launch: int
    launch_name: str
    base: ConfigSpec | None
    candidates: tuple[Candidate, ...]
    left_out: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.spec.name


def read_groups(space: Space, source: OpSource, arch: str) -> tuple[Group, ...]:
    """Read the groups of a space for an architecture. Raises `ManifestError`, also if there are none."""
    if space.spec.op != source.name:
        raise space.file.error(("op",), f"the space is for op '{space.spec.op}', not for '{source.name}'")
    wanted = [(i, spec) for i, spec in enumerate(space.spec.groups) if arch in (spec.arch or [arch])]
    if not wanted:
        archs = sorted({name for spec in space.spec.groups for name in spec.arch})
        raise space.file.error(("groups",), f"no group is for {arch}; there are groups for {', '.join(archs)}")
    numbers = itertools.count(1)
    reader = _Reader(space, source, arch)
    groups = tuple(reader.group(index, spec, numbers) for index, spec in wanted)
    seen: set[tuple[int, str]] = set()
    for group in groups:
        if (group.launch, group.name) in seen:
            raise space.file.error((*group.path, "name"), f"another group of {arch} is '{group.name}', too")
        seen.add((group.launch, group.name))
    return groups


class _Reader:
    """Reads the groups of a space."""

    def __init__(self, space: Space, source: OpSource, arch: str):
        self.space, self.source, self.arch = space, source, arch
        self.names = [launch_name(launch) for launch in source.spec.launches]
        self.laid = laid_configs(source.manifest, source.name, arch)

    def group(self, index: int, spec: GroupSpec, numbers: Iterator[int]) -> Group:
        path: tuple[Key, ...] = ("groups", index)
        launch = self._launch(path, spec)
        base = next((config for config in self.laid[launch] if config.name == spec.name), None)
        if base is not None and spec.when != "" and str(spec.when).split() != str(base.when).split():
            raise self._error(
                (*path, "when"),
                f"{self.names[launch]} has '{spec.name}', with a different `when`: {base.when or 'none'}",
            )
        if base is None and spec.when == "":
            near = nearest(spec.name, [config.name for config in self.laid[launch]])
            message = f"{self.names[launch]} has no config '{spec.name}', and a new one needs a `when`{near}"
            raise self._error((*path, "name"), message)
        kept, left_out = self._kept(path, spec, base)
        candidates = tuple(
            Candidate(next(numbers), {**(base.blocks if base else {}), **blocks},
                      {**(base.options if base else {}), **options}, (*blocks.items(), *options.items()))
            for blocks, options in kept
        )  # fmt: skip
        return Group(spec, path, launch, self.names[launch], base, candidates, left_out)

    def _launch(self, path: tuple[Key, ...], spec: GroupSpec) -> int:
        if spec.launch is None and len(self.names) == 1:
            return 0
        if spec.launch not in self.names:
            of = f"op '{self.source.name}'"
            if spec.launch is None:
                raise self._error(path, f"{of} has several launches: name one ({', '.join(self.names)})")
            raise self._error(
                (*path, "launch"), f"{of} has no launch '{spec.launch}'{nearest(spec.launch, self.names)}"
            )
        return self.names.index(spec.launch)

    def _kept(
        self, path: tuple[Key, ...], spec: GroupSpec, base: ConfigSpec | None
    ) -> tuple[list[tuple[dict[str, Any], dict[str, Any]]], Counter[str]]:
        """Return the blocks and options of each candidate that meets the constraints, and how many do not."""
        constraints = [self._parsed((*path, "constraints", i), text) for i, text in enumerate(spec.constraints)]
        fixed = {
            **ARCHITECTURES[self.arch].constants,
            **(base.blocks if base else {}),
            **(base.options if base else {}),
        }
        found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        left_out: Counter[str] = Counter()
        for item in _products(spec.candidates):
            if len(found) + left_out.total() >= MOST:
                raise self._error((*path, "candidates"), f"more than {MOST} candidates")
            blocks, options = item
            if str(item) in found:
                continue
            env = {**fixed, **blocks, **options}
            broken = next((t for i, (t, e) in enumerate(constraints) if not self._holds(path, i, e, env)), None)
            if broken is None:
                found[str(item)] = blocks, options
            else:
                left_out[broken] += 1
        return list(found.values()), left_out

    def _parsed(self, path: tuple[Key, ...], text: Any) -> tuple[str, Any]:
        try:
            return str(text), parse(str(text))
        except ExpressionError as error:
            raise self._error(path, str(error)) from None

    def _holds(self, path: tuple[Key, ...], index: int, constraint: Any, env: Mapping[str, Any]) -> bool:
        try:
            return bool(evaluate(constraint, env))
        except ExpressionError as error:
            raise self._error((*path, "constraints", index), str(error)) from None

    def _error(self, path: Iterable[Key], message: str) -> ManifestError:
        return self.space.file.error(path, message)


def _products(specs: Iterable[CandidatesSpec]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for spec in specs:
        lists = [
            value if isinstance(value, list) else [value] for value in (*spec.blocks.values(), *spec.options.values())
        ]
        for values in itertools.product(*lists):
            count = len(spec.blocks)
            yield dict(zip(spec.blocks, values, strict=False)), dict(zip(spec.options, values[count:], strict=True))


def with_candidates(source: OpSource, groups: Sequence[Group], arch: str, first_alone: bool = False) -> Manifest:
    """Make a manifest of the op alone, whose calls use the candidate that `SCALAR` selects, if its group serves them.

    Args:
        first_alone: with only the first candidate of each group, for number 0: calls then use it where the group's
            config would serve them.
    """
    manifest, op = source.manifest, source.spec
    launches = []
    for index, (launch, laid) in enumerate(zip(op.launches, laid_configs(manifest, source.name, arch), strict=True)):
        here = [group for group in groups if group.launch == index]
        new = [config for group in here if group.base is None for config in _configs(group, first_alone)]
        old = {group.name: _configs(group, first_alone) for group in here if group.base is not None}
        if here and not first_alone:
            laid = _without_competition(laid)
        configs = [*new, *(item for config in laid for item in (*old.get(config.name, ()), config))]
        launches.append(launch.model_copy(update={"configs": configs}))
    scalars = {**op.scalars, SCALAR: ScalarSpec.model_validate({"type": "i32", "default": 0})}
    spec = op.model_copy(update={"launches": launches, "scalars": scalars, "selftest": []})
    return manifest.alone(source, spec, _derived_alone(manifest.tuning(source.name)))


def _without_competition(laid: Sequence[ConfigSpec]) -> list[ConfigSpec]:
    """Return configs that compete by cost only in calls without a candidate. The last serves the others."""
    if not any(config.fitted for config in laid):
        return list(laid)
    present = [_only_for(config, f"{SCALAR} == 0") for config in laid]
    return [*present, laid[-1].model_copy(update={"name": OTHERWISE, "fitted": {}})]


def _only_for(config: ConfigSpec, condition: str) -> ConfigSpec:
    when = f"{condition} and ({config.when})" if config.when != "" else condition
    return config.model_copy(update={"when": when})


def _configs(group: Group, first_alone: bool) -> list[ConfigSpec]:
    base = group.base or ConfigSpec.model_validate({"when": group.spec.when})
    if first_alone and base.fitted:  # at the cost of the config, the call is the group's if it is the config's
        return [_only_for(base, f"{SCALAR} == 0").model_copy(update={"name": group.candidates[0].name})]
    return [
        _only_for(base, f"{SCALAR} == {0 if first_alone else candidate.number}").model_copy(
            update={
                "name": candidate.name,
                "blocks": dict(candidate.blocks),
                "options": dict(candidate.options),
            }
        )
        for candidate in (group.candidates[:1] if first_alone else group.candidates)
    ]


def _derived_alone(tuning: Tuning | None) -> Tuning | None:
    if tuning is None:
        return None
    entries = [entry.model_copy(update={"launches": {}}) for entry in tuning.spec.tuning]
    return Tuning(tuning.file, TuningSpec.model_construct(doc="", tuning=entries))
