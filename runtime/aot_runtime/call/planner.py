"""Planning a call: from its layouts and scalars to what is launched, in ordinary code that walks the contract.

Only expressions are compiled. A planner is what can be prepared of it once per op; it touches no device, so that
`explain` takes the very same steps: `checking`, then `choosing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot_runtime.contract.arch import device_names
from aot_runtime.contract.expressions import nearest, parse
from aot_runtime.contract.layout import Layout
from aot_runtime.contract.names import Scope
from aot_runtime.contract.records import Index, Op, Variant
from aot_runtime.contract.validate import expression_faults, kernarg_texts, require_sound
from aot_runtime.errors import AotError, ArgumentError, BundleError, ExpressionError, NoVariantError

from .checking import Call, Checking
from .choosing import Choosing, Search
from .decision import Decision
from .documentation import built_dtypes
from .rules import Rules

if TYPE_CHECKING:
    from .changes import Arguments, Change
    from .entries import Describing, Entry

CALLS = "calls.yaml"
"""The calls file that errors speak of."""


class Planner:
    """An op's planner. Raises `ExpressionError` when the contract's expressions are not sound.

    Args:
        bundle: the name of the bundle that has the op; "" where it is in none yet.
        manifest: that of the bundle, as its provenance names it, for errors that say how to build what is missing.
        place: where the bundle lies, for these, too.
        is_complete: whether the bundle has all that its manifest has.

    Attributes:
        op: the contract.
        dtypes: of each dtype variable, those that something is built for.
        static: scalars that a decision depends on; the others only travel into the kernarg segment.
    """

    def __init__(
        self,
        op: Op,
        variants: Iterable[Variant],
        backend: str,
        bundle: str = "",
        manifest: str = "",
        place: Path | None = None,
        is_complete: bool = False,
    ):
        built = list(variants)
        require_sound(op, expression_faults(op, built))
        kernargs = kernarg_texts(op, built)
        texts = {text for _, text, _ in Scope.of(op).expressions(op)}
        passed = {text for group in kernargs.values() for text in group}
        self.op, self.bundle = op, bundle
        self._manifest, self._place, self._is_complete = manifest, place, is_complete
        self.dtypes = built_dtypes(op, built)
        self.static = _static(op, texts, passed)
        self._rules = rules = Rules(op, backend)
        self._checking = Checking(op, {query for text in texts | passed for query in parse(text).queries}, rules)
        self._choosing = Choosing(op, built, kernargs, rules)

    @cached_property
    def _describing(self) -> Describing:
        from .entries import Describing  # for a recording, or an error

        mapped = {name for names in self._choosing.maps.values() for name in names}
        return Describing(self.op, self.bundle, self.static, self._rules, mapped)

    def entry(
        self, layouts: Mapping[str, Layout | None], scalars: Mapping[str, Any], names: Mapping[str, Any]
    ) -> Entry:
        """A call in the words of a calls file. names: the values that follow from its arguments."""
        return self._describing.entry(layouts, scalars, names)

    def decide(
        self,
        layouts: Mapping[str, Layout | None],
        scalars: Mapping[str, Any],
        device: tuple[str, int],
        num_cus: int,
        arch: str,
        num_xcds: int | None = None,
    ) -> Decision:
        """What a call with these layouts and scalars, by name, becomes. Raises `ArgumentError`.

        Args:
            device: (driver name, device index), where outputs are allocated.
            num_cus: compute units of the device.
            arch: its architecture.
            num_xcds: its dies; by default as many as a whole GPU of the architecture has.
        """
        with self._named_failures():
            hardware = device_names(arch, num_cus, num_xcds)
            call = self._checking.check(layouts, scalars, device, hardware)

            def serves(changes: Iterable[Change]) -> bool:
                from .changes import Arguments  # for an error only

                return self._serves(Arguments(layouts, scalars, call.names), changes, device, hardware)

            try:
                return self._choosing.decide(call, serves)
            except NoVariantError as error:
                if self.bundle and error.may_be_had and not self._is_complete:
                    error.remedy = self._remedy(layouts, scalars, call)
                raise

    def lay_out(
        self,
        layouts: Mapping[str, Layout | None],
        scalars: Mapping[str, Any],
        device: tuple[str, int],
        num_cus: int,
        arch: str,
        num_xcds: int | None = None,
    ) -> Decision:
        """The same of a call that launches nothing, whatever is built: its outputs and names. Raises `ArgumentError`
        for one that breaks the contract."""
        with self._named_failures():
            call = self._checking.check(layouts, scalars, device, device_names(arch, num_cus, num_xcds))
        there = {name: layout for name, layout in call.layouts.items() if layout is not None}
        return Decision(call.names, False, (), there, (), ())

    def _serves(
        self, arguments: Arguments, changes: Iterable[Change], device: tuple[str, int], hardware: Mapping[str, Any]
    ) -> bool:
        try:
            changed = arguments.changed(self.op, changes, device)
            call = self._checking.check(changed.layouts, changed.scalars, device, hardware)
            return self._choosing.find(call, Search()) is not None
        except (AotError, ArithmeticError, TypeError):
            return False

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except (ArithmeticError, TypeError) as error:
            raise ArgumentError(f"{self.op.name}: these arguments have no plan: {error}") from error

    def _remedy(self, layouts: Mapping[str, Layout | None], scalars: Mapping[str, Any], call: Call) -> tuple[str, ...]:
        from .entries import entry_lines
        from .remedy import build_command

        command = build_command(self.bundle, self._manifest, self._place, call.names["arch"], CALLS)
        first = f"to have it built: `{command}`, with this in {CALLS}:"
        lines = [f"  {line}" for line in entry_lines(self.entry(layouts, scalars, call.names))]
        return (first, "  calls:", *(f"  {line}" for line in lines))


def _static(op: Op, texts: Iterable[str], kernargs: Iterable[str]) -> frozenset[str]:
    scalars = {scalar.name: scalar for scalar in op.scalars}
    computed = (text for text in kernargs if text not in scalars)
    used = {name for group in (texts, computed) for text in group for name in parse(text).names}
    limited = {
        name for name, s in scalars.items() if s.type in ("flag", "choice", "i1") or (s.min, s.max) != (None, None)
    }
    return frozenset(scalars.keys() & (used | limited))


def op_planner(index: Index, name: str, place: Path | None = None) -> Planner:
    """The planner of an op of a bundle. Raises `ArgumentError` if there is none, `BundleError` if it is not sound.

    Args:
        place: where the bundle lies, for errors that say how to build what is missing.
    """
    ops = {op.name: op for op in index.ops}
    if name not in ops:
        raise ArgumentError(f"bundle '{index.name}' has no op '{name}'{nearest(name, tuple(ops))}")
    variants = (variant for variant in index.variants if variant.op == name)
    said = {} if index.provenance is None else index.provenance.build_definition.external_parameters
    manifest, whole = str(said.get("manifest", "")), bool(said) and not said.get("filter") and "for" not in said
    try:
        return Planner(ops[name], variants, index.target.backend, index.name, manifest, place, whole)
    except ExpressionError as error:
        raise BundleError(f"bundle '{index.name}', {error}") from None
