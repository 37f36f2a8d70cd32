"""The scope in which parameters of one launch are bound: names, tensors, and values that each variant decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from aot.manifest.loading import Manifest
from aot.manifest.schema import LaunchSpec
from aot.manifest.yamlfile import Key, ManifestError
from aot.source.constants import Dtype, Layout
from aot_runtime.contract import records
from aot_runtime.contract.arch import EXPRESSION_NAMES
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import Expression, nearest, parse
from aot_runtime.contract.names import Scope, config_names
from aot_runtime.contract.partial_evaluation import UNKNOWN, partial_value
from aot_runtime.errors import ExpressionError

from .conditional_values import NULL, chosen, tests
from .constants import constant_fault
from .contract import positional
from .enum_scalars import Numbers, choice_numbers, number_of, with_numbers
from .kinds import with_derived_kinds
from .layouts import planned_layout


@dataclass(frozen=True)
class LaunchScope:
    """Reads the expressions that parameters of a launch's kernel are bound to.

    Every error is a `ManifestError` at the place where the manifest binds the parameter.
    """

    manifest: Manifest
    op: records.Op
    index: int

    @property
    def launch(self) -> LaunchSpec:
        return self.manifest.spec.ops[self.op.name].launches[self.index]

    @cached_property
    def by_name(self) -> Callable[[str], str | None]:
        """Return the expression that a parameter's name means; None if it means nothing."""
        return cache(self._find_by_name)

    def _find_by_name(self, name: str) -> str | None:
        if name in self.tensors or name in self.spaces or name in self.names:
            return name
        if name.removesuffix("_ptr") in self.tensors:
            return name.removesuffix("_ptr")
        found = []
        for tensor in self.op.tensors:
            prefix = f"stride_{tensor.name}_"
            dims = [dim.extent for dim in tensor.shape] + [str(i) for i in range(len(tensor.shape))]
            if name.startswith(prefix) and name.removeprefix(prefix) in dims:
                found.append(f"stride({tensor.name}, {name.removeprefix(prefix)})")
        if len(found) > 1:
            raise self.error(("kernel",), f"kernel parameter '{name}' may be {' or '.join(found)}: name one in `bind`")
        return found[0] if found else None

    @cached_property
    def tensors(self) -> dict[str, records.Tensor]:
        return {tensor.name: tensor for tensor in self.op.tensors}

    @cached_property
    def numbers(self) -> Numbers:
        """Numbers of choices, which are bound in their place."""
        return choice_numbers(self.manifest.spec.ops[self.op.name].scalars)

    @cached_property
    def spaces(self) -> dict[str, records.Workspace]:
        return {space.name: space for space in self.op.workspace}

    @cached_property
    def _sound(self) -> set[str]:
        return set()

    @cached_property
    def names(self) -> dict[str, type]:
        return Scope.of(self.op).all_names(self.op) | config_names(self.op.launches[self.index])

    @cached_property
    def kinds(self) -> dict[str, type]:
        return with_derived_kinds(self.names, self.op)

    def unbound(self, name: str) -> ManifestError:
        tensors = [tensor.name for tensor in self.op.tensors]
        strides = [f"stride_{t.name}_{dim.extent}" for t in self.op.tensors for dim in t.shape]
        known = [*tensors, *strides, *self.names, *(space.name for space in self.op.workspace)]
        return self.error(
            ("kernel",),
            f"kernel parameter '{name}' is not bound: it is not a tensor, stride_<tensor>_<dim>, dim, scalar, "
            f"constexpr, derived number or workspace, and `bind` does not name it{nearest(name, known)}",
        )

    def check_names(self, value: Expression, name: str) -> None:
        if value.text in self._sound:
            return
        if undefined := sorted(value.names - self.names.keys()):
            text = f"'{value.text}' uses undefined name '{undefined[0]}'{self._meant(undefined[0])}"
            text = f"'{value.text}' is a dtype: write {{dtype: {value.text}}}" if value.text in DTYPES else text
            raise self.error(self.place(name), f"parameter '{name}': {text}")
        try:
            value.check_names(self.names, self.tensors)
        except ExpressionError as error:
            raise self.error(self.place(name), f"parameter '{name}': {error}") from None
        self._sound.add(value.text)

    def _meant(self, name: str) -> str:
        """Suggest a similar name, out of all that may be bound; if there is none, list the op's own names."""
        every = [*self.tensors, *self.spaces, *self.names]
        close = nearest(name, every)
        return close if "did you mean" in close else nearest(name, [n for n in every if n not in EXPRESSION_NAMES])

    def parse(self, text: str, name: str) -> Expression:
        try:
            text = number_of(text, self.numbers) if text in self.numbers else with_numbers(text, self.numbers)
            return positional(parse(text), self.tensors)
        except ExpressionError as error:
            raise self.error(self.place(name), f"parameter '{name}': {error}") from None

    def constant(self, value: Expression, name: str, known: Mapping[str, Any]) -> Any:
        """Return the value if the point of a variant decides it, else `UNKNOWN`."""
        try:
            constant = partial_value(value, known)
        except ExpressionError as error:
            raise self.error(self.place(name), f"parameter '{name}': {error}") from None
        if fault := constant_fault(constant):
            raise self.error(self.place(name), f"parameter '{name}': '{value.text}' {fault}")
        return constant

    def built(self, text: str, name: str, known: Mapping[str, Any]) -> Any:
        """Return the value of an expression that a variant must decide."""
        value = self.chosen(self.parse(text, name), name, known)
        if value.text == NULL:
            return None
        self.check_names(value, name)
        constant = self.constant(value, name, known)
        if constant is UNKNOWN:
            raise self.error(
                self.place(name), f"'{value.text}' is not known when a variant is built, but '{name}' is a constexpr"
            )
        return constant

    def dtype(self, text: str, name: str, known: Mapping[str, Any]) -> Dtype:
        """Return the dtype that a name or an expression denotes."""
        is_name = text.isidentifier() and text not in self.names
        dtype = text if is_name else self.built(text, name, known)
        if dtype not in DTYPES:
            what = "not a dtype" if dtype == text else f"{dtype!r}, which is not a dtype"
            known_dtypes = [*self.op.dtypes, *DTYPES]
            raise self.error(
                self.place(name), f"parameter '{name}': '{text}' is {what}{nearest(str(dtype), known_dtypes)}"
            )
        return Dtype(DTYPES[dtype].triton)

    def layout(self, text: str, name: str, known: Mapping[str, Any], options: Mapping[str, Any]) -> Layout:
        """Return the Gluon layout that a text spells."""
        try:
            return planned_layout(text, lambda value: self.built(value, name, known), options)
        except ValueError as error:
            raise self.error(self.place(name), f"parameter '{name}': {error}") from None

    def chosen(self, value: Expression, name: str, known: Mapping[str, Any]) -> Expression:
        """Return the branch of a conditional that a variant takes, which must be decided when it is built."""
        for test in tests(value):
            self.check_names(test, name)
        try:
            value = chosen(value, known)
        except ExpressionError as error:
            raise self.error(self.place(name), f"parameter '{name}': {error}") from None
        tensors = sorted(value.names & (self.tensors.keys() | self.spaces.keys()))
        if next(tests(value), None) and (tensors or NULL in value.names):
            raise self.error(
                self.place(name),
                f"parameter '{name}': whether '{value.text}' is '{(tensors or [NULL])[0]}' must be known when a "
                "variant is built: by axes, dtype variables, `aligned`, or `given` of what has an axis",
            )
        return value

    def place(self, name: str) -> tuple[Key, ...]:
        """Return the place where the manifest binds a parameter or member: in `bind`, or at the kernel."""
        head, _, last = name.rpartition(".")
        if last.isdigit() and isinstance(self.launch.bind.get(head), list):
            return ("bind", head, int(last))
        found = (key for key in (name, head, name.partition(".")[0]) if key in self.launch.bind)
        return next((("bind", key) for key in found), ("kernel",))

    def error(self, path: tuple[Key, ...], message: str) -> ManifestError:
        where = ("ops", self.op.name, "launches", self.index, *path)
        return self.manifest.error(where, f"op '{self.op.name}', kernel '{self.launch.kernel}': {message}")
