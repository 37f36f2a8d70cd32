"""Second step of planning: choose a call's variants, grids and kernargs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from aot_runtime.contract.expressions import Evaluator, evaluator
from aot_runtime.contract.layout import Layout
from aot_runtime.contract.names import axis_names, config_names
from aot_runtime.contract.records import Axis, Config, Launch, Op, Value, Variant

from .checking import Call
from .rules import Rules, pick_value

Table = Mapping[tuple[Any, ...], Variant]
Layouts = Mapping[str, Layout | None]
Tried = tuple[Mapping[str, int], float | None]
"""Values of alternatives that were tried, and the cost of the launches; None if one is not built."""


class AxisChoice(msgspec.Struct, frozen=True):
    """The choice of an axis value: `value` is picked by the axis's rule for `wanted`; None if no value matches."""

    axis: Axis
    wanted: Any
    value: Value | None


class ConfigChoice(msgspec.Struct, frozen=True):
    """A config that was tried: whether its condition holds, and its variant, or None if it is not built.

    `cost` is its time in microseconds; None if it has none, or does not hold.
    """

    number: int
    config: Config
    holds: bool
    variant: Variant | None
    cost: float | None = None

    @property
    def price(self) -> float:
        return self.cost or 0.0


class LaunchDecision(msgspec.Struct, frozen=True):
    """A launch of a call: its variant, its grid, and the value of every kernarg expression.

    `tried` lists the configs that were tried; the chosen one is the last.
    """

    index: int
    variant: Variant
    grid: tuple[int, int, int]
    values: Mapping[str, Any]
    tried: tuple[ConfigChoice, ...] = ()

    @property
    def missed(self) -> list[Config]:
        """The configs that the call would get rather than the chosen one if they were built."""
        *others, chosen = self.tried
        return [
            item.config
            for item in others
            if item.holds
            and item.variant is None
            and (item.cost is None or chosen.cost is None or item.cost < chosen.cost)
        ]


class Decision(msgspec.Struct, frozen=True):
    """The plan of a call.

    Attributes:
        names: values of all names: dims, scalars, dtype variables, derived values, axes.
        aligned: True if aligned variants are launched.
        misaligned: the reasons why the call is not aligned.
        layouts: layouts of all present tensors, including outputs to allocate.
        workspaces: (name, bytes, zeroed) of each workspace.
        launches: the launches, in order.
        axes: the choice of each axis value.
        alternatives: the combinations of alternatives that were tried.
    """

    names: Mapping[str, Any]
    aligned: bool
    misaligned: tuple[str, ...]
    layouts: Mapping[str, Layout]
    workspaces: tuple[tuple[str, int, bool], ...]
    launches: tuple[LaunchDecision, ...]
    axes: tuple[AxisChoice, ...] = ()
    alternatives: tuple[Tried, ...] = ()


class _Launch(msgspec.Struct, frozen=True):
    """A launch of the contract with compiled expressions."""

    index: int
    launch: Launch
    when: Evaluator | None
    conditions: tuple[Evaluator | None, ...]
    costs: tuple[Evaluator | None, ...]
    common: tuple[dict[str, Value], ...]
    """Values of the names that all configs set, one mapping per config."""
    grid: tuple[Evaluator, ...]
    kernargs: tuple[tuple[str, Evaluator], ...]


class Way(msgspec.Struct, frozen=True):
    """A way to make a call.

    Attributes:
        launches: (launch, configs that were tried, of which the last is the chosen one).
        cost: sum of the costs of the chosen configs, in microseconds.
    """

    names: Mapping[str, Any]
    axes: tuple[AxisChoice, ...]
    launches: tuple[tuple[_Launch, tuple[ConfigChoice, ...]], ...]
    cost: float
    tried: tuple[Tried, ...] = ()


class Search(msgspec.Struct):
    """The record of a search for variants.

    Attributes:
        tried: the failed attempts, in words: axis values without a match, and variants that are not built.
        misaligned: the reasons why the call cannot use aligned variants.
        may_be_had: True if building the manifest in full may yield a variant that fits.
        unpicked: True if an axis has no value that fits.
    """

    tried: list[str] = []
    misaligned: list[str] = []
    may_be_had: bool = False
    unpicked: bool = False


class Choosing:
    """The choices of an op's calls, prepared once.

    Args:
        kernargs: the expressions of each launch's scalar kernargs.
    """

    def __init__(self, op: Op, variants: Iterable[Variant], kernargs: Mapping[int, Iterable[str]], rules: Rules):
        self.op, self.rules = op, rules
        self.axis_names = axis_names(op)
        self.table: Table = {
            (item.launch, tuple(item.axis_values[name] for name in self.axis_names), item.aligned, item.config): item
            for item in variants
        }
        self.maps = mapped_tensors(self.table.values())
        self.axes: list[tuple[Axis, Evaluator]] = [(axis, evaluator(axis.pick)) for axis in op.axes]
        self.launches = [self._launch(index, launch, kernargs[index]) for index, launch in enumerate(op.launches)]
        self.workspaces = [(space, tuple(evaluator(extent) for extent in space.shape)) for space in op.workspace]

    @staticmethod
    def _launch(index: int, launch: Launch, kernargs: Iterable[str]) -> _Launch:
        names = config_names(launch)
        return _Launch(
            index,
            launch,
            evaluator(launch.when) if launch.when else None,
            tuple(evaluator(config.when) if config.when else None for config in launch.configs),
            tuple(evaluator(config.cost) if config.cost else None for config in launch.configs),
            tuple({name: config.values[name] for name in names} for config in launch.configs),
            tuple(evaluator(extent) for extent in launch.grid),
            tuple((text, evaluator(text)) for text in kernargs),
        )

    def find(self, call: Call, search: Search) -> Decision | None:
        """Choose the aligned variants if the call allows them and all are built, else the general ones, or None.

        Aligned variants that take tensor maps need mappable tensors. The attempts are recorded in `search`.
        """
        misaligned = search.misaligned = [*self.rules.misalignment(call.layouts, call.names)]
        for aligned in (False,) if misaligned else (True, False):
            way = self.cheapest({**call.names, "aligned": aligned}, search, call.layouts)
            if way is not None:
                layouts = {name: layout for name, layout in call.layouts.items() if layout is not None}
                return self.decision(way, tuple(search.misaligned), layouts)
        return None

    def cheapest(self, names: Mapping[str, Any], search: Search, layouts: Layouts) -> Way | None:
        """Return the cheapest way to make a call, or None.

        Args:
            names: values of all names but alternatives and axes, including `aligned`.
        """
        if not self.op.alternatives:
            return self.way({**names}, search, layouts)
        from .alternatives import cheapest_way  # few ops have any

        return cheapest_way(self, names, search, layouts)

    def way(self, names: dict[str, Any], search: Search, layouts: Layouts) -> Way | None:
        """Pick axes into `names`, and choose configs. Return None, with the reasons in `search`, if that fails."""
        axes = self._pick_axes(names, search)
        launches = None if axes is None else self._choose_configs(names, search, layouts)
        if axes is None or launches is None:
            return None
        return Way(names, axes, launches, sum(configs[-1].price for _, configs in launches))

    def _pick_axes(self, names: dict[str, Any], search: Search) -> tuple[AxisChoice, ...] | None:
        """Pick each axis's value into `names`. Return None, with the reason in `search`, if an axis has no match."""
        choices = []
        for axis, pick in self.axes:
            wanted = pick(names)
            value = pick_value(axis, wanted)
            choices.append(AxisChoice(axis, wanted, value))
            if value is None:
                rule = axis.pick if axis.rule == "equal" else f"{axis.rule} {axis.pick}"
                search.unpicked = True
                search.tried.append(f"{axis.name}: none of {list(axis.values)} is picked by {rule}")
                return None
            names[axis.name] = value
        return tuple(choices)

    def _choose_configs(
        self, names: Mapping[str, Any], search: Search, layouts: Layouts
    ) -> tuple[tuple[_Launch, tuple[ConfigChoice, ...]], ...] | None:
        """Choose a config for each launch. Return None if one is not built, or needs a map of an unmappable tensor."""
        axis_values = tuple(names[name] for name in self.axis_names)
        chosen = []
        for item in self.launches:
            if item.when is not None and not item.when(names):
                continue
            configs = self._try_configs(item, axis_values, names)
            variant = configs[-1].variant
            if variant is None:
                shown = ", ".join(f"{name}={names[name]}" for name in self.axis_names)
                search.tried.append(f"{item.launch.kernel}[{shown}], aligned={names['aligned']}: not built")
                search.may_be_had |= not self.is_left_out(names)
                return None
            if unmappable := self._unmappable(variant, layouts):
                search.misaligned += unmappable
                return None
            chosen.append((item, configs))
        return tuple(chosen)

    def is_left_out(self, names: Mapping[str, Any]) -> bool:
        """Return True if the manifest excludes these values, whatever the config."""
        for item in self.op.denied:
            with suppress(NameError):  # the condition reads `config`, or names that configs set
                if evaluator(item.when)(names):
                    return True
        return False

    def _unmappable(self, variant: Variant, layouts: Mapping[str, Layout | None]) -> list[str]:
        """Return the reasons why tensors that the variant maps cannot be mapped."""
        names = self.maps.get(id(variant.kernargs), ())  # variants share kernargs
        given = ((name, layouts.get(name)) for name in names)
        return [reason for name, layout in given if layout for reason in self.rules.unmappable(name, layout)]

    def _try_configs(
        self, item: _Launch, axis_values: tuple[Any, ...], names: Mapping[str, Any]
    ) -> tuple[ConfigChoice, ...]:
        """Try configs in order, up to the first that is built and whose condition holds; if that one has a cost, also
        the others with a cost. The chosen one comes last; if there is none, the last one's variant is None.
        """
        tried: list[ConfigChoice] = []
        best: ConfigChoice | None = None
        for number, (config, condition, cost) in enumerate(
            zip(item.launch.configs, item.conditions, item.costs, strict=True)
        ):
            if best is not None and cost is None:
                continue
            holds = condition is None or bool(condition(names))
            variant = self.table.get((item.index, axis_values, names["aligned"], number)) if holds else None
            choice = ConfigChoice(number, config, holds, variant, float(cost(names)) if holds and cost else None)
            tried.append(choice)
            if variant is not None and (best is None or choice.price < best.price):
                best = choice
                if cost is None:
                    break
        return tuple(sorted(tried, key=lambda choice: choice is best))

    def decision(self, way: Way, misaligned: tuple[str, ...], layouts: Mapping[str, Layout]) -> Decision:
        """Return the plan of a call that is made in this way."""
        names = way.names
        launches = tuple(self._decide_launch(item, configs, names) for item, configs in way.launches)
        spaces = tuple(
            (space.name, self.rules.nbytes(space, tuple(extent(names) for extent in shape), names), space.zero)
            for space, shape in self.workspaces
        )
        return Decision(names, names["aligned"], misaligned, layouts, spaces, launches, way.axes, way.tried)

    def _decide_launch(
        self, item: _Launch, configs: tuple[ConfigChoice, ...], names: Mapping[str, Any]
    ) -> LaunchDecision:
        chosen = configs[-1]
        assert chosen.variant is not None
        known = {**names, **item.common[chosen.number]}
        x, y, z = (extent(known) for extent in item.grid)
        grid = self.rules.grid((x, y, z), chosen.variant)
        values = {text: value(known) for text, value in item.kernargs}
        return LaunchDecision(item.index, chosen.variant, grid, values, configs)


def mapped_tensors(variants: Iterable[Variant]) -> dict[int, tuple[str, ...]]:
    """Return the tensors that variants take as tensor maps, by the `id` of their (shared) kernargs."""
    layouts = {id(variant.kernargs): variant.kernargs for variant in variants}
    found = {key: tuple(arg.value for arg in args if arg.map is not None) for key, args in layouts.items()}
    return {key: names for key, names in found.items() if names}
