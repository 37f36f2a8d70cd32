"""Complete an op from its kernel's decorators, so that the manifest need not repeat them.

The configs of `@triton.autotune` become available to `from_kernel`. A value of `@triton.heuristics` that the manifest
does not give becomes an entry of `bind` if the point of a variant decides it, an axis if it is a condition, and an
option of each config if it is a constant.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aot.manifest.loading import Manifest
from aot.manifest.optional_tensor_axes import op_axes
from aot.manifest.schema import AxisSpec, BindSpec, ConfigSpec, OpSpec
from aot.manifest.yamlfile import ManifestError
from aot.source.autotuning import Heuristic, Other, TunedConfig
from aot.source.kernel_source import KernelSource, NotPlain
from aot_runtime.contract.arch import EXPRESSION_NAMES
from aot_runtime.contract.expressions import Expression, parse
from aot_runtime.contract.partial_evaluation import partial_value
from aot_runtime.errors import ExpressionError

from .conditional_values import NULL
from .configs import launch_name
from .constants import literal
from .kinds import value_kind


def with_kernels(manifest: Manifest, op: str, kernels: Mapping[int, KernelSource]) -> Manifest:
    """Return the manifest, with an op completed from the decorators of its kernels. Raises `ManifestError`.

    Args:
        kernels: the kernels of launches, by position. The others' decorators are not looked at.
    """
    spec = manifest.spec.ops[op]
    configs: dict[str, tuple[ConfigSpec, ...]] = {}
    for index, kernel in kernels.items():
        launch = spec.launches[index]
        if kernel.autotuning.fault and any(config.from_kernel is not None for config in launch.configs):
            message = f"the configs of '{launch.kernel}' cannot be taken from it: {kernel.autotuning.fault}"
            raise manifest.error(("ops", op, "launches", index, "configs"), f"op '{op}': {message}")
        if kernel.autotuning.configs and launch.kernel not in configs:
            configs[launch.kernel] = tuple(
                _config(manifest, op, index, number, config) for number, config in enumerate(kernel.autotuning.configs)
            )
        for heuristic in kernel.autotuning.heuristics:
            taken = _Taking(manifest, op, spec, index, kernel, configs.get(launch.kernel, ()))
            spec = taken.of(heuristic)
    if spec is manifest.spec.ops[op] and not configs:
        return manifest
    return manifest.with_op(op, spec, configs)


def _config(manifest: Manifest, op: str, index: int, number: int, config: TunedConfig) -> ConfigSpec:
    for name, value in (*config.blocks, *config.options):
        if isinstance(value, Other):
            kernel = manifest.spec.ops[op].launches[index].kernel
            message = f"config {number} of '{kernel}' has {name} = {value.text}; a number, a boolean or text is allowed"
            raise manifest.error(("ops", op, "launches", index, "configs"), f"op '{op}': {message}")
    return ConfigSpec.model_construct(blocks=dict(config.blocks), options=dict(config.options), name="", when="")


class _Taking:
    """Adds the heuristics of one launch's kernel to an op."""

    def __init__(
        self,
        manifest: Manifest,
        op: str,
        spec: OpSpec,
        index: int,
        kernel: KernelSource,
        tuned: Sequence[ConfigSpec],
    ):
        self._manifest, self._op, self._spec, self._index, self._kernel = manifest, op, spec, index, kernel
        self._launch = spec.launches[index]
        self._written = self._launch.configs or [ConfigSpec.model_validate({})]
        self._configs = [self._whole(entry, tuned) for entry in self._written]
        tuning = manifest.tuning(op)
        laid = [item.launches.get(launch_name(self._launch), []) for item in tuning.spec.tuning] if tuning else []
        self._laid = [self._whole(entry, tuned) for entries in laid for entry in entries]

    def of(self, heuristic: Heuristic) -> OpSpec:
        name = heuristic.name
        parameters = {parameter.name for parameter in self._kernel.parameters}
        group = "blocks" if name in parameters else "options"
        # A heuristic comes after the kernel's own configs, and changes what they say.
        given = all(name in getattr(config, group) for config in self._written)
        if given or name in self._launch.bind or name in op_axes(self._spec):
            return self._spec
        value = self._value(heuristic)
        if group == "options":
            return self._with_option(heuristic, value)
        if self._is_known(value):
            return self._with_launch({"bind": {**self._launch.bind, name: value.text}})
        if self._is_condition(value):
            axis = AxisSpec(values=[False, True], pick=value.text)
            return self._spec.model_copy(update={"constexprs": {**self._spec.constexprs, name: axis}})
        written = f"constexprs: {{{name}: {{values: [...], pick: {value.text!r}}}}}"
        raise self._error(heuristic, f"differs from call to call. List the values to compile: `{written}`")

    def _with_option(self, heuristic: Heuristic, value: Expression) -> OpSpec:
        try:
            constant = partial_value(value, {})
        except ExpressionError as error:
            raise self._error(heuristic, str(error)) from None
        if not isinstance(constant, bool | int | float | str):
            written = f"configs: [{{when: ..., options: {{{heuristic.name}: ...}}}}, ...]"
            raise self._error(heuristic, f"is a compiler option that depends on the call. Write `{written}`")
        new = [c.model_copy(update={"options": {heuristic.name: constant, **c.options}}) for c in self._written]
        return self._with_launch({"configs": new})

    def _with_launch(self, update: Mapping[str, Any]) -> OpSpec:
        launches = list(self._spec.launches)
        launches[self._index] = self._launch.model_copy(update=update)
        return self._spec.model_copy(update={"launches": launches})

    def _value(self, heuristic: Heuristic) -> Expression:
        """Return the heuristic's expression, with the op's expressions in place of the kernel's arguments."""
        function = heuristic.function
        if not function.expression:
            raise self._error(heuristic, f"is not an expression: {function.reason}. Bind it")
        try:
            tree = _Substitution(self, heuristic).visit(ast.parse(function.expression, mode="eval").body)
            return parse(ast.unparse(tree))
        except ExpressionError as error:
            raise self._error(heuristic, f"is not an expression: {error}") from None

    def meaning(self, heuristic: Heuristic, name: str) -> ast.expr:
        op, bind = self._spec, self._launch.bind
        if name in bind:
            given = bind[name]
            if given is None:
                return _tree(NULL)
            value = given.value if isinstance(given, BindSpec) else given
            if value is not None:
                return _ConfigNames(self, heuristic).visit(_tree(str(value)))
        dims = [str(dim).partition("|")[0] for tensor in op.tensors.values() for dim in tensor.shape]
        if name in (*op.tensors, *op.scalars, *op.dtypes, *op_axes(op), *op.derived, *dims):
            return ast.Name(name)
        if name.removesuffix("_ptr") in op.tensors:
            return ast.Name(name.removesuffix("_ptr"))
        for tensor, spec in op.tensors.items():
            dim = name.removeprefix(f"stride_{tensor}_")
            if dim != name and (dim in map(str, spec.shape) or dim.isdigit()):
                return _tree(f"stride({tensor}, {dim})")
        if (constant := self.constant(heuristic, name)) is not None:
            return constant
        default = next((item for item in self._kernel.parameters if item.name == name and item.has_default), None)
        if default is not None and not isinstance(default.default, NotPlain | tuple):
            return _tree(NULL if default.default is None else literal(default.default))
        raise self._error(heuristic, f"depends on {name}, which the op does not define. Bind it")

    def constant(self, heuristic: Heuristic, name: str) -> ast.expr | None:
        """Return the value that all configs have for a name; None if no config has it."""
        values = {config.blocks[name] for config in (*self._configs, *self._laid) if name in config.blocks}
        if len(values) > 1 or (values and not all(name in config.blocks for config in self._configs)):
            raise self._error(heuristic, f"depends on {name}, which differs by config. Bind it")
        return _tree(literal(values.pop())) if values else None

    def is_there(self, tensor: str) -> bool:
        """Return True if every call has the tensor: it is not optional."""
        spec = self._spec.tensors.get(tensor)
        return spec is None or (not spec.optional and spec.when == "")

    def _whole(self, entry: ConfigSpec, tuned: Sequence[ConfigSpec]) -> ConfigSpec:
        if entry.from_kernel is None or entry.from_kernel >= len(tuned):
            return entry
        base = tuned[entry.from_kernel]
        update = {"blocks": {**base.blocks, **entry.blocks}, "options": {**base.options, **entry.options}}
        return entry.model_copy(update=update)

    def _is_known(self, value: Expression) -> bool:
        axes = op_axes(self._spec)
        picks = {str(axis.pick) for axis in axes.values()}
        known = {*axes, *self._spec.dtypes, *EXPRESSION_NAMES, "aligned"}
        asked = all(
            function == "elsize" or (function == "given" and f"given({tensor})" in picks)
            for function, tensor, *_ in value.queries
        )
        return asked and value.names <= known

    def _is_condition(self, value: Expression) -> bool:
        return value_kind(value, dict.fromkeys(value.names, int)) is bool

    def _error(self, heuristic: Heuristic, message: str) -> ManifestError:
        function = heuristic.function
        file = Path(function.file)
        file = file.relative_to(self._manifest.root) if file.is_relative_to(self._manifest.root) else file
        place = f" ({file}:{function.line})" if function.file else ""
        where = ("ops", self._op, "launches", self._index, "kernel")
        text = " ".join(function.source.split())
        bound = f": `bind: {{{heuristic.name}: ...}}`" if message.endswith("Bind it") else ""
        return self._manifest.error(
            where, f"op '{self._op}': the heuristic {heuristic.name} = `{text}`{place} {message}{bound}"
        )


class _Substitution(ast.NodeTransformer):
    """Replaces names of the kernel's arguments by the op's expressions for them."""

    def __init__(self, taking: _Taking, heuristic: Heuristic):
        self._taking, self._heuristic = taking, heuristic

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._taking.meaning(self._heuristic, node.id)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Keep names of functions, and evaluate `given` for `null` and for tensors that are always present."""
        assert isinstance(node.func, ast.Name)
        arguments = [self.visit(argument) for argument in node.args]
        if node.func.id == "given":
            tensor = ast.unparse(arguments[0])
            if tensor == NULL or self._taking.is_there(tensor):
                return ast.Constant(tensor != NULL)
        return ast.Call(node.func, arguments, [])


class _ConfigNames(ast.NodeTransformer):
    """Replaces names of configs' constants by their values, in the binding of a parameter."""

    def __init__(self, taking: _Taking, heuristic: Heuristic):
        self._taking, self._heuristic = taking, heuristic

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._taking.constant(self._heuristic, node.id) or node


def _tree(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
