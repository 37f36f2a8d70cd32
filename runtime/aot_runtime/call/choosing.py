"""The second half of planning: which variants a call gets, over which grids, with which kernargs.

What is tried is kept in the decision, or put into the error where nothing fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from aot_runtime.contract.evaluation import Evaluator, evaluator
from aot_runtime.contract.layout import Layout
from aot_runtime.contract.names import axis_names, config_names
from aot_runtime.contract.records import Axis, Launch, Op, Value, Variant
from aot_runtime.contract.tensor_maps import mapped_tensors
from aot_runtime.errors import AotError, ExpressionError, NoVariantError

from .checking import Call
from .decision import AxisChoice, ConfigChoice, Decision, LaunchDecision
from .rules import Rules, pick_value

if TYPE_CHECKING:
    from .advice import Serves

Table = Mapping[tuple[Any, ...], Variant]


class _Launch(msgspec.Struct, frozen=True):
    """A launch of the contract, its expressions ready."""

    index: int
    launch: Launch
    when: Evaluator | None
    conditions: tuple[Evaluator | None, ...]
    common: tuple[dict[str, Value], ...]
    """Of each config, the values of the names that every config sets."""
    grid: tuple[Evaluator, ...]
    kernargs: tuple[tuple[str, Evaluator], ...]


class Search(msgspec.Struct):
    """Record of a search for variants.

    Attributes:
        tried: what there is not.
        misaligned: why the call is no aligned one.
        may_be_had: whether the manifest may have some of what there is not.
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
        self.required = [evaluator(text) for text in op.require]
        self.derived = [(item.name, evaluator(item.value)) for item in op.derived]
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

    def decide(self, call: Call, serves: Serves) -> Decision:
        """The aligned specialisation if the call allows it and all of it is built, else the general one.

        Raises `NoVariantError` where neither is built. serves: tells whether the call would be with some changes.
        """
        search = Search()
        found = self.find(call, search)
        if found is None:
            raise self._no_variant(call, search, serves)
        return found

    def find(self, call: Call, search: Search) -> Decision | None:
        """Find what `decide` returns; None where neither is built.

        An aligned variant that takes maps serves calls that have them: that others take some decides nothing.
        """
        divisible = {name: call.names[name] for name in self.op.divisible}
        misaligned = search.misaligned = [*self.rules.misalignment(call.layouts, divisible)]
        for aligned in (False,) if misaligned else (True, False):
            names = {**call.names, "aligned": aligned}
            axes = self._pick_axes(names, search.tried)
            launches = None if axes is None else self._choose_launches(names, search, call.layouts)
            if axes is not None and launches is not None:
                layouts = {name: layout for name, layout in call.layouts.items() if layout is not None}
                return self._decision(names, tuple(search.misaligned), layouts, launches, axes)
        return None

    def _pick_axes(self, names: dict[str, Any], tried: list[str]) -> tuple[AxisChoice, ...] | None:
        """The value of each axis, put into `names`; None, and why in `tried`, where some axis has none."""
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
        """Every launch that is made; None where nothing is built for one of them, or takes maps that there are not."""
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
        """Tell whether the manifest leaves out what these names pick, whatever the config."""
        for item in self.op.denied:
            with suppress(ExpressionError):  # it reads what configs set
                if evaluator(item.when)(names):
                    return True
        return False

    def _unmappable(self, variant: Variant, layouts: Mapping[str, Layout | None]) -> list[str]:
        """Why a variant cannot have the maps of tensors that it takes; empty if it can."""
        names = self.maps.get(id(variant.kernargs), ())  # which variants share
        given = ((name, layouts.get(name)) for name in names)
        return [reason for name, layout in given if layout for reason in self.rules.unmappable(name, layout)]

    def _try_configs(
        self, item: _Launch, axis_values: tuple[Any, ...], names: Mapping[str, Any]
    ) -> Iterator[ConfigChoice]:
        """Configs in their order, up to the first whose condition holds and that is built."""
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

    def _no_variant(self, call: Call, search: Search, serves: Serves) -> NoVariantError:
        op, built = self.op, list(self.table.values())
        there = {name: sorted({v.axis_values[name] for v in built}, key=str) for name in self.axis_names}
        listed = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in there.items())
        given = [name for name, layout in call.layouts.items() if layout is not None]
        inputs = [tensor.name for tensor in op.tensors if tensor.name in given and tensor.role != "output"]
        from .advice import Asked, advice  # for an error only

        asked = Asked(call.names, inputs, tuple(search.misaligned))
        lines = [
            f"{op.name}: no variant of this bundle fits the call:",
            *search.tried,
            f"built: {listed}",
            *(f"left out: {item.when}: {item.reason}" for item in op.denied if item.reason),
            *(f"advice: {line}" for line in advice(op, built, asked, self._fits, serves)),
        ]
        error = NoVariantError(*lines)
        error.may_be_had = search.may_be_had
        return error

    def _fits(self, names: Mapping[str, Any], may_be_aligned: bool) -> bool:
        """Whether the contract allows a call with these names, and all that it launches is built."""
        try:
            if not all(holds(names) for holds in self.required):
                return False
            known = dict(names)
            for name, value in self.derived:
                known[name] = value(known)
            for aligned in (True, False) if may_be_aligned else (False,):
                values = {**known, "aligned": aligned}
                if self._pick_axes(values, []) is not None and self._choose_launches(values, Search(), {}) is not None:
                    return True
        except (AotError, ArithmeticError, TypeError):
            pass  # the changed arguments make no call
        return False
