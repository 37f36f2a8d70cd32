"""From a variant and its kernel's parameters to a compile job, and to what each kernarg is at a call.

A parameter is bound by its name (a tensor, `<tensor>_ptr`, `stride_<tensor>_<dim>`, a dim, a scalar, an axis or config
constexpr, a derived number, a workspace, `num_cus`), or by the launch's `bind`; one that is a named tuple, member by
member. What the point of a variant decides (an absent tensor, the unit stride of a contiguous dim, a literal) is folded
into the code as a constant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from aot.compile.constants import Constant, Dtype
from aot.compile.kernel_source import Parameter
from aot.manifest.loading import Manifest
from aot.manifest.schema import BindSpec, Expr, LaunchSpec, is_function
from aot.manifest.yamlfile import Key, ManifestError
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import UNKNOWN, Expression, nearest, parse, query_name
from aot_runtime.contract.names import Scope, config_names
from aot_runtime.errors import ExpressionError

from .alternatives import NULL, chosen, tests
from .bound import TRITON_DTYPES, Bound
from .choices import Numbers, choice_numbers, number_of, with_numbers
from .configs import config_error
from .constants import constant_fault, kind_fault, literal
from .contract import positional
from .kinds import value_kind, with_derived_kinds
from .members import Absent, MemberError, Value, as_value, member_values
from .variants import VariantSpec


@dataclass(frozen=True)
class Binder:
    """Binds the parameters of one launch's kernel; made once per launch, used for each of its variants."""

    manifest: Manifest
    op: records.Op
    index: int
    parameters: tuple[Parameter, ...]
    arch: str

    def check(self) -> None:
        """Raise `ManifestError` for a `bind` entry or a block of a config that the kernel has no parameter for."""
        names = [item.name for parameter in self.parameters for item in (parameter, *parameter.members)]
        for key in self.launch_spec.bind:
            if key not in names:
                raise self._error(("bind", key), f"kernel has no parameter '{key}'{nearest(key, names)}")
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
                        f"config '{config.name}': '{key}' is no constexpr parameter of '{self.launch_spec.kernel}'"
                        f"{nearest(key, constexprs)}",
                    )

    @property
    def launch_spec(self) -> LaunchSpec:
        return self.manifest.spec.ops[self.op.name].launches[self.index]

    def bind(self, variant: VariantSpec) -> tuple[Bound, ...]:
        """What every parameter is in a variant, in the kernel's order. Raises `ManifestError`."""
        known = dict(variant.constants)
        return tuple(
            bound
            for parameter in self.parameters
            for item, value in self._parts(parameter)
            for bound in self._bind_part(item, value, variant, known)
        )

    def _parts(self, parameter: Parameter) -> Iterable[tuple[Parameter, Value | None]]:
        """(parameter or member, what it is bound to or None)."""
        if not parameter.members:
            bind, name = self.launch_spec.bind, parameter.name
            return [(parameter, as_value(bind[name]) if name in bind else None)]
        values = self._members[parameter.name]
        return [(member, values[member.name]) for member in parameter.members]

    @cached_property
    def _members(self) -> dict[str, dict[str, Value]]:
        found = {}
        for parameter in self.parameters:
            if parameter.members:
                try:
                    bind = self.launch_spec.bind
                    found[parameter.name] = member_values(parameter, bind, self._tensors, self._by_name)
                except MemberError as error:
                    raise self._error(self._place(parameter.name), str(error)) from None
        return found

    def _bind_part(
        self, part: Parameter, value: Value | None, variant: VariantSpec, known: Mapping[str, Any]
    ) -> Iterator[Bound]:
        if isinstance(value, Absent):
            yield Bound(part.name, "constexpr", constant=value.constant)
        elif isinstance(value, tuple):
            for i, operand in enumerate(value):
                yield self._bind(Parameter(f"{part.name}.{i}", False), operand, variant, known)
        else:
            yield self._bind(part, value, variant, known)

    def _bind(
        self, parameter: Parameter, given: Expr | BindSpec | None, variant: VariantSpec, known: Mapping[str, Any]
    ) -> Bound:
        if isinstance(given, BindSpec) and (given.dims is not None or given.operands):
            key = "dims" if given.dims is not None else "operands"
            raise self._error(
                self._place(parameter.name), f"parameter '{parameter.name}' is no tuple, so `{key}` mean nothing to it"
            )
        if parameter.constexpr:
            return self._bind_constexpr(parameter, given, variant, known)
        if given is None:
            given = self._by_name(parameter.name)
            if given is None and parameter.has_default:
                return Bound(parameter.name, "constexpr", constant=self._default(parameter))
            if given is None:
                raise self._unbound(parameter.name)
        if isinstance(given, BindSpec) and given.dtype is not None:
            raise self._error(
                self._place(parameter.name),
                f"a dtype is bound to '{parameter.name}', which is no constexpr: a kernel takes no dtype at run time",
            )
        if function_of(given):
            raise self._error(
                self._place(parameter.name),
                f"'{function_of(given)}' is a function, but '{parameter.name}' is no constexpr",
            )
        forced = given.type if isinstance(given, BindSpec) else None
        value = given.value if isinstance(given, BindSpec) else given
        expression = self._parse(str(value), parameter.name)
        return self._bind_value(parameter.name, expression, forced, variant, known, parameter.type)

    def _bind_constexpr(
        self, parameter: Parameter, given: Any, variant: VariantSpec, known: Mapping[str, Any]
    ) -> Bound:
        name = parameter.name
        if given is None:
            by_name = {**dict(variant.options), **known}  # as Triton passes its options to parameters of their names
            if name in by_name:
                return Bound(name, "constexpr", constant=by_name[name])
            if parameter.has_default:
                return Bound(name, "constexpr", constant=self._default(parameter))
            raise self._error(
                ("kernel",),
                f"constexpr parameter '{name}' of the kernel is not bound: no axis, block or option of the config, or "
                f"bind of that name"
                f"{nearest(name, [item for item in known if not item.startswith('_')])}",
            )
        if function := function_of(given):
            return Bound(name, "constexpr", function=function)
        if isinstance(given, BindSpec) and given.dtype is not None:
            constant: Constant = self._dtype(str(given.dtype), name, known)
        else:
            constant = self._built(str(given.value if isinstance(given, BindSpec) else given), name, known)
        if fault := kind_fault(parameter, constant):
            raise self._error(self._place(name), f"parameter '{name}': {fault}")
        return Bound(name, "constexpr", constant=constant)

    def _built(self, text: str, name: str, known: Mapping[str, Any]) -> Any:
        """The value of an expression that a variant decides."""
        value = self._chosen(self._parse(text, name), name, known)
        if value.text == NULL:
            return None
        self._check_names(value, name)
        constant = self._constant(value, name, known)
        if constant is UNKNOWN:
            raise self._error(self._place(name), f"'{value.text}' is not known at build, but '{name}' is a constexpr")
        return constant

    def _dtype(self, text: str, name: str, known: Mapping[str, Any]) -> Dtype:
        """The dtype of that name, or that an expression names."""
        is_name = text.isidentifier() and text not in self._names
        dtype = text if is_name else self._built(text, name, known)
        if dtype not in TRITON_DTYPES:
            what = "no dtype" if dtype == text else f"{dtype!r}, which is no dtype"
            known_dtypes = [*self.op.dtypes, *DTYPES]
            raise self._error(
                self._place(name), f"parameter '{name}': '{text}' is {what}{nearest(str(dtype), known_dtypes)}"
            )
        return Dtype(TRITON_DTYPES[dtype])

    def _chosen(self, value: Expression, name: str, known: Mapping[str, Any]) -> Expression:
        """The branch of a conditional that a variant has, where that is decided when it is built."""
        for test in tests(value):
            self._check_names(test, name)
        try:
            value = chosen(value, known)
        except ExpressionError as error:
            raise self._error(self._place(name), f"parameter '{name}': {error}") from None
        tensors = sorted(value.names & (self._tensors.keys() | self._spaces.keys()))
        if next(tests(value), None) and (tensors or NULL in value.names):
            raise self._error(
                self._place(name),
                f"parameter '{name}': whether '{value.text}' is '{(tensors or [NULL])[0]}' must be known when a "
                "variant is built: by axes, dtype variables, `aligned`, or `given` of what has an axis",
            )
        return value

    def _bind_value(
        self,
        name: str,
        value: Expression,
        forced: str | None,
        variant: VariantSpec,
        known: Mapping[str, Any],
        annotated: str = "",
    ) -> Bound:
        value = self._chosen(value, name, known)
        plain = value.text
        spaces, tensors = self._spaces, self._tensors
        if plain == NULL:
            return Bound(name, "constexpr", constant=None)
        if plain in spaces:
            dtype = str(known.get(spaces[plain].dtype, spaces[plain].dtype))
            return Bound(name, f"*{TRITON_DTYPES[dtype]}", value=plain, dtype=dtype, divisible=True)
        if plain in tensors:
            if known.get(query_name("given", plain)) is False:
                return Bound(name, "constexpr", constant=None)
            tensor = tensors[plain]
            dtype = str(known.get(tensor.dtype, tensor.dtype))
            pointer = f"*{TRITON_DTYPES[dtype]}"
            return Bound(name, pointer, value=plain, dtype=dtype, divisible=tensor.align, ranged=not tensor.large)
        self._check_names(value, name)
        strides = [query for query in value.queries if query[0] == "stride"]
        if len(strides) == 1 and plain == parse(f"stride({strides[0][1]}, {strides[0][2]})").text:
            stride = self._stride(name, tensors[str(strides[0][1])], int(strides[0][2]), forced, variant, known)
            typed = annotated and not forced and stride.type != "constexpr"
            return dataclasses.replace(stride, type=annotated) if typed else stride
        forced = forced or annotated
        constant = self._constant(value, name, known)
        if constant is not UNKNOWN:
            if forced:  # kept: a constant would be an i32 or fp32 in the kernel
                return Bound(name, forced, value=literal(constant))
            return Bound(name, "constexpr", constant=constant)
        wide = any(self._wide(tensors[str(tensor)], variant) for _, tensor, *_ in strides)
        return Bound(name, forced or self._type(value, name, wide), value=plain, divisible=plain in self.op.divisible)

    def _type(self, value: Expression, name: str, wide: bool) -> str:
        """The kernarg type of an expression: a scalar has its own; an integer is an i64 where `wide`, else an i32."""
        scalars = {scalar.name: scalar.type for scalar in self.op.scalars}
        if scalars.get(value.text, "choice") not in ("choice", "flag"):
            return scalars[value.text]
        kind = value_kind(value, self._kinds)
        if kind is str:
            raise self._error(
                self._place(name),
                f"parameter '{name}': '{value.text}' is text, which a kernel cannot take at run time; make it a "
                "constexpr, picked by it, or give its choices numbers",
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
    ) -> Bound:
        if known.get(query_name("given", tensor.name)) is False:
            return Bound(name, "constexpr", constant=0)
        innermost = known.get(
            query_name("innermost", tensor.name, str(position)), tensor.contiguous[-1:] == (position,)
        )
        # A dim that may be broadcast has stride 0 then.
        if innermost and not tensor.shape[position].broadcast and forced is None:
            return Bound(name, "constexpr", constant=1)
        value = parse(f"stride({tensor.name}, {position})").text
        type_name = forced or ("i64" if self._wide(tensor, variant) else "i32")
        return Bound(name, type_name, value=value, divisible=tensor.align and not innermost)

    @staticmethod
    def _wide(tensor: records.Tensor, variant: VariantSpec) -> bool:
        """Whether offsets into a tensor may need 64 bits."""
        return tensor.large or not variant.aligned

    @cached_property
    def _by_name(self) -> Callable[[str], str | None]:
        """The expression that a parameter's name stands for; None where it stands for nothing."""
        return cache(self._find_by_name)

    def _find_by_name(self, name: str) -> str | None:
        if name in self._tensors or name in self._spaces or name in self._names:
            return name
        if name.removesuffix("_ptr") in self._tensors:
            return name.removesuffix("_ptr")
        for tensor in self.op.tensors:
            prefix = f"stride_{tensor.name}_"
            dims = [dim.extent for dim in tensor.shape] + [str(i) for i in range(len(tensor.shape))]
            if name.startswith(prefix) and name.removeprefix(prefix) in dims:
                return f"stride({tensor.name}, {name.removeprefix(prefix)})"
        return None

    @cached_property
    def _tensors(self) -> dict[str, records.Tensor]:
        return {tensor.name: tensor for tensor in self.op.tensors}

    @cached_property
    def _numbers(self) -> Numbers:
        """A choice that is bound to a parameter is its number."""
        return choice_numbers(self.manifest.spec.ops[self.op.name].scalars)

    @cached_property
    def _spaces(self) -> dict[str, records.Workspace]:
        return {space.name: space for space in self.op.workspace}

    @cached_property
    def _sound(self) -> set[str]:
        """Texts of the expressions whose names were checked."""
        return set()

    @cached_property
    def _names(self) -> dict[str, type]:
        return Scope.of(self.op).all_names(self.op) | config_names(self.op.launches[self.index])

    @cached_property
    def _kinds(self) -> dict[str, type]:
        return with_derived_kinds(self._names, self.op)

    def _unbound(self, name: str) -> ManifestError:
        tensors = [tensor.name for tensor in self.op.tensors]
        strides = [f"stride_{t.name}_{dim.extent}" for t in self.op.tensors for dim in t.shape]
        known = [*tensors, *strides, *self._names, *(space.name for space in self.op.workspace)]
        return self._error(
            ("kernel",),
            f"kernel parameter '{name}' is not bound: it is no tensor, stride_<tensor>_<dim>, dim, scalar, constexpr, "
            f"derived number or workspace, and `bind` does not name it{nearest(name, known)}",
        )

    def _check_names(self, value: Expression, name: str) -> None:
        if value.text in self._sound:
            return
        try:
            value.check_names(self._names, self._tensors)
        except ExpressionError as error:
            text = f"'{value.text}' is a dtype: write {{dtype: {value.text}}}" if value.text in DTYPES else error
            raise self._error(self._place(name), f"parameter '{name}': {text}") from None
        self._sound.add(value.text)

    def _parse(self, text: str, name: str) -> Expression:
        try:
            text = number_of(text, self._numbers) if text in self._numbers else with_numbers(text, self._numbers)
            return positional(parse(text), self._tensors)
        except ExpressionError as error:
            raise self._error(self._place(name), f"parameter '{name}': {error}") from None

    def _constant(self, value: Expression, name: str, known: Mapping[str, Any]) -> Any:
        """The value where the point of a variant decides it, else `UNKNOWN`."""
        try:
            constant = value.partial(known)
        except ExpressionError as error:
            raise self._error(self._place(name), f"parameter '{name}': {error}") from None
        if fault := constant_fault(constant):
            raise self._error(self._place(name), f"parameter '{name}': '{value.text}' {fault}")
        return constant

    def _default(self, parameter: Parameter) -> Any:
        value = parameter.default
        if value is not None and not isinstance(value, bool | int | float | str | Dtype):
            raise self._error(
                ("kernel",),
                f"the default of constexpr parameter '{parameter.name}' is {value!r}; a number, a boolean, text, a "
                "dtype or None is allowed: bind the parameter",
            )
        return value

    def _place(self, name: str) -> tuple[Key, ...]:
        """Where the manifest binds a parameter or member: in `bind`, or with the kernel itself."""
        found = (key for key in (name, name.partition(".")[0]) if key in self.launch_spec.bind)
        return next((("bind", key) for key in found), ("kernel",))

    def _error(self, path: tuple[Key, ...], message: str) -> ManifestError:
        where = ("ops", self.op.name, "launches", self.index, *path)
        return self.manifest.error(where, f"op '{self.op.name}', kernel '{self.launch_spec.kernel}': {message}")


def function_of(given: Any) -> str:
    """The `path.py:function` that a parameter is bound to; empty: to no function."""
    value = given.function if isinstance(given, BindSpec) else given
    return value if is_function(value) else ""


def bound_functions(launch: LaunchSpec) -> dict[str, str]:
    """The functions that a launch's parameters are bound to, by parameter."""
    return {name: function_of(given) for name, given in launch.bind.items() if function_of(given)}
