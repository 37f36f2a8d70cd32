"""Writes each op's planner: one straight-line Python function from a call's layouts and scalars to a decision.

A planner checks the contract, resolves the dims, and picks the point on each axis, the specialisation, the config
and the grid. It touches no device, so `explain` uses the very same code. Its source is kept, to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from aot_runtime.contract import expressions
from aot_runtime.contract.arch import ARCHITECTURES, EXPRESSION_NAMES
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.layout import Layout
from aot_runtime.contract.names import Scope, axis_names, config_names, stride_position
from aot_runtime.contract.records import Index, Launch, Op, Variant
from aot_runtime.contract.validate import expression_faults, kernarg_texts, require_sound
from aot_runtime.errors import ArgumentError, BundleError, ExpressionError, NoVariantError

from .rules import Rules, pick_value

_BEFORE_OUTPUTS = ("tensors", "scalars", "require", "let")
"""Parts of a contract whose expressions are evaluated before the outputs are laid out."""


class LaunchDecision(msgspec.Struct, frozen=True):
    """One launch of a call: which variant, over which grid, and the value of every kernarg expression."""

    index: int
    variant: Variant
    grid: tuple[int, int, int]
    values: Mapping[str, Any]


class Decision(msgspec.Struct, frozen=True):
    """What a call becomes.

    Attributes:
        names: every name's value: dims, scalars, dtype variables, `let`, axes.
        aligned: the specialisation; `misaligned` says why not the aligned one.
        layouts: of every tensor that is there, allocated outputs included.
        workspaces: (name, bytes, whether zeroed).
    """

    names: Mapping[str, Any]
    aligned: bool
    misaligned: tuple[str, ...]
    layouts: Mapping[str, Layout]
    workspaces: tuple[tuple[str, int, bool], ...]
    launches: tuple[LaunchDecision, ...]


class Planner(msgspec.Struct, frozen=True):
    """An op's planner. `plan` is the generated function, whose `source` is kept; `decide` is the way to call it."""

    op: Op
    source: str
    plan: Callable[..., Decision]
    static: frozenset[str]
    """Scalars that a decision depends on; the others only travel into the kernarg segment."""

    def decide(
        self,
        layouts: Mapping[str, Layout | None],
        scalars: Mapping[str, Any],
        device: tuple[str, int],
        num_cus: int,
        arch: str,
    ) -> Decision:
        """What a call with these layouts and scalars, by name, becomes. Raises `ArgumentError`."""
        try:
            return self.plan(
                *(layouts.get(tensor.name) for tensor in self.op.tensors),
                *(scalars.get(scalar.name) for scalar in self.op.scalars),
                device,
                num_cus,
                arch,
            )
        except (ArithmeticError, TypeError) as error:
            raise ArgumentError(f"{self.op.name}: these arguments have no plan: {error}") from error


def build_planner(op: Op, variants: Iterable[Variant], backend: str) -> Planner:
    """Generate an op's planner. Raises `ExpressionError` when the contract's expressions are not sound."""
    table = {
        (
            variant.launch,
            tuple(variant.point[name] for name in axis_names(op)),
            variant.aligned,
            variant.config,
        ): variant
        for variant in variants
    }
    require_sound(op, expression_faults(op, table.values()))
    writer = _Writer(op, list(table.values()))
    source = writer.write()
    filename = f"<planner of {op.name}>"
    namespace: dict[str, Any] = {
        **expressions.FUNCTIONS,
        "_rules": Rules(op, backend),
        "_variants": table,
        "_axes": {axis.name: axis for axis in op.axes},
        "_pick": pick_value,
        "_sizes": DTYPES,
        "_columns": lambda arch: ARCHITECTURES[arch].constants.values(),
        "_Decision": Decision,
        "_Launch": LaunchDecision,
        "_no_variant": lambda tried: no_variant(op, table.values(), tried),
        "_ArgumentError": ArgumentError,
    }
    exec(compile(source, filename, "exec"), namespace)
    return Planner(op, source, namespace[f"plan_{op.name}"], writer.static)


def op_planner(index: Index, name: str) -> Planner:
    """The planner of a bundle's op. Raises `ArgumentError` if there is none, `BundleError` if it is not sound."""
    ops = {op.name: op for op in index.ops}
    if name not in ops:
        raise ArgumentError(f"bundle '{index.name}' has no op '{name}'{expressions.nearest(name, tuple(ops))}")
    variants = (variant for variant in index.variants if variant.op == name)
    try:
        return build_planner(ops[name], variants, index.target.backend)
    except ExpressionError as error:
        raise BundleError(f"bundle '{index.name}', {error}") from None


def no_variant(op: Op, variants: Iterable[Variant], tried: list[str]) -> NoVariantError:
    """The error of a call that the contract allows and nothing was built for."""
    there = {name: sorted({v.point[name] for v in variants}, key=str) for name in axis_names(op)}
    listed = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in there.items())
    denied = "".join(f"\n  left out: {item.when}: {item.reason}" for item in op.denied)
    why = "".join(f"\n  {reason}" for reason in tried)
    return NoVariantError(f"{op.name}: no variant of this bundle fits the call:{why}\n  built: {listed}{denied}")


class _Writer:
    def __init__(self, op: Op, variants: list[Variant]):
        self.op, self.scope = op, Scope.of(op)
        self.lines: list[str] = []
        self.depth = 0
        self.kernargs = kernarg_texts(op, variants)
        self.reads = self._reads()
        self.static = self._static()

    def _is_output(self, name: str | int) -> bool:
        return self.scope.subjects[str(name)].role == "output"

    def _texts(self) -> Iterable[str]:
        for _, text, _ in self.scope.expressions(self.op):
            yield text
        for texts in self.kernargs.values():
            yield from texts

    def _reads(self) -> set[tuple[str | int, ...]]:
        return {query for text in self._texts() for query in expressions.parse(text).queries}

    def _static(self) -> frozenset[str]:
        scalars = {scalar.name: scalar for scalar in self.op.scalars}
        used = {name for _, text, _ in self.scope.expressions(self.op) for name in expressions.parse(text).names}
        for texts in self.kernargs.values():
            used |= {name for text in texts if text not in scalars for name in expressions.parse(text).names}
        limited = {
            name for name, s in scalars.items() if s.type in ("flag", "choice", "i1") or (s.min, s.max) != (None, None)
        }
        return frozenset(scalars.keys() & (used | limited))

    # The source

    def write(self) -> str:
        op = self.op
        arguments = [tensor.name for tensor in op.tensors] + [scalar.name for scalar in op.scalars]
        self.put(f"def plan_{op.name}({', '.join([*arguments, '_device', 'num_cus', 'arch'])}):")
        self.depth = 1
        self.put(f"{', '.join(EXPRESSION_NAMES)} = _columns(arch)")
        self._inputs()
        self._dims()
        self._scalars()
        self._requirements()
        self._shapes()
        self._outputs()
        self._specialisation()
        self.put("_tried = []")
        self.put("for aligned in (False,) if _misaligned else (True, False):")
        self.depth = 2
        self._point()
        for index, launch in enumerate(op.launches):
            self._launch(index, launch)
        self._decision()
        self.depth = 1
        self.put("raise _no_variant(_tried)")
        return "\n".join(self.lines) + "\n"

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def block(self, header: str, *lines: str) -> None:
        self.put(header)
        self.depth += 1
        for line in lines:
            self.put(line)
        self.depth -= 1

    def _inputs(self) -> None:
        self.put("# tensors: rank, dtype, contiguity")
        inputs = [tensor for tensor in self.op.tensors if tensor.role != "output"]
        for tensor in inputs:
            if tensor.optional:
                self.block(f"if {tensor.name} is not None:", f"_rules.form({tensor.name!r}, {tensor.name})")
            else:
                self.put(f"_rules.given({tensor.name!r}, {tensor.name})")
        self.put(f"_rules.same_device({self._dict([t.name for t in self.op.tensors])})")
        for variable in self.op.dtypes:
            named = [tensor.name for tensor in inputs if tensor.dtype == variable]
            self.put(f"{variable} = _rules.dtype({variable!r}, {', '.join(f'{name}={name}' for name in named)})")
        for function, subject, *_ in sorted(self.reads, key=str):
            name = str(subject)
            if function == "given":
                self.put(f"{expressions.query_name('given', name)} = {name} is not None")
            elif function == "elsize":
                tensor_dtype = self.scope.subjects[name].dtype if name in self.scope.subjects else name
                source = tensor_dtype if tensor_dtype in self.op.dtypes else repr(tensor_dtype)
                self.put(f"{expressions.query_name('elsize', name)} = _sizes[{source}]")
        self._strides(outputs=False)

    def _strides(self, outputs: bool) -> None:
        """Strides as kernels get them, 0 along an extent of 1; and which dim is the innermost."""
        for function, subject, *rest in sorted(self.reads, key=str):
            if function == "stride" and self._is_output(subject) == outputs:
                name = expressions.query_name("stride", str(subject), rest[0])
                position = stride_position(self.scope.subjects[str(subject)], rest[0])
                self.put(f"{name} = {subject}.steps[{position}] if {subject} is not None else 0")
            elif function == "innermost" and self._is_output(subject) == outputs:
                name = expressions.query_name("innermost", str(subject), rest[0])
                position = stride_position(self.scope.subjects[str(subject)], rest[0])
                found = f"_rules.innermost({str(subject)!r}, {subject})"
                self.put(f"{name} = {subject} is not None and {found} == {position}")

    def _dims(self) -> None:
        self.put("# dims")
        for name, source in self.scope.dims.items():
            value = f"{source.tensor}.shape[{source.position}]"
            if source.inverse != "extent":
                inverse = expressions.parse(source.inverse).python
                value = f"(lambda extent: {inverse})({value})"
            absent = f" if {source.tensor} is not None else 0" if source.optional else ""
            self.put(f"{name} = {value}{absent}")
        limits = {limit.name: (limit.min, limit.max) for limit in self.op.dims}
        for name, source in self.scope.dims.items():
            low, high = limits.get(name, (1, 2**31 - 1))
            guard = f"if {source.tensor} is not None: " if source.optional else ""
            self.put(f"{guard}_rules.dim({name!r}, {name}, {low}, {high})")

    def _scalars(self) -> None:
        if self.op.scalars:
            self.put("# scalars")
        for scalar in self.op.scalars:
            if scalar.default:
                self.block(f"if {scalar.name} is None:", f"{scalar.name} = {self.py(scalar.default)}")
            self.put(f"{scalar.name} = _rules.scalar({scalar.name!r}, {scalar.name})")

    def _requirements(self) -> None:
        if self.op.require or self.op.let:
            self.put("# requirements")
        for text in self.op.require:
            shown = self._dict(sorted(expressions.parse(text).names))
            self.put(f"_rules.require({text!r}, {self.py(text)}, {shown})")
        for let in self.op.let:
            self.put(f"{let.name} = _rules.let({let.name!r}, {self.py(let.value)})")

    def _shapes(self) -> None:
        self.put("# every extent agrees")
        for tensor in self.op.tensors:
            if tensor.role == "output":
                continue
            guard = f"if {tensor.name} is not None: " if tensor.optional else ""
            for i, dim in enumerate(tensor.shape):
                source = self.scope.dims.get(dim.extent)
                if source is None or (source.tensor, source.position) != (tensor.name, i):
                    self.put(f"{guard}_rules.extent({tensor.name!r}, {i}, {tensor.name}, {self.py(dim.extent)})")

    def _outputs(self) -> None:
        outputs = [tensor for tensor in self.op.tensors if tensor.role == "output"]
        if outputs:
            self.put("# outputs")
        for tensor in outputs:
            dtype = tensor.dtype if tensor.dtype in self.op.dtypes else repr(tensor.dtype)
            shape = "".join(f"{self.py(dim.extent)}, " for dim in tensor.shape)
            when = self.py(tensor.when) if tensor.when else "True"
            name = tensor.name
            self.put(f"{name} = _rules.output({name!r}, {when}, {name}, {dtype}, ({shape}), _device)")
            if tensor.dtype in self.op.dtypes:
                inputs = (t for t in self.op.tensors if t.role != "output" and not t.optional)
                first = next(t.name for t in inputs if t.dtype == tensor.dtype)
                self.put(f"_rules.dtype({tensor.dtype!r}, {first}={first}, {name}={name})")
        self._strides(outputs=True)

    def _specialisation(self) -> None:
        self.put("# specialisation")
        self.put(f"_layouts = {self._dict([tensor.name for tensor in self.op.tensors])}")
        self.put("_rules.reach(_layouts)")
        self.put(f"_misaligned = _rules.misalignment(_layouts, {self._dict(self.op.align)})")

    def _point(self) -> None:
        for axis in self.op.axes:
            self.put(f"{axis.name} = _pick(_axes[{axis.name!r}], {self.py(axis.pick)})")
            rule = axis.pick if axis.rule == "equal" else f"{axis.rule} {axis.pick}"
            reason = f"{axis.name}: none of {list(axis.values)} is picked by {rule}"
            self.block(f"if {axis.name} is None:", f"_tried.append({reason!r})", "continue")
        self.put(f"_point = ({''.join(f'{name}, ' for name in axis_names(self.op))})")
        self.put("_launches = []")

    def _launch(self, index: int, launch: Launch) -> None:
        start = self.depth
        self.put(f"# launch {index}: {launch.kernel}")
        if launch.when:
            self.put(f"if {self.py(launch.when)}:")
            self.depth += 1
        holds = "".join(f"({i}, {self.py(c.when) if c.when else 'True'}), " for i, c in enumerate(launch.configs))
        self.put(f"for _config, _holds in ({holds}):")
        self.block(
            f"    _variant = _variants.get(({index}, _point, aligned, _config)) if _holds else None",
            "if _variant is not None: break",
        )
        point = ", ".join(f"{name}={{{name}}}" for name in axis_names(self.op))
        self.block("else:", f"_tried.append(f'{launch.kernel}[{point}], aligned={{aligned}}: not built')", "continue")
        names = config_names(launch)
        if names:
            values = [tuple(config.values[name] for name in names) for config in launch.configs]
            self.put(f"{''.join(f'{name}, ' for name in names)}= {values!r}[_config]")
        self.put(f"_grid = _rules.grid(({', '.join(self.py(extent) for extent in launch.grid)}), _variant)")
        values_of = ", ".join(f"{text!r}: {self.py(text)}" for text in self.kernargs[index])
        self.put(f"_launches.append(_Launch({index}, _variant, _grid, {{{values_of}}}))")
        self.depth = start

    def _decision(self) -> None:
        spaces = "".join(
            f"({space.name!r}, _rules.nbytes({space.name!r}, {space.dtype!r}, "
            f"({''.join(f'{self.py(extent)}, ' for extent in space.shape)})), {space.zero}), "
            for space in self.op.workspace
        )
        names = [*self.scope.dims, *(scalar.name for scalar in self.op.scalars), *(let.name for let in self.op.let)]
        shown = self._dict([*names, *axis_names(self.op), "aligned", "num_cus", *EXPRESSION_NAMES])
        self.put(f"_names = {shown}")
        for query in sorted(self.reads, key=str):
            name = expressions.query_name(*map(str, query))
            self.put(f"_names[{name!r}] = {name}")
        self.put(
            "return _Decision(_names, aligned, _misaligned, "
            "{name: layout for name, layout in _layouts.items() if layout is not None}, "
            f"({spaces}), (*_launches,))"
        )

    def py(self, text: str) -> str:
        return expressions.parse(text).python

    def _dict(self, names: Iterable[str]) -> str:
        return "{" + ", ".join(f"{name!r}: {name}" for name in names) + "}"
