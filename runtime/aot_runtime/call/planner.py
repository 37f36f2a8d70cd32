"""Plan calls: turn layouts and scalars into launches by walking the contract.

Planning has two steps, `checking` and `choosing`. Whatever does not depend on the call is prepared once per op, with
expressions compiled. No device is touched, so `explain` takes the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from aot_runtime.contract.arch import device_names
from aot_runtime.contract.expressions import nearest, parse
from aot_runtime.contract.layout import Layout
from aot_runtime.contract.names import Scope
from aot_runtime.contract.records import Index, Op, Variant
from aot_runtime.contract.validate import expression_faults, kernarg_texts, require_sound
from aot_runtime.errors import ArgumentError, BundleError, ExpressionError, NoVariantError

from .checking import Checking
from .choosing import Choosing, Decision, Search
from .rules import Rules

if TYPE_CHECKING:
    from .entries import Describing, Entry


class Origin(msgspec.Struct, frozen=True):
    """The bundle of an op, for errors that say how to build missing variants.

    Attributes:
        index: its index, or None if unknown.
        place: its path, or None if unknown.
    """

    index: Index | None = None
    place: Path | None = None


class Planner:
    """An op's planner. Raises `ExpressionError` if the contract has faulty expressions.

    Attributes:
        op: the contract.
        origin: the bundle that has the op.
        static: scalars that decisions depend on. The others are only passed to the kernels.
        checking, choosing: the two halves of planning.
    """

    def __init__(self, op: Op, variants: Iterable[Variant], backend: str, origin: Origin | None = None):
        built = list(variants)
        require_sound(op, expression_faults(op, built))
        kernargs = kernarg_texts(op, built)
        texts = {text for _, text, _ in Scope.of(op).expressions(op)}
        passed = {text for group in kernargs.values() for text in group}
        self.op, self.origin = op, origin or Origin()
        self.static = _static(op, texts, passed)
        self._rules = rules = Rules(op, backend)
        self.checking = Checking(op, {query for text in texts | passed for query in parse(text).queries}, rules)
        self.choosing = Choosing(op, built, kernargs, rules)

    @cached_property
    def _describing(self) -> Describing:
        from .entries import Describing  # needed for recordings and errors only

        mapped = {name for names in self.choosing.maps.values() for name in names}
        bundle = self.origin.index.name if self.origin.index else ""
        return Describing(self.op, bundle, self.static, self._rules, mapped)

    def entry(
        self, layouts: Mapping[str, Layout | None], scalars: Mapping[str, Any], names: Mapping[str, Any]
    ) -> Entry:
        """Return a call as an entry of a calls file. `names` are the values computed from its arguments."""
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
        """Plan a call, given its layouts and scalars by name.

        Args:
            device: (driver name, device index), where outputs are allocated.
            num_cus: compute units of the device.
            arch: its architecture.
            num_xcds: its XCDs. Defaults to the number of a whole GPU of the architecture.

        Raises:
            ArgumentError: the arguments break the contract.
            NoVariantError: no variant of the bundle fits the call.
        """
        with self.named_failures():
            hardware = device_names(arch, num_cus, num_xcds)
            call = self.checking.check(layouts, scalars, device, hardware)

            search = Search()
            found = self.choosing.find(call, search)
            if found is not None:
                return found

        def explain() -> tuple[tuple[str, ...], tuple[str, ...]]:
            from .refusal import Refusal  # loaded when somebody reads the error

            refusal = Refusal(self.op, self.checking, self.choosing, layouts, scalars, call, search, device, hardware)
            entry = partial(self.entry, layouts, scalars, call.names)
            return refusal.lines(), refusal.remedy(self.origin.index, self.origin.place, entry)

        first = f"{self.op.name}: no variant of this bundle fits the call:"
        raise NoVariantError(first, *search.tried, explain=explain)

    @contextmanager
    def named_failures(self) -> Iterator[None]:
        """Raise `ArgumentError`, which names the op, for failures of arithmetic."""
        try:
            yield
        except (ArithmeticError, TypeError) as error:
            raise ArgumentError(f"{self.op.name}: these arguments have no plan: {error}") from error


def _static(op: Op, texts: Iterable[str], kernargs: Iterable[str]) -> frozenset[str]:
    scalars = {scalar.name: scalar for scalar in op.scalars}
    computed = (text for text in kernargs if text not in scalars)
    used = {name for group in (texts, computed) for text in group for name in parse(text).names}
    limited = {
        name for name, s in scalars.items() if s.type in ("flag", "choice", "i1") or (s.min, s.max) != (None, None)
    }
    return frozenset(scalars.keys() & (used | limited))


def op_planner(index: Index, name: str, place: Path | None = None) -> Planner:
    """Return the planner of a bundle's op. Raises `ArgumentError` for an unknown op, `BundleError` for an unsound one.

    Args:
        place: the bundle's path, for errors that say how to build missing variants.
    """
    ops = {op.name: op for op in index.ops}
    if name not in ops:
        raise ArgumentError(f"bundle '{index.name}' has no op '{name}'{nearest(name, tuple(ops))}")
    variants = (variant for variant in index.variants if variant.op == name)
    try:
        return Planner(ops[name], variants, index.target.backend, Origin(index, place))
    except ExpressionError as error:
        raise BundleError(f"bundle '{index.name}', {error}") from None
