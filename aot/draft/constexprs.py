"""The constexprs of a kernel: axes, constants of configs, and what the kernel's decorators say already."""

from __future__ import annotations

import ast
import re
from typing import Any

from aot.compile.autotuning import Heuristic
from aot.compile.kernel_source import Parameter
from aot_runtime.contract.names import RESERVED

from . import values
from .findings import Guard
from .grid import expression_of
from .tensors import DraftTensor, is_block_name
from .workbench import Workbench

_FUNCTIONS = {"cdiv", "min", "max", "next_pow2"}
BLOCKS = [256, 1024, 4096, 16384]
"""Rows that are taken in one block."""
HEADS = [32, 64, 128]
"""The same, where rows are multiplied as matrices."""
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
    """Says what each constexpr parameter is."""

    def __init__(self, work: Workbench):
        self.work, self.op = work, work.op
        sums = [access.pointer for access in work.found.accesses] + [bound.index for bound in work.found.bounds]
        self._lengths = {atom.key for item in sums for atom in item.below if atom.kind == values.RANGE}

    def add(self) -> None:
        tuning = self.work.kernel.autotuning
        tuned = {name for config in tuning.configs[:1] for name, _ in (*config.blocks, *config.options)}
        # Blocks last: how large they may be depends on what else there is.
        ordered = sorted(self.work.parameters.items(), key=lambda item: is_block_name(item[0]))
        for name, parameter in ordered:
            is_known = name in tuned or name in self.op.bind or name in {item.name for item in tuning.heuristics}
            if parameter.constexpr and not is_known and not parameter.members:
                self._add(name, parameter)
        for heuristic in tuning.heuristics:
            if heuristic.name in self.work.parameters and heuristic.name not in self.op.bind:
                self._add_heuristic(heuristic)
        self._add_configs(bool(tuning.configs))

    def _add_heuristic(self, heuristic: Heuristic) -> None:
        """What a build cannot take from the kernel itself: a power of two that follows a size, or anything else."""
        asked = re.findall(r"given\((\w+)\)", heuristic.function.expression)
        for tensor in self.work.guarded_by(Guard(heuristic.name)):
            if tensor.parameter in asked and self._is_input(tensor):
                self.op.tensors[self.work.tensor_name(tensor.parameter)]["optional"] = True
        row = re.search(r"next_pow2\((\w+)\)", heuristic.function.expression)
        if row and row[1] in self.work.parameters and (limit := self._extent(row[1])):
            self._add_row(heuristic.name, limit)
        elif not heuristic.function.expression:
            self.op.blocks[heuristic.name] = self._guess(heuristic.name)
            self.op.notes["blocks", heuristic.name] = f"{heuristic.name}, a heuristic"

    def _add(self, name: str, parameter: Parameter) -> None:
        found, literal = self.work.found, self.work.launch.constant(self.work.launch.arguments.get(name))
        if name in found.dtypes:
            self.op.bind[name] = {"dtype": "float32" if "acc" in name.lower() or not self.op.dtypes else "T"}
        elif name in self.work.axis_dims:
            self._add_extent(name, literal)
        elif any(isinstance(value, str) for value in found.compared.get(name, ())):
            self._add_choice(name, [value for value in found.compared[name] if isinstance(value, str)])
        elif literal is not None and not (isinstance(literal, bool) or name in found.flags):
            self.op.blocks[name] = literal
        elif not (name in found.flags or found.compared.get(name)) and self._add_computed(name):
            return
        elif limit := self._row_limit(name):
            self._add_row(name, limit)
        elif tensor := self._of_presence(name):
            self.op.tensors[self.work.tensor_name(tensor.parameter)]["optional"] = True
            self._axis(name, [False, True], f"given({self.work.tensor_name(tensor.parameter)})")
        elif isinstance(literal, bool) and not self.work.guarded_by(Guard(name)):
            self.op.blocks[name] = literal
        elif parameter.has_default:
            return
        elif name in found.flags and not found.compared.get(name):
            self._add_flag(name)
        else:
            self.op.blocks[name] = self._guess(name)
            if not is_block_name(name):
                compared = found.compared.get(name)
                known = f", it is compared with {', '.join(map(str, compared))}" if compared else ""
                self.op.notes["blocks", name] = f"{name}{known}"

    def _axis(self, name: str, values: list[Any], pick: str) -> None:
        """An axis; a parameter whose name something else has gets one of another name."""
        axis = name if name not in {*self.op.scalars, *self.op.tensors} and not name.startswith("_") else name.upper()
        axis = axis.strip("_")
        axis = f"{axis}_AXIS" if axis in {*self.op.scalars, *self.op.tensors} else axis
        self.op.constexprs[axis] = {"values": values, "pick": pick}
        if axis != name:
            self.op.bind[name] = axis

    def _add_extent(self, name: str, literal: object) -> None:
        """A size that is compiled in."""
        dim = self.work.axis_dims[name]
        sizes = [64, 128] if _HEAD_DIM.search(name) else [8] if _SMALL.search(name) else [1024, 4096]
        if type(literal) is int:
            sizes = [literal]
        self._axis(name, sizes, dim)
        if type(literal) is not int:
            self.op.notes["constexprs", name] = f"which sizes of {dim} are compiled"

    def _add_computed(self, name: str) -> bool:
        """What the launch computes from sizes: a constant of the variant, or the power of two that holds a row."""
        node = self.work.launch.followed(self.work.launch.arguments.get(name))
        text = expression_of(self.work, node) if node is not None else ""
        for axis, dim in self.work.axis_dims.items():
            text = re.sub(rf"\b{dim}\b", axis, text)
        names = {item.id for item in ast.walk(ast.parse(text)) if isinstance(item, ast.Name)} - _FUNCTIONS
        if text and names and names <= self.op.constexprs.keys() | self.op.blocks.keys():
            self.op.bind[name] = text
            return True
        if row := re.fullmatch(r"next_pow2\((\w+)\)", text):
            self._add_row(name, row[1])
            return True
        return False

    def _row_limit(self, name: str) -> str:
        """The dim of which a block has to hold a whole row: its range, by itself, is below the extent."""
        for bound in self.work.found.bounds:
            terms = list(bound.index.terms)
            if len(terms) == 1 and [(a.kind, a.key) for a in terms[0]] == [(values.RANGE, name)]:
                limit = bound.limit.argument()
                if limit and name not in self.work.found.loops:
                    return self._extent(limit)
        return ""

    def _extent(self, parameter: str) -> str:
        if parameter in self.work.dim_names:
            return self.work.dim_names[parameter]
        return "" if self.work.parameters[parameter].constexpr else parameter

    def _add_row(self, name: str, limit: str) -> None:
        of_axis = next((axis for axis, dim in self.work.axis_dims.items() if dim == limit), "")
        sizes = self.op.constexprs.get(of_axis, {}).get("values")
        usual = HEADS if self.work.found.has_products else BLOCKS
        blocks = sorted({1 << max(0, int(size) - 1).bit_length() for size in sizes}) if sizes else usual
        self._axis(name, blocks, f"smallest >= {limit}")

    def _of_presence(self, name: str) -> DraftTensor | None:
        """The input that a parameter says is there."""
        text = self.work.launch.present(name)
        tensor = self.work.tensor_of(text) if text else None
        guarded = [item for item in self.work.guarded_by(Guard(name)) if self._is_input(item)]
        if tensor is None and not text and len(guarded) == 1 and len(self.work.guarded_by(Guard(name))) == 1:
            tensor = guarded[0]
        return tensor if tensor is not None and self._is_input(tensor) else None

    def _is_input(self, tensor: DraftTensor) -> bool:
        return self.op.tensors[self.work.tensor_name(tensor.parameter)].get("role") != "output"

    def _add_flag(self, name: str) -> None:
        """A condition of the call; what is written only under it is an output only then."""
        scalar = self._scalar_name(name)
        self.op.scalars[scalar] = {"type": "flag", "default": False}
        for tensor in self.work.guarded_by(Guard(name)):
            if not self._is_input(tensor):
                self.op.tensors[self.work.tensor_name(tensor.parameter)]["when"] = scalar
        self._axis(name, [False, True], scalar)

    def _add_choice(self, name: str, choices: list[str]) -> None:
        scalar = self._scalar_name(name)
        choices = list(dict.fromkeys(choice for choice in choices if choice))
        self.op.scalars[scalar] = {"type": "choice", "values": ["none", *choices], "default": "none"}
        self._axis(name, ["none", *choices], scalar)

    def _scalar_name(self, name: str) -> str:
        scalar = re.sub(r"^_+|_+$", "", name.lower())
        taken = {*self.op.tensors, *self.work.dim_names.values(), *self.work.parameters} - {
            name if scalar == name else ""
        }
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
        options = {name: launch.constant(value) for name, value in launch.options.items()}
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
        if row and not options and not is_tuned and not self.work.found.has_products:
            wide = {"when": f"{row} >= 4096", **config, "options": {"num_warps": 16 if max(BLOCKS) > 8192 else 8}}
            self.op.configs = [wide, {**config, "options": {"num_warps": 4}}]
            return
        if options and not is_tuned:
            config["options"] = options
        self.op.configs = [config] if config else []
