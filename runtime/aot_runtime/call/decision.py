"""The outcome of planning: a call's values and launches, and the choices that led to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aot_runtime.contract.layout import Layout
from aot_runtime.contract.records import Axis, Config, Value, Variant


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
