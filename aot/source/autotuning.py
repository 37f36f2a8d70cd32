"""The decorators of a kernel as plain data: `@triton.autotune` and `@triton.heuristics`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from aot.errors import CompileError

from .heuristic_source import SourceFunction, read_function
from .project import Project

_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
_DEFAULTS = {"num_ctas": 1}
"""Options with defaults that every config has."""


@dataclass(frozen=True)
class Other:
    """Description of a value that is not a number, a boolean or text."""

    text: str


@dataclass(frozen=True)
class TunedConfig:
    """A config of a kernel's autotuner.

    Attributes:
        blocks: constexpr parameters of the kernel → value.
        options: compiler options → value.
        hooked: the config has a `pre_hook`, which is not run.
    """

    blocks: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]
    hooked: bool = False


@dataclass(frozen=True)
class Heuristic:
    """A value that `@triton.heuristics` computes from a call's arguments: a constexpr, or a compiler option."""

    name: str
    function: SourceFunction


@dataclass(frozen=True)
class Autotuning:
    """The autotuner and the heuristics around a kernel.

    Attributes:
        configs: those of `@triton.autotune`, in its order; empty without one.
        heuristics: in the order in which they are computed.
        keys: the parameters by which configs are chosen.
        zeroed, restored: tensors that tuning resets, since the kernel adds to them or overwrites what it reads.
        pruned: the configs are filtered by the arguments of a call.
        fault: the error, where a decorator cannot be evaluated and none of this is known.
    """

    configs: tuple[TunedConfig, ...] = ()
    heuristics: tuple[Heuristic, ...] = ()
    keys: tuple[str, ...] = ()
    zeroed: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    pruned: bool = False
    fault: str = ""


def decorators_of(modules: Project, source: str, function: str) -> Autotuning:
    """Read the decorators around a kernel while the project is active. See `Autotuning.fault` for failures."""
    try:
        return read_autotuning(modules.attribute(source, function))
    except CompileError as error:
        return Autotuning(fault=error.reason)


def read_autotuning(decorated: Any) -> Autotuning:
    """Read a chain of decorators, from the outermost inwards, down to the kernel."""
    from triton.runtime.autotuner import Autotuner, Heuristics

    found: dict[str, Any] = {}
    heuristics: dict[str, Heuristic] = {}
    for item in _chain(decorated):
        if isinstance(item, Autotuner) and not found:
            found = {
                "configs": tuple(_config(config, item.arg_names) for config in item.configs),
                "keys": tuple(item.keys or ()),
                "zeroed": tuple(item.reset_to_zero),
                "restored": tuple(item.restore_value),
                "pruned": item.perf_model is not None or item.early_config_prune is not None,
            }
        elif isinstance(item, Heuristics):
            heuristics |= {name: Heuristic(name, read_function(value)) for name, value in item.values.items()}
    return Autotuning(heuristics=tuple(heuristics.values()), **found)


def _chain(item: Any) -> Iterator[Any]:
    while item is not None:
        yield item
        item = getattr(item, "fn", None)


def _config(config: Any, parameters: Collection[str]) -> TunedConfig:
    blocks = {name: value for name, value in config.kwargs.items() if name in parameters}
    options = {name: getattr(config, name, None) for name in _OPTIONS}
    options |= {name: value for name, value in config.kwargs.items() if name not in parameters}
    said = {
        name: value
        for name, value in options.items()
        if value is not None and _DEFAULTS.get(name) != value and name not in blocks
    }
    return TunedConfig(_plain(blocks), _plain(said), getattr(config, "pre_hook", None) is not None)


def _plain(values: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    plain = {name: getattr(value, "value", value) for name, value in values.items()}
    return tuple(
        (name, value if isinstance(value, bool | int | float | str) else Other(repr(value)))
        for name, value in plain.items()
    )
