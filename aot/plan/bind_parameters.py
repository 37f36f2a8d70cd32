"""Bind a kernel's parameters in a variant: make its compile job, and the kernargs of a call.

A parameter is bound by its name (a tensor, `<tensor>_ptr`, `stride_<tensor>_<dim>`, a dim, a scalar, an axis or config
constexpr, a derived number, a workspace, `num_cus`) or by the launch's `bind`; a named tuple is bound member by member.
Values that the point of a variant decides (an absent tensor, the unit stride of a contiguous dim, a literal) become
constants of the code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from aot.manifest.loading import Manifest
from aot.manifest.schema import BindSpec, ConfigSpec, Expr, LaunchSpec, is_function
from aot.manifest.yamlfile import ManifestError
from aot.source.constants import Constant
from aot.source.kernel_source import Parameter
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import DTYPES, INTEGER_TYPES
from aot_runtime.contract.expressions import Expression, nearest, parse, query_name
from aot_runtime.contract.layout import ALIGNMENT, aligned_elements, divisors
from aot_runtime.contract.partial_evaluation import UNKNOWN

from .bound_parameter import BoundParameter
from .conditional_values import NULL
from .configs import config_error, launch_configs
from .constants import is_plain, kind_fault, literal, literal_factor
from .descriptors import descriptor
from .kinds import value_kind
from .launch_scope import LaunchScope
from .members import Absent, MemberError, Value, as_value, is_member, length_fault, member_values, not_a_tuple
from .specialisations import parameter_type
from .variants import VariantSpec


@dataclass(frozen=True)
class Binder:
    """Binds the parameters of one launch's kernel; made once per launch, used for each of its variants."""

    manifest: Manifest
    op: records.Op
    index: int
    parameters: tuple[Parameter, ...]
    arch: str
    is_gluon: bool = False

    def check(self) -> None:
        """Raise `ManifestError` for an entry of `bind`, or a block of a config, without a parameter of the kernel."""
        names = [item.name for parameter in self.parameters for item in (parameter, *parameter.members)]
        bind = self._scope.launch.bind
        for before, key in zip(["", *bind], bind, strict=False):
            if key not in names:
                hint = _comma_hint(before, bind.get(before), key) or nearest(key, names)
                raise self._scope.error(("bind", key), f"kernel has no parameter '{key}'{hint}")
        constexprs = [parameter.name for parameter in self.parameters if parameter.constexpr]
        for config in self.op.launches[self.index].configs:
            for key in config.values:
                if key not in constexprs:
                    raise config_error(
                        self.manifest,
                        self.op.name,
                        self.arch,
                        self.index,
                        config.name,
                        key,
                        f"config '{config.name}': '{key}' is not a constexpr parameter of '{self._scope.launch.kernel}'"
                        f"{nearest(key, constexprs)}",
                    )
        for entry in self._entries:
            for key in (*entry.signature, *entry.constants):
                if key not in names and key.rpartition(".")[0] not in names:
                    raise self._entry_error(entry, key, f"kernel has no parameter '{key}'{nearest(key, names)}")

    @cached_property
    def _entries(self) -> list[ConfigSpec]:
        return launch_configs(self.manifest, self.op.name, self.arch)[self.index]

    def _entry_error(self, entry: ConfigSpec, parameter: str, text: str) -> ManifestError:
        key = "constants" if parameter in entry.constants else "signature"
        message = f"config '{entry.name}': {text}"
        return config_error(self.manifest, self.op.name, self.arch, self.index, entry.name, key, message)

    @cached_property
    def _scope(self) -> LaunchScope:
        return LaunchScope(self.manifest, self.op, self.index)

    def bind(self, variant: VariantSpec) -> tuple[BoundParameter, ...]:
        """Bind every parameter for a variant, in the kernel's order. Raises `ManifestError` with all faults."""
        known, found, faults = dict(variant.constants), list[BoundParameter](), list[str]()
        for parameter in self.parameters:
            try:
                for item, value in self._parts(parameter):
                    found += self._bind_part(item, value, variant, known)
            except ManifestError as error:
                faults += error.messages
        if faults:
            raise ManifestError(dict.fromkeys(faults))
        return tuple(found)

    def _parts(self, parameter: Parameter) -> Iterable[tuple[Parameter, Value | None]]:
        if not parameter.members:
            bind, name = self._scope.launch.bind, parameter.name
            return [(parameter, as_value(bind[name]) if name in bind else None)]
        values = self._members[parameter.name]
        return [(member, values[member.name]) for member in parameter.members]

    @cached_property
    def _members(self) -> dict[str, dict[str, Value]]:
        found = {}
        for parameter in self.parameters:
            if parameter.members:
                try:
                    bind = self._scope.launch.bind
                    found[parameter.name] = member_values(parameter, bind, self._scope.tensors, self._scope.by_name)
                except MemberError as error:
                    raise self._scope.error(self._scope.place(parameter.name), str(error)) from None
        return found

    def _bind_part(
        self, part: Parameter, value: Value | None, variant: VariantSpec, known: Mapping[str, Any]
    ) -> Iterator[BoundParameter]:
        entry = self._entries[variant.config]
        if part.name in entry.constants:
            yield self._bind_constant(part, entry.constants[part.name], variant, known)
        elif part.name in entry.signature:
            given = None if isinstance(value, Absent | tuple) else value
            yield self._typed(self._bind(part, given, variant, known), entry)
        elif isinstance(value, Absent):
            yield BoundParameter(part.name, "constexpr", constant=value.constant)
        elif isinstance(value, tuple):
            yield from self._bind_tuple(part, value, variant, known)
        else:
            yield self._bind(part, value, variant, known)

    def _bind_constant(
        self, part: Parameter, value: Any, variant: VariantSpec, known: Mapping[str, Any]
    ) -> BoundParameter:
        """Bind a parameter to a constant of the variant's config, which is a value and not an expression."""
        if isinstance(value, list):
            items = [self._bind_constant(part, item, variant, known) for item in value]
            return BoundParameter(part.name, "constexpr", constant=tuple(item.constant for item in items))
        if isinstance(value, BindSpec):
            return self._bind_constexpr(part, value, variant, known)
        return BoundParameter(part.name, "constexpr", constant=value)

    def _typed(self, bound: BoundParameter, entry: ConfigSpec) -> BoundParameter:
        """Give a run-time parameter the type and the hints of a signature."""
        wanted = parameter_type(entry.signature[bound.name])
        if bound.dtype and bound.type != wanted.type:
            raise self._entry_error(entry, bound.name, f"'{bound.name}' is {bound.type}, not {wanted.type}")
        if isinstance(bound.constant, bool | int | float):  # a number that the manifest binds to a run-time parameter
            bound = dataclasses.replace(bound, constant=None, value=literal(bound.constant))
        divisible = ALIGNMENT if wanted.divisible else 1
        return dataclasses.replace(bound, type=wanted.type, divisible=divisible, ranged=wanted.ranged, specialised=True)

    def _bind_tuple(
        self, part: Parameter, values: tuple[Value, ...], variant: VariantSpec, known: Mapping[str, Any]
    ) -> Iterator[BoundParameter]:
        """Bind a tuple: element by element, or as a single constant if it is a constexpr or empty."""
        if fault := length_fault(part, len(values)):
            raise self._scope.error(self._scope.place(part.name), f"parameter '{part.name}' {fault}")
        items = [Parameter(f"{part.name}.{i}", part.constexpr) for i in range(len(values))]
        bound = [
            found
            for item, value in zip(items, values, strict=True)
            for found in self._bind_part(item, value, variant, known)
        ]
        if part.constexpr or (not values and not is_member(part)):
            if function := next((found.function for found in bound if found.function), ""):
                message = f"'{function}' is a function, which no element of a tuple can be"
                raise self._scope.error(self._scope.place(part.name), message)
            yield BoundParameter(part.name, "constexpr", constant=tuple(found.constant for found in bound))
        else:
            yield from bound

    def _bind(
        self, parameter: Parameter, given: Expr | BindSpec | None, variant: VariantSpec, known: Mapping[str, Any]
    ) -> BoundParameter:
        if isinstance(given, BindSpec) and ((given.dims is not None and not given.block) or given.operands):
            key = "dims" if given.dims is not None else "operands"
            raise self._scope.error(
                self._scope.place(parameter.name),
                f"parameter '{parameter.name}' is not a tuple, so it has no `{key}`",
            )
        if given is not None and parameter.unpacked:
            message = f"parameter '{parameter.name}' {not_a_tuple(parameter)}"
            raise self._scope.error(self._scope.place(parameter.name), message)
        if isinstance(given, BindSpec) and given.block and parameter.constexpr:
            message = f"parameter '{parameter.name}' is a constexpr, and a descriptor, which has a `block`, is none"
            raise self._scope.error(self._scope.place(parameter.name), message)
        if parameter.constexpr:
            return self._bind_constexpr(parameter, given, variant, known)
        if given is None:
            given = self._scope.by_name(parameter.name)
            if given is None and parameter.has_default:
                return BoundParameter(parameter.name, "constexpr", constant=self._default(parameter))
            if given is None:
                raise self._scope.unbound(parameter.name)
        if isinstance(given, BindSpec) and not given.block and (given.dtype or given.layout) is not None:
            kind = "dtype" if given.dtype is not None else "layout"
            raise self._scope.error(
                self._scope.place(parameter.name),
                f"a {kind} is bound to '{parameter.name}', which is not a constexpr: a kernel takes no {kind} at "
                "run time",
            )
        if function_of(given):
            raise self._scope.error(
                self._scope.place(parameter.name),
                f"'{function_of(given)}' is a function, but '{parameter.name}' is not a constexpr",
            )
        if isinstance(given, BindSpec) and given.block:
            return descriptor(self._scope, parameter.name, given, variant, known, self.arch, self.is_gluon)
        forced = given.type if isinstance(given, BindSpec) else None
        value = given.value if isinstance(given, BindSpec) else given
        expression = self._scope.parse(str(value), parameter.name)
        return self._bind_value(parameter.name, expression, forced, variant, known, parameter.type)

    def _bind_constexpr(
        self, parameter: Parameter, given: Any, variant: VariantSpec, known: Mapping[str, Any]
    ) -> BoundParameter:
        name = parameter.name
        if given is None:
            by_name = {**dict(variant.options), **known}  # as Triton passes its options to parameters of their names
            if name in by_name:
                return BoundParameter(name, "constexpr", constant=by_name[name])
            if parameter.has_default:
                return BoundParameter(name, "constexpr", constant=self._default(parameter))
            if without := self._config_without(name, variant):
                raise without
            raise self._scope.error(
                ("kernel",),
                f"constexpr parameter '{name}' of the kernel is not bound: no axis, block, option of the config or "
                f"entry of `bind` has this name"
                f"{nearest(name, [item for item in known if not item.startswith('_')])}",
            )
        if function := function_of(given):
            return BoundParameter(name, "constexpr", function=function)
        if isinstance(given, BindSpec) and given.dtype is not None:
            constant: Constant = self._scope.dtype(str(given.dtype), name, known)
        elif isinstance(given, BindSpec) and given.layout is not None:
            constant = self._scope.layout(given.layout, name, known, dict(variant.options))
        else:
            constant = self._scope.built(str(given.value if isinstance(given, BindSpec) else given), name, known)
        if fault := kind_fault(parameter, constant):
            raise self._scope.error(self._scope.place(name), f"parameter '{name}': {fault}")
        return BoundParameter(name, "constexpr", constant=constant)

    def _config_without(self, name: str, variant: VariantSpec) -> ManifestError | None:
        """Return the error for a config that lacks the value of a constexpr, if another config has one."""
        configs = self.op.launches[self.index].configs
        others = [config.name for config in configs if name in config.values]
        if not others:
            return None
        config = configs[variant.config].name
        message = f"config '{config}' gives constexpr parameter '{name}' no value, as config '{others[0]}' does"
        return config_error(self.manifest, self.op.name, self.arch, self.index, config, "", message)

    def _bind_value(
        self,
        name: str,
        value: Expression,
        forced: str | None,
        variant: VariantSpec,
        known: Mapping[str, Any],
        annotated: str = "",
    ) -> BoundParameter:
        value = self._scope.chosen(value, name, known)
        plain = value.text
        spaces, tensors = self._scope.spaces, self._scope.tensors
        if plain == NULL:
            return BoundParameter(name, "constexpr", constant=None)
        if plain in spaces:
            dtype = str(known.get(spaces[plain].dtype, spaces[plain].dtype))
            pointer = f"*{DTYPES[dtype].triton}"
            return BoundParameter(name, pointer, value=plain, dtype=dtype, divisible=ALIGNMENT, specialised=True)
        if plain in tensors:
            if known.get(query_name("given", plain)) is False:
                return BoundParameter(name, "constexpr", constant=None)
            tensor = tensors[plain]
            dtype = str(known.get(tensor.dtype, tensor.dtype))
            pointer = f"*{DTYPES[dtype].triton}"
            divisible = ALIGNMENT if tensor.align else 1
            return BoundParameter(name, pointer, value=plain, dtype=dtype, divisible=divisible, ranged=not tensor.large)
        self._scope.check_names(value, name)
        strides = [query for query in value.queries if query[0] == "stride"]
        if len(strides) == 1 and plain == parse(f"stride({strides[0][1]}, {strides[0][2]})").text:
            stride = self._stride(name, tensors[str(strides[0][1])], int(strides[0][2]), forced, variant, known)
            typed = annotated and not forced and stride.type != "constexpr"
            return dataclasses.replace(stride, type=annotated) if typed else stride
        forced = forced or annotated
        constant = self._scope.constant(value, name, known)
        if constant is not UNKNOWN:
            if forced:  # kept: a constant would be an i32 or fp32 in the kernel
                return BoundParameter(name, forced, value=literal(constant))
            return BoundParameter(name, "constexpr", constant=constant)
        wide = any(self._wide(tensors[str(tensor)], variant) for _, tensor, *_ in strides)
        type_name = forced or self._type(value, name, wide)
        if type_name in INTEGER_TYPES and (factor := literal_factor(value)) > 1:
            return BoundParameter(name, type_name, value=plain, divisible=factor, specialised=True)
        return BoundParameter(name, type_name, value=plain, divisible=divisors(self.op, known).get(plain, 1))

    def _type(self, value: Expression, name: str, wide: bool) -> str:
        """Return the kernarg type of an expression: that of a scalar; for an integer, i64 if `wide`, else i32."""
        scalars = {scalar.name: scalar.type for scalar in self.op.scalars}
        if scalars.get(value.text, "choice") not in ("choice", "flag"):
            return scalars[value.text]
        kind = value_kind(value, self._scope.kinds)
        if kind is str:
            raise self._scope.error(
                self._scope.place(name),
                f"parameter '{name}': '{value.text}' is text, which a kernel cannot take at run time; use a "
                "constexpr that it picks, or give its choices numbers",
            )
        return {bool: "i1", int: "i64" if wide else "i32", float: "fp32"}[kind]

    def _stride(
        self,
        name: str,
        tensor: records.Tensor,
        position: int,
        forced: str | None,
        variant: VariantSpec,
        known: Mapping[str, Any],
    ) -> BoundParameter:
        if known.get(query_name("given", tensor.name)) is False:
            return BoundParameter(name, "constexpr", constant=0)
        innermost = known.get(
            query_name("innermost", tensor.name, str(position)), tensor.contiguous[-1:] == (position,)
        )
        # A dim that may be broadcast has stride 0 then.
        if innermost and not tensor.shape[position].broadcast and forced is None:
            return BoundParameter(name, "constexpr", constant=1)
        value = parse(f"stride({tensor.name}, {position})").text
        type_name = forced or ("i64" if self._wide(tensor, variant) else "i32")
        unit = aligned_elements(DTYPES[str(known.get(tensor.dtype, tensor.dtype))].size)
        divisible = unit if tensor.align_strides and not innermost else 1
        return BoundParameter(name, type_name, value=value, divisible=divisible)

    @staticmethod
    def _wide(tensor: records.Tensor, variant: VariantSpec) -> bool:
        return tensor.large or not variant.aligned

    def _default(self, parameter: Parameter) -> Any:
        value = parameter.default
        if not is_plain(value):
            raise self._scope.error(
                ("kernel",),
                f"the default of constexpr parameter '{parameter.name}' is {value!r}; a number, a boolean, text, a "
                "dtype, None or a tuple of these is allowed: bind the parameter",
            )
        return value


def _comma_hint(before: str, value: Any, key: str) -> str:
    """Return a hint for a `key` that is the rest of the expression before it: YAML splits braces at commas."""
    if not (isinstance(value, str) and value.count("(") > value.count(")") and key.count(")") > key.count("(")):
        return ""
    return f': inside braces, quote an expression that contains a comma: {before}: "{value}, {key}"'


def function_of(given: Any) -> str:
    """Return the `path.py:function` that a parameter is bound to; empty if none."""
    value = given.function if isinstance(given, BindSpec) else given
    return value if is_function(value) else ""


def bound_functions(launch: LaunchSpec) -> dict[str, str]:
    """The functions that a launch's parameters are bound to → one of these parameters."""
    named = [*launch.bind.items(), *(item for config in launch.configs for item in config.constants.items())]
    return {function_of(given): name for name, given in named if function_of(given)}
