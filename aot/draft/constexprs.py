"""The constexprs of a kernel: axes, constants of configs, and values from the kernel's decorators."""

from __future__ import annotations

import re
from typing import Any

from aot.source.autotuning import Heuristic
from aot.source.kernel_source import Parameter
from aot_runtime.contract.dtypes import FLOAT32
from aot_runtime.contract.names import RESERVED

from . import values
from .findings import Guard
from .host_values import Condition, Const, DtypeValue, HostTensor, Several, Value
from .roles import condition
from .rows import BLOCKS, Rows
from .sizes import names_of, renamed
from .tensors import DraftTensor, is_block_name
from .workbench import FUNCTIONS, Workbench, clean
from .wrapper import constant_of

_SMALL = re.compile(r"(?i)head|^h[cqk]?$|^n_.h$|group|expert|^e$|^k$|^hc$|max|iter|batch|^bs$|top_?k|warps|stages")
_HEAD_DIM = re.compile(r"(?i)head_?(dim|size)|^hd$|^d$|dmodel|^d_?[kqv]$|latent|rope")
_GUESSES = (
    (re.compile(r"(?i)^(is|use|has|do|enable|allow)_|specialize|flatten|causal|subtile"), False),
    (re.compile(r"(?i)group"), 8),
    (re.compile(r"(?i)num_sms?$|num_cus?$|n_programs|num_programs"), 304),
    (re.compile(r"(?i)stages"), 2),
    (re.compile(r"(?i)warps"), 4),
    (re.compile(r"(?i)eps"), 1e-5),
    (re.compile(r"(?i)scale|alpha|beta|mult|temperature"), 1.0),
    (re.compile(r"(?i)smooth|drop|softcap"), 0.0),
    (re.compile(r"(?i)ignore_index"), -100),
)
_BLOCK_GUESS = (
    (re.compile(r"(?i)_?k\d*$|_d$"), 32),
    (re.compile(r"(?i)_?[mnq]\d*$"), 64),
)


class Constexprs:
    """Classification of the constexpr parameters."""

    def __init__(self, work: Workbench):
        self.work, self.op, self._rows = work, work.op, Rows(work)
        sums = [access.pointer for access in work.found.accesses] + [bound.index for bound in work.found.bounds]
        self._lengths = {atom.key for item in sums for atom in item.below if atom.kind == values.RANGE}

    def add(self) -> None:
        """Classify the constexpr parameters and propose configs."""
        tuning = self.work.kernel.autotuning
        tuned = {name for config in tuning.configs[:1] for name, _ in (*config.blocks, *config.options)}
        heuristics = {item.name for item in tuning.heuristics}
        # Blocks last: how large they may be depends on what else there is.
        ordered = sorted(self.work.parameters.items(), key=lambda item: is_block_name(item[0]))
        for name, parameter in ordered:
            is_known = name in tuned or name in self.op.bind or name in heuristics
            if parameter.constexpr and not is_known and not parameter.members:
                self._add(name, parameter)
        for heuristic in tuning.heuristics:
            if heuristic.name in self.work.parameters and heuristic.name not in self.op.bind:
                self._add_heuristic(heuristic)
        for name in tuned & self.work.parameters.keys():
            self._rows.require(name)
        self._rows.require_literals()
        self._add_configs(bool(tuning.configs))

    def _add_heuristic(self, heuristic: Heuristic) -> None:
        """Add a heuristic that a build cannot take from the kernel itself, such as a power of two of a size."""
        asked = re.findall(r"given\((\w+)\)", heuristic.function.expression)
        for tensor in self.work.guarded_by(Guard(heuristic.name)):
            if tensor.parameter in asked and self._is_input(tensor):
                self.work.spec(tensor)["optional"] = True
            elif asked and self._is_input(tensor):
                others = ", ".join(self.work.tensor_name(name) for name in asked)
                self.op.note(
                    "tensors", self.work.tensor_name(tensor.parameter), f"the kernel reads it only with {others}"
                )
        row = re.search(r"next_pow2\((\w+)\)", heuristic.function.expression)
        if row and row[1] in self.work.parameters:
            limit = self.work.expression(self.work.launch.final(self.work.symbolic(row[1])))
            if limit:
                self._rows.add(heuristic.name, limit, self._axis)
        elif not heuristic.function.expression:
            self.op.blocks[heuristic.name] = self._guess(heuristic.name)
            self.op.note("blocks", heuristic.name, f"{heuristic.name}, a heuristic")

    def _add(self, name: str, parameter: Parameter) -> None:
        value = self.work.launch.arguments.get(name)
        found, constant = self.work.found, self.work.launch.constant(name)
        compared = found.compared.get(name, [])
        if name in found.dtypes or isinstance(value, DtypeValue):
            self._add_dtype(name, value)
        elif name in self.work.axis_dims and type(constant) is not int:
            self._add_extent(name, self.work.axis_dims[name])
        elif any(isinstance(item, str) for item in compared):
            self._add_choice(name, [item for item in compared if isinstance(item, str)])
        elif constant is not None and not (isinstance(constant, bool) and self.work.guarded_by(Guard(name))):
            self.op.blocks[name] = constant
            self._rows.require(name)
        elif isinstance(value, Several) and (options := self.work.launch.options_of(name)):
            self._add_one_of(name, options)
        elif self._add_passed(name, value):
            return
        elif name not in found.flags and not compared and (limit := self._rows.limit(name)):
            self._rows.add(name, limit, self._axis)
        elif tensor := self._only_guarded(name):
            self.work.spec(tensor)["optional"] = True
            self._axis(name, [False, True], f"given({self.work.tensor_name(tensor.parameter)})")
        elif parameter.has_default:
            return
        elif name in found.flags and not compared:
            self._add_flag(name)
        else:
            self.op.blocks[name] = self._guess(name)
            known = f", it is compared with {', '.join(map(str, compared))}" if compared else ""
            self.op.note("blocks", name, f"{name}{known}")
            self._rows.require(name)

    def _add_passed(self, name: str, value: Value | None) -> bool:
        """Add a condition, a size or an argument of the launching function. Return True if it is supported."""
        if isinstance(value, Condition) and self._add_condition(name, value):
            return True
        if isinstance(value, HostTensor):
            return value.is_given and self._add_argument(name, value)
        return self._add_computed(name)

    def _axis(self, name: str, values: list[Any], pick: str) -> None:
        """Add an axis, under another name if the parameter's is taken."""
        others = {*self.op.scalars, *self.op.tensors, *self.op.dims()}
        axis = (name if name not in others and not name.startswith("_") else name.upper()).strip("_")
        axis = f"{clean(axis)}_AXIS" if axis in others else clean(axis)
        self.op.constexprs[axis] = {"values": values, "pick": pick}
        if axis != name:
            self.op.bind[name] = axis

    def _add_dtype(self, name: str, value: Value | None) -> None:
        """Add a dtype: the one that the launch passes, else that of the data or of the accumulator."""
        if isinstance(value, DtypeValue) and value.name:
            self.op.bind[name] = {"dtype": value.name}
            return
        tensor = self.work.tensor_passed_for(value.of) if isinstance(value, DtypeValue) else None
        dtype = FLOAT32.name if "acc" in name.lower() or not self.op.dtypes else "T"
        self.op.bind[name] = {"dtype": dtype if tensor is None else self.work.spec(tensor)["dtype"]}
        if tensor is None and self.work.launch.is_there and not isinstance(value, Several):
            self.op.note("bind", name, f"the dtype {name}")

    def _add_extent(self, name: str, size: str) -> None:
        text = self.work.launch.size(name)
        allowed = [item for item in self.work.launch.facts.allowed.get(text, ()) if type(item) is int]
        sizes = [64, 128] if _HEAD_DIM.search(name) else [8] if _SMALL.search(name) else [1024, 4096]
        self._axis(name, allowed or sizes, size)
        if not allowed:
            self.op.note("constexprs", next(reversed(self.op.constexprs)), f"the sizes of {size} to compile")

    def _add_one_of(self, name: str, options: tuple[Any, ...]) -> None:
        self.op.blocks[name] = options[0]
        known = ", ".join(map(str, options))
        self.op.note("blocks", name, f"{name}, {f'one of {known}' if len(options) > 1 else f'{known} among others'}")
        self._rows.require(name)

    def _add_condition(self, name: str, value: Condition) -> bool:
        key = self.work.launch.present(name)
        tensor = self.work.tensor_of_key(key) if key else None
        if tensor is not None and self._is_input(tensor):
            self.work.spec(tensor)["optional"] = True
        text = condition(self.work, self.work.launch.final(value.text))
        if text and (names_of(text) <= self.work.usable() or "given(" in text):
            self._axis(name, [False, True], text)
            self._when(name, text)
            return True
        return False

    def _when(self, name: str, text: str) -> None:
        for tensor in self.work.guarded_by(Guard(name)):
            if self.work.spec(tensor).get("role") == "output":
                self.work.spec(tensor)["when"] = text

    def _add_computed(self, name: str) -> bool:
        """Add a value that the launch computes from sizes: a constant of the variant, a size, or a power of two."""
        text = self.work.expression(self.work.launch.size(name))
        if not text:
            return False
        of_axes = renamed(text, {dim: axis for axis, dim in self.work.axis_dims.items() if axis in self.op.constexprs})
        if names_of(of_axes) - FUNCTIONS <= self.op.constexprs.keys() | self.op.blocks.keys():
            self.op.bind[name] = of_axes
        elif "next_pow2" in text:
            return self._rows.add_computed(name, text, self._axis)
        else:
            self._add_extent(name, text)
        return True

    def _add_argument(self, name: str, argument: HostTensor) -> bool:
        """Add an argument of the launching function: a flag, or a number that picks a variant."""
        default = argument.default.value if isinstance(argument.default, Const) else None
        if (
            argument.annotation == bool.__name__
            or isinstance(default, bool)
            or (name in self.work.found.flags and not self.work.found.compared.get(name))
        ):
            self._add_flag(name, default is True)
            return True
        if isinstance(default, float) or argument.annotation == "float":
            self.op.blocks[name] = float(default) if isinstance(default, int | float) else self._guess(name)
            self.op.note("blocks", name, f"{name}, a number that the caller chooses")
            return True
        if type(default) is not int and argument.annotation != "int":
            return False
        scalar = self.work.scalar_names.get(argument.key) or self._scalar_name(name)
        value = default if type(default) is int else self._guess(name)
        self.op.scalars[scalar] = {"type": "i32", **({"default": default} if type(default) is int else {})}
        self.work.scalar_names[argument.key] = scalar
        self._axis(name, [value], scalar)
        self.op.note("constexprs", next(reversed(self.op.constexprs)), f"the values of {scalar} to compile")
        self._rows.require(name, next(reversed(self.op.constexprs)))
        return True

    def _only_guarded(self, name: str) -> DraftTensor | None:
        """Return the input whose presence is the only effect of a parameter."""
        guarded = self.work.guarded_by(Guard(name))
        return guarded[0] if len(guarded) == 1 and self._is_input(guarded[0]) else None

    def _is_input(self, tensor: DraftTensor) -> bool:
        return self.work.spec(tensor).get("role") != "output"

    def _add_flag(self, name: str, default: bool = False) -> None:
        argument = self.work.launch.tensor(name)
        scalar = self.work.scalar_names.get(argument.key if argument else "") or self._scalar_name(name)
        self.op.scalars[scalar] = {"type": "flag", "default": default}
        if argument is not None:
            self.work.scalar_names[argument.key] = scalar
        self._when(name, scalar)
        self._axis(name, [False, True], scalar)

    def _add_choice(self, name: str, choices: list[str]) -> None:
        scalar = self._scalar_name(name)
        choices = list(dict.fromkeys(choice for choice in choices if choice))
        self.op.scalars[scalar] = {"type": "choice", "values": ["none", *choices], "default": "none"}
        self._axis(name, ["none", *choices], scalar)

    def _scalar_name(self, name: str) -> str:
        scalar = re.sub(r"^_+|_+$", "", name.lower())
        taken = {*self.op.tensors, *self.op.dims(), *self.work.parameters} - {name if scalar == name else ""}
        return f"{scalar}_flag" if scalar in taken or scalar in RESERVED else scalar

    def _guess(self, name: str) -> Any:
        compared = self.work.found.compared.get(name)
        if compared:  # with what a feature is off by
            return 1 if compared == [0] else compared[0]
        if name in self._lengths or is_block_name(name):
            rows = [axis for axis in self.op.constexprs.values() if str(axis["pick"]).startswith("smallest")]
            if rows and not self.work.found.has_products:
                return 4
            several = len([item for item in self._lengths if is_block_name(item)]) > 1
            return next((size for pattern, size in _BLOCK_GUESS if several and pattern.search(name)), 1024)
        return next((value for pattern, value in _GUESSES if pattern.search(name)), 1)

    # Configs

    def _add_configs(self, is_tuned: bool) -> None:
        launch = self.work.launch
        options = {name: constant_of(value) for name, value in launch.options.items()}
        options = {name: value for name, value in options.items() if name in ("num_warps", "num_stages") and value}
        if isinstance(warps := options.get("num_warps"), int):
            options["num_warps"] = min(warps, 16)  # of 64 lanes; a workgroup has at most 1024
        for name in ("num_warps", "num_stages"):  # parameters that get what the option is
            if name in self.op.blocks:
                options[name] = self.op.blocks.pop(name)
        config: dict[str, Any] = {"from_kernel": 0} if is_tuned else {}
        if self.op.blocks:
            config["blocks"] = dict(self.op.blocks)
        row = next((n for n, axis in self.op.constexprs.items() if str(axis["pick"]).startswith("smallest")), "")
        is_wide = bool(row) and self.op.constexprs[row]["values"][-1] >= 4096
        if is_wide and not options and not is_tuned and not self.work.found.has_products:
            wide = {"when": f"{row} >= 4096", **config, "options": {"num_warps": 16 if max(BLOCKS) > 8192 else 8}}
            self.op.configs = [wide, {**config, "options": {"num_warps": 4}}]
            return
        if options and not is_tuned:
            config["options"] = options
        self.op.configs = [config] if config else []
