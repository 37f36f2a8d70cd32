"""Second step of planning: choose a call's variants, grids and kernargs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from aot_runtime.contract.expressions import Evaluator, evaluator
from aot_runtime.contract.layout import Layout
from aot_runtime.contract.names import axis_names, config_names
from aot_runtime.contract.records import Axis, Config, Launch, Op, Value, Variant
from aot_runtime.errors import ExpressionError

from .checking import Call
from .rules import Rules, pick_value

Table = Mapping[tuple[Any, ...], Variant]


class AxisChoice(msgspec.Struct, frozen=True):
    """The choice of an axis value: `value` is picked by the axis's rule for `wanted`; None if no value matches."""

    axis: Axis
    wanted: Any
    value: Value | None


class ConfigChoice(msgspec.Struct, frozen=True):
    """A config that was tried: whether its condition holds, and its variant, or None if it is not built."""

    number: int
    config: Config
    holds: bool
    variant: Variant | None


class LaunchDecision(msgspec.Struct, frozen=True):
    """A launch of a call: its variant, its grid, and the value of every kernarg expression.

    `tried` lists the configs up to and including the chosen one.
    """

    index: int
    variant: Variant
    grid: tuple[int, int, int]
    values: Mapping[str, Any]
    tried: tuple[ConfigChoice, ...] = ()


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
    """

    names: Mapping[str, Any]
    aligned: bool
    misaligned: tuple[str, ...]
    layouts: Mapping[str, Layout]
    workspaces: tuple[tuple[str, int, bool], ...]
    launches: tuple[LaunchDecision, ...]
    axes: tuple[AxisChoice, ...] = ()


class _Launch(msgspec.Struct, frozen=True):
    """A launch of the contract with compiled expressions."""

    index: int
    launch: Launch
    when: Evaluator | None
    conditions: tuple[Evaluator | None, ...]
    common: tuple[dict[str, Value], ...]
    """Values of the names that all configs set, one mapping per config."""
    grid: tuple[Evaluator, ...]
    kernargs: tuple[tuple[str, Evaluator], ...]


class Search(msgspec.Struct):
    """The record of a search for variants.

    Attributes:
        tried: the failed attempts, in words: axis values without a match, and variants that are not built.
        misaligned: the reasons why the call cannot use aligned variants.
        may_be_had: True if building the manifest in full may yield a variant that fits.
    """

    tried: list[str] = []
    misaligned: list[str] = []
    may_be_had: bool = False


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
            names = {**call.names, "aligned": aligned}
            axes = self._pick_axes(names, search.tried)
            launches = None if axes is None else self._choose_launches(names, search, call.layouts)
            if axes is not None and launches is not None:
                layouts = {name: layout for name, layout in call.layouts.items() if layout is not None}
                return self._decision(names, tuple(search.misaligned), layouts, launches, axes)
        return None

    def serves(self, names: Mapping[str, Any]) -> bool:
        """Return True if variants are built for these values of all names, including `aligned`."""
        values = dict(names)
        return self._pick_axes(values, []) is not None and self._choose_launches(values, Search(), {}) is not None

    def is_second_choice(self, decision: Decision) -> bool:
        """Return True if a build of the whole manifest may have variants that the call prefers to those it gets.

        These are aligned variants in place of general ones, and variants of configs that were passed over.
        """
        tried = (choice for launch in decision.launches for choice in launch.tried)
        passed_over = (choice.config for choice in tried if choice.holds and choice.variant is None)
        if any(not self._is_left_out({**decision.names, **config.values}) for config in passed_over):
            return True
        if decision.aligned or decision.misaligned:
            return False
        names, search = {**decision.names, "aligned": True}, Search()
        if self._pick_axes(names, search.tried) is None:
            return True
        return self._choose_launches(names, search, decision.layouts) is None and search.may_be_had

    def _pick_axes(self, names: dict[str, Any], tried: list[str]) -> tuple[AxisChoice, ...] | None:
        """Pick each axis's value into `names`. Return None, with the reason in `tried`, if an axis has no match."""
        choices = []
        for axis, pick in self.axes:
            wanted = pick(names)
            value = pick_value(axis, wanted)
            choices.append(AxisChoice(axis, wanted, value))
            if value is None:
                rule = axis.pick if axis.rule == "equal" else f"{axis.rule} {axis.pick}"
                tried.append(f"{axis.name}: none of {list(axis.values)} is picked by {rule}")
                return None
            names[axis.name] = value
        return tuple(choices)

    def _choose_launches(
        self, names: Mapping[str, Any], search: Search, layouts: Mapping[str, Layout | None]
    ) -> tuple[LaunchDecision, ...] | None:
        """Choose a variant for each launch. Return None if one is not built, or needs a map of an unmappable tensor."""
        axis_values = tuple(names[name] for name in self.axis_names)
        chosen = []
        for item in self.launches:
            if item.when is not None and not item.when(names):
                continue
            configs = tuple(self._try_configs(item, axis_values, names))
            variant = configs[-1].variant
            if variant is None:
                shown = ", ".join(f"{name}={names[name]}" for name in self.axis_names)
                search.tried.append(f"{item.launch.kernel}[{shown}], aligned={names['aligned']}: not built")
                search.may_be_had |= not self._is_left_out(names)
                return None
            if unmappable := self._unmappable(variant, layouts):
                search.misaligned += unmappable
                return None
            known = {**names, **item.common[configs[-1].number]}
            x, y, z = (extent(known) for extent in item.grid)
            grid = self.rules.grid((x, y, z), variant)
            values = {text: value(known) for text, value in item.kernargs}
            chosen.append(LaunchDecision(item.index, variant, grid, values, configs))
        return tuple(chosen)

    def _is_left_out(self, names: Mapping[str, Any]) -> bool:
        """Return True if the manifest excludes these values, whatever the config."""
        for item in self.op.denied:
            with suppress(ExpressionError):  # the condition reads names that configs set
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
    ) -> Iterator[ConfigChoice]:
        """Yield the configs in order, up to the first that is built and whose condition holds."""
        for number, (config, condition) in enumerate(zip(item.launch.configs, item.conditions, strict=True)):
            holds = condition is None or bool(condition(names))
            variant = self.table.get((item.index, axis_values, names["aligned"], number)) if holds else None
            yield ConfigChoice(number, config, holds, variant)
            if variant is not None:
                return

    def _decision(
        self,
        names: Mapping[str, Any],
        misaligned: tuple[str, ...],
        layouts: Mapping[str, Layout],
        launches: tuple[LaunchDecision, ...],
        axes: tuple[AxisChoice, ...],
    ) -> Decision:
        spaces = tuple(
            (space.name, self.rules.nbytes(space, tuple(extent(names) for extent in shape), names), space.zero)
            for space, shape in self.workspaces
        )
        return Decision(names, names["aligned"], misaligned, layouts, spaces, launches, axes)


def mapped_tensors(variants: Iterable[Variant]) -> dict[int, tuple[str, ...]]:
    """Return the tensors that variants take as tensor maps, by the `id` of their (shared) kernargs."""
    layouts = {id(variant.kernargs): variant.kernargs for variant in variants}
    found = {key: tuple(arg.value for arg in args if arg.map is not None) for key, args in layouts.items()}
    return {key: names for key, names in found.items() if names}
