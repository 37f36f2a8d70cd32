"""What a call becomes: the values that follow from its arguments, and its launches, with what was tried on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aot_runtime.contract.layout import Layout
from aot_runtime.contract.records import Axis, Config, Value, Variant


class AxisChoice(msgspec.Struct, frozen=True):
    """The value of an axis: `value` is the one that its rule gives for `wanted`; None if none is built."""

    axis: Axis
    wanted: Any
    value: Value | None


class ConfigChoice(msgspec.Struct, frozen=True):
    """A config that was tried: whether its condition holds, and the variant that is built of it, if there is one."""

    number: int
    config: Config
    holds: bool
    variant: Variant | None


class LaunchDecision(msgspec.Struct, frozen=True):
    """One launch of a call: which variant, over which grid, and the value of every kernarg expression.

    `tried` has the configs up to the one that was taken.
    """

    index: int
    variant: Variant
    grid: tuple[int, int, int]
    values: Mapping[str, Any]
    tried: tuple[ConfigChoice, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """What a call becomes.

    Attributes:
        names: every name's value: dims, scalars, dtype variables, derived values, axes.
        aligned: the specialisation; `misaligned` says why not the aligned one.
        layouts: of every tensor that is there, allocated outputs included.
        workspaces: (name, bytes, whether zeroed).
        launches: those that are made, in order.
        axes: how each axis got its value.
    """

    names: Mapping[str, Any]
    aligned: bool
    misaligned: tuple[str, ...]
    layouts: Mapping[str, Layout]
    workspaces: tuple[tuple[str, int, bool], ...]
    launches: tuple[LaunchDecision, ...]
    axes: tuple[AxisChoice, ...] = ()
