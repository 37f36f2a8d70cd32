"""Make the contract of a manifest's op (`aot_runtime.contract.records.Op`): resolve names, check expressions.

Contracts differ by architecture, through tuning files and `arch` in expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from aot.manifest.loading import Manifest
from aot.manifest.optional_tensor_axes import op_axes, presence
from aot.manifest.schema import AxisSpec, ConfigSpec, LaunchSpec, OpSpec, ScalarSpec, TensorSpec
from aot.manifest.yamlfile import Key, ManifestError
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import INT32, INT32_OR_INT64
from aot_runtime.contract.expressions import DIM_QUERIES, Expression, nearest, parse
from aot_runtime.contract.layout import ALIGNMENT
from aot_runtime.contract.manifest_rules import axis_rule, contract_faults
from aot_runtime.contract.names import Scope, stride_position
from aot_runtime.contract.validate import text_faults
from aot_runtime.errors import ExpressionError

from .configs import config_error, launch_configs, launch_name, number_error, tuned_alternatives, tuned_derived
from .costs import config_cost
from .enum_scalars import choice_numbers, number_of, with_numbers
from .kinds import value_kind
from .specialisations import condition, is_specialised

_WITHOUT_STRIDES = ("tensors", "scalars", "require", "derived", "exclude", "overrides")
"""Parts of an op whose expressions are evaluated before the strides of a call are known."""


def build_contract(manifest: Manifest, op_name: str, arch: str, options: Iterable[str]) -> records.Op:
    """Make the contract of an op for an architecture. Raises `ManifestError` at the first fault.

    Args:
        options: names of compiler options of all backends.
    """
    return _Contract(manifest, op_name, arch, frozenset(options)).build()


class _Contract:
    def __init__(self, manifest: Manifest, op_name: str, arch: str, options: frozenset[str]):
        self.manifest, self.name, self.arch, self.options = manifest, op_name, arch, options
        self.spec: OpSpec = manifest.spec.ops[op_name]
        self.tensors: dict[str, records.Tensor] = {}
        self.numbers = choice_numbers(self.spec.scalars)

    def build(self) -> records.Op:
        spec = self.spec
        tensors = tuple(self._tensor(name, tensor) for name, tensor in spec.tensors.items())
        self.tensors |= {tensor.name: tensor for tensor in tensors}
        scalars = tuple(self._scalar(name, scalar) for name, scalar in spec.scalars.items())
        op = records.Op(
            name=self.name,
            doc=spec.doc.strip(),
            reference=spec.reference,
            tensors=tensors,
            scalars=scalars,
            dims=tuple(records.DimLimit(name, dim.min, dim.max, dim.doc) for name, dim in spec.dims.items()),
            dtypes={name: tuple(values) for name, values in spec.dtypes.items()},
            axes=tuple(self._axis(name, axis) for name, axis in op_axes(spec).items()),
            derived=tuple(
                records.Derived(name, self._text(value, ("derived", name)))
                for name, value in tuned_derived(self.manifest, self.name, self.arch).items()
            ),
            alternatives=tuple(
                records.Alternatives(
                    name, tuple(self._text(value, ("alternatives", name, i)) for i, value in enumerate(values))
                )
                for name, values in tuned_alternatives(self.manifest, self.name, self.arch).items()
            ),
            require=tuple(self._text(value, ("require", i)) for i, value in enumerate(spec.require)),
            divisible=tuple(_divisible(spec, tensors)),
            workspace=tuple(
                records.Workspace(
                    name,
                    tuple(self._text(dim, ("workspace", name, "shape", i)) for i, dim in enumerate(item.shape)),
                    item.dtype,
                    item.zero,
                )
                for name, item in spec.workspace.items()
            ),
            denied=tuple(
                records.Denied(self._text(item.when, ("overrides", i, "when")), item.deny)
                for i, item in enumerate(spec.overrides)
                if item.deny
            ),
            wide_offsets=spec.wide_offsets,
            launches=self._launches(),
        )
        self._check_scopes(op)
        excluded = [self._text(text, ("exclude", i)) for i, text in enumerate(spec.exclude)]
        conditions = {"aligned": "aligned", "general": "not aligned"}
        excluded += [text for name, text in conditions.items() if name not in spec.specialisations]
        return msgspec.structs.replace(op, denied=(*op.denied, *(records.Denied(text, "") for text in excluded)))

    # Parts of a contract

    def _tensor(self, name: str, spec: TensorSpec) -> records.Tensor:
        path: tuple[Key, ...] = ("tensors", name)
        if spec.when != "" and spec.role != "output":
            raise self._error((*path, "when"), "only an output can have `when`; an input can be `optional: true`")
        if spec.optional and spec.role == "output":
            raise self._error((*path, "optional"), "an output cannot be optional; state with `when` when it exists")
        shape = tuple(self._dim(dim, (*path, "shape", i)) for i, dim in enumerate(spec.shape))
        return records.Tensor(
            name=name,
            shape=shape,
            dtype=INT32.name if spec.dtype == INT32_OR_INT64 else spec.dtype,
            role=spec.role,
            optional=spec.optional,
            when=self._text(spec.when, (*path, "when")) if spec.when != "" else "",
            contiguous=self._contiguous(spec, shape, path),
            innermost=self._dim_list(spec.innermost, "innermost", spec, shape, path),
            align=bool(spec.align),
            align_strides=spec.align is True,
            large=spec.large,
            offsets=records.Offsets(spec.offsets.into, spec.offsets.longest or "") if spec.offsets else None,
            range=tuple(self._text(bound, (*path, "range", i)) for i, bound in enumerate(spec.range)),
            in_place=tuple(spec.in_place),
            zero=spec.zero,
            pointer=spec.pointer,
            also_int64=spec.dtype == INT32_OR_INT64,
            doc=spec.doc,
        )

    def _dim(self, text: str | int, path: tuple[Key, ...]) -> records.Dim:
        extent, bar, one = str(text).partition("|")
        if bar and one.strip() != "1":
            raise self._error(path, f"'{text}': only `dim|1` (an extent of 1 is broadcast) is allowed")
        return records.Dim(self._text(extent, path), broadcast=bool(bar))

    def _contiguous(self, spec: TensorSpec, shape: tuple[records.Dim, ...], path: tuple[Key, ...]) -> tuple[int, ...]:
        if spec.contiguous is None:
            return (len(shape) - 1,) if shape and not spec.innermost else ()
        return self._dim_list(spec.contiguous, "contiguous", spec, shape, path)

    def _dim_list(
        self, items: list[str | int], key: str, spec: TensorSpec, shape: tuple[records.Dim, ...], path: tuple[Key, ...]
    ) -> tuple[int, ...]:
        positions = []
        for i, item in enumerate(items):
            named = [p for p, dim in enumerate(shape) if dim.extent == item]
            if isinstance(item, int) and -len(shape) <= item < len(shape):
                positions.append(item % len(shape))
            elif len(named) == 1:
                positions.append(named[0])
            else:
                raise self._error((*path, key, i), f"'{item}' is not a single dim of {list(spec.shape)}")
        if len(set(positions)) != len(positions):
            raise self._error((*path, key), "a dim is listed twice")
        return tuple(positions)

    def _scalar(self, name: str, spec: ScalarSpec) -> records.Scalar:
        path: tuple[Key, ...] = ("scalars", name)
        if bool(spec.values) != (spec.type == "choice"):
            raise self._error(path, "`values` are for `type: choice`, which requires them")
        if spec.type in ("choice", "flag") and (spec.min is not None or spec.max is not None):
            raise self._error(path, f"a {spec.type} cannot have min or max")
        if spec.type == "choice":
            default = "" if spec.default is None else repr(str(spec.default))
            if spec.default is not None and spec.default not in spec.values:
                raise self._error((*path, "default"), f"'{spec.default}' is not one of {', '.join(spec.values)}")
        else:
            default = "" if spec.default is None else self._text(spec.default, (*path, "default"))
        return records.Scalar(name, spec.type, default, tuple(spec.values), spec.min, spec.max, spec.doc)

    def _axis(self, name: str, spec: AxisSpec) -> records.Axis:
        path: tuple[Key, ...] = ("constexprs", name)
        rule, text = axis_rule(str(spec.pick))
        if text in self.numbers and not any(isinstance(value, str) for value in spec.values):
            text = number_of(text, self.numbers)
        if rule == "equal" and text.split()[:1] in (["smallest"], ["largest"]):
            raise self._error(
                (*path, "pick"),
                f"'{text}': allowed are smallest >= E, smallest > E, largest <= E and largest < E, where E is an "
                "expression",
            )
        kinds = {type(value) for value in spec.values}
        if len(kinds) > 1 or len(set(spec.values)) != len(spec.values):
            raise self._error((*path, "values"), "values must be distinct and of the same type")
        if rule != "equal" and not kinds <= {int, float}:
            raise self._error((*path, "pick"), "smallest and largest need numbers as values")
        values = tuple(sorted(spec.values)) if rule != "equal" else tuple(spec.values)
        return records.Axis(name, values, self._text(text, (*path, "pick")), rule)

    def _launches(self) -> tuple[records.Launch, ...]:
        entries = launch_configs(self.manifest, self.name, self.arch)
        return tuple(
            self._launch(i, launch, configs)
            for i, (launch, configs) in enumerate(zip(self.spec.launches, entries, strict=True))
        )

    def _launch(self, index: int, spec: LaunchSpec, entries: list[ConfigSpec]) -> records.Launch:
        path: tuple[Key, ...] = ("launches", index)
        grid = [self._text(extent, (*path, "grid", i)) for i, extent in enumerate(spec.grid)]
        configs = tuple(self._config(index, entry) for entry in entries)
        for i, config in enumerate(configs):
            last = i == len(configs) - 1
            if last and config.when and not is_specialised(entries[i]):
                raise self._config_error(
                    index, config.name, f"the last config ('{config.name}') must serve every call: it has no `when`"
                )
            if not last and not config.when and not all(other.cost for other in configs[i:]):
                raise self._config_error(
                    index, config.name, f"config '{config.name}' has no `when`, so the configs after it are never used"
                )
        names = [config.name for config in configs]
        if len(set(names)) != len(names):
            raise self._error((*path, "configs"), f"two configs have the same name ({', '.join(names)})")
        when = self._text(spec.when, (*path, "when")) if spec.when != "" else ""
        grid_xyz = ([*grid, "1", "1"])[:3]
        return records.Launch(launch_name(spec), (grid_xyz[0], grid_xyz[1], grid_xyz[2]), configs, when)

    def _config(self, index: int, entry: ConfigSpec) -> records.Config:
        try:
            when = condition(entry, self.spec.launches[index], self.spec, self.tensors)
            served = self._of_config(when)
        except (ExpressionError, ValueError) as error:
            raise self._config_error(index, entry.name, str(error)) from None
        try:
            cost = self._of_config(config_cost(self.spec.launches[index], entry))
        except (ExpressionError, ValueError) as error:
            raise self._config_error(index, entry.name, str(error), "fitted") from None
        for key in entry.options:
            if key not in self.options:
                message = f"config '{entry.name}': unknown compiler option '{key}'{nearest(key, self.options)}"
                raise self._config_error(index, entry.name, message, key)
        return records.Config(entry.name, dict(entry.blocks), dict(entry.options), served, cost)

    def _of_config(self, text: str) -> str:
        return positional(parse(with_numbers(text, self.numbers)), self.tensors).text if text else ""

    # Checks

    def _check_scopes(self, op: records.Op) -> None:
        for fault in contract_faults(op):
            raise self._error(fault.path, fault.text + self._bound_hint(fault.path, fault.text))
        scope = Scope.of(op)
        for where, text, _ in scope.expressions(op):
            self._check_strides(text, where)
        self._check_build_conditions(op, scope)
        self._check_picks(op, scope)
        self._check_optionals(op)

    def _bound_hint(self, path: tuple[Key, ...], text: str) -> str:
        found = re.search(r"undefined name '(\w+)'", text)
        if found is None or path[:1] != ("launches",) or "grid" not in path:
            return ""
        bound = self.spec.launches[int(path[1])].bind
        hint = f"; it is a parameter in `bind`, and a grid reads those of `configs`: [{{blocks: {{{found[1]}: ...}}}}]"
        return hint if found[1] in bound else ""

    def _check_build_conditions(self, op: records.Op, scope: Scope) -> None:
        build_names = scope.build_names(op)
        for i, item in enumerate(self.spec.exclude):
            self._check(self._text(item, ("exclude", i)), build_names, scope, ("exclude", i))
        configs = {
            key: type(value) for launch in op.launches for c in launch.configs for key, value in c.values.items()
        }
        for i, override in enumerate(self.spec.overrides):
            path = ("overrides", i, "when")
            self._check(self._text(override.when, path), {**build_names, **configs, "config": str}, scope, path)
            for key in override.options:
                if key not in self.options:
                    raise self._error(
                        ("overrides", i, "options", key),
                        f"unknown compiler option '{key}'{nearest(key, self.options)}",
                    )

    def _check_picks(self, op: records.Op, scope: Scope) -> None:
        for axis in op.axes:
            if axis.rule != "equal" and value_kind(parse(axis.pick), scope.all_names(op)) is str:
                raise self._error(
                    ("constexprs", axis.name, "pick"), f"'{axis.pick}' is text; {axis.rule} needs a number"
                )

    def _check_optionals(self, op: records.Op) -> None:
        """Check that axes tell a kernel which optional tensors are present, and which dim is innermost."""
        picks = {axis.pick for axis in op.axes if axis.rule == "equal"}
        for tensor in op.tensors:
            presence = presence_of(tensor)
            if presence and presence not in picks and not self.spec.tensors[tensor.name].nullable:
                raise self._error(
                    ("tensors", tensor.name),
                    f"'{tensor.name}' may be absent, but no constexpr has `pick: {presence}`, "
                    "so the kernel cannot know whether it is present",
                )
            for dim in tensor.innermost[:-1]:
                if innermost_of(tensor, dim) not in picks:
                    raise self._error(
                        ("tensors", tensor.name, "innermost"),
                        f"any of several dims of '{tensor.name}' may be the innermost, but no constexpr has `pick: "
                        f"innermost({tensor.name}, {tensor.shape[dim].extent})`, so the kernel cannot know which is",
                    )

    def _check(self, text: str, names: Mapping[str, type], scope: Scope, path: tuple[Key, ...]) -> None:
        for fault in text_faults(path, text, names, scope):
            raise self._error(fault.path, fault.text)
        self._check_strides(text, path)

    def _check_strides(self, text: str, path: tuple[Key, ...]) -> None:
        if path[0] in _WITHOUT_STRIDES and parse(text).laid_out:
            raise self._error(path, f"'{text}': strides are not known here; {path[0]} cannot depend on them")

    def _text(self, value: Any, path: tuple[Key, ...]) -> str:
        try:
            return positional(parse(with_numbers(str(value), self.numbers)), self.tensors).text
        except ExpressionError as error:
            raise self._error(path, str(error)) from None

    def _error(self, path: tuple[Key, ...], message: str) -> ManifestError:
        match path:
            case ("launches", int(index), "configs", str(config), str(key)):
                return self._config_error(index, config, message, "fitted" if key == "cost" else key)
            case ("derived" | "alternatives", *_):
                return number_error(self.manifest, self.name, self.arch, path, message)
        return self.manifest.error(("ops", self.name, *path), f"op '{self.name}': {message}")

    def _config_error(self, launch: int, config: str, message: str, key: str = "when") -> ManifestError:
        return config_error(self.manifest, self.name, self.arch, launch, config, key, message)


def presence_of(tensor: records.Tensor) -> str:
    """Return the condition under which a tensor is present, in canonical spelling; empty if it always is."""
    return presence(tensor.name, tensor.optional, tensor.when)


def innermost_of(tensor: records.Tensor, dim: int) -> str:
    """Return the condition under which a dim of a tensor is the innermost, in canonical spelling."""
    return parse(f"innermost({tensor.name}, {dim})").text


def positional(value: Expression, tensors: Mapping[str, records.Tensor]) -> Expression:
    """The same with each dim that `DIM_QUERIES` ask about by position, as planners do."""
    text = value.text
    for function, name, *rest in value.queries:
        if function in DIM_QUERIES and name in tensors:
            position = stride_position(tensors[str(name)], rest[0])
            text = text.replace(f"{function}({name}, {rest[0]})", f"{function}({name}, {position})")
    return parse(text)


def _divisible(spec: OpSpec, tensors: Iterable[records.Tensor]) -> Iterator[records.Divisible]:
    listed = spec.divisible if isinstance(spec.divisible, dict) else dict.fromkeys(spec.divisible, "bytes")
    for dim, number in listed.items():
        sized = tuple(
            tensor.name
            for tensor in tensors
            if tensor.is_required and tensor.align_strides and dim in [item.extent for item in tensor.shape]
        )
        if isinstance(number, int):
            yield records.Divisible(dim, number)
        else:
            yield records.Divisible(dim, 0, sized) if sized else records.Divisible(dim, ALIGNMENT)
