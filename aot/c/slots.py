"""Slots of the C dispatcher: the positions of names and of queries about tensors among the values of a call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aot_runtime.contract import records
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import parse, query_name
from aot_runtime.contract.names import Scope, config_names, stride_position
from aot_runtime.contract.validate import kernarg_texts

_OF_DEVICES = ("num_cus", "num_xcds")
"""Names whose values come from the device. The builder knows the other properties of an architecture."""


@dataclass(frozen=True)
class QueryRow:
    """A query that a call answers once: its kind in C and its subject."""

    kind: str
    slot: int
    tensor: int
    position: int
    of_output: bool


class Slots:
    """The slots of all names of a bundle. Ops that use the same name share the functions that read it."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self._positions.setdefault(name, len(self._positions))

    def __len__(self) -> int:
        return len(self._positions)


class OpSlots:
    """The slots of one op.

    Attributes:
        dims: dim → its source.
        slots: name, or `query_name` of a query → its slot.
        constants: names of the architecture that the op reads → their values.
        code: name, or `query_name` of a query → the C expression of its value; for `Functions`.
        queries: the queries that have a slot.
    """

    def __init__(self, op: records.Op, variants: Iterable[records.Variant], target: records.Target, slots: Slots):
        scope = Scope.of(op)
        self.dims = scope.dims
        configs = (name for launch in op.launches for name in config_names(launch))
        names = dict.fromkeys((
            "extent", "aligned", *_OF_DEVICES, *self.dims, *(scalar.name for scalar in op.scalars), *op.dtypes,
            *(item.name for item in op.derived), *(item.name for item in op.alternatives),
            *(axis.name for axis in op.axes), *configs,
        ))  # fmt: skip
        self.slots = slots
        self.code = {name: f"e->v[{slots[name]}]" for name in names}
        self.queries: list[QueryRow] = []
        texts = {text for _, text, _ in scope.expressions(op)}
        texts |= {text for group in kernarg_texts(op, variants).values() for text in group}
        read = {name for text in texts for name in parse(text).names}
        constants = ARCHITECTURES[target.arch].constants
        self.constants = {name: constants[name] for name in sorted(read & constants.keys() - {*_OF_DEVICES})}
        self.code |= {name: f"e->v[{slots[name]}]" for name in self.constants}
        for query in sorted({query for text in texts for query in parse(text).queries}, key=str):
            self._add(op, scope, query)

    def _add(self, op: records.Op, scope: Scope, query: tuple[str | int, ...]) -> None:
        function, subject, *rest = query
        tensor = scope.subjects.get(str(subject))
        dtype = str(subject) if tensor is None else tensor.dtype
        if function == "elsize" and dtype in DTYPES:
            self.code[query_name(*query)] = f"aot_i({DTYPES[dtype].size})"
            return
        slot = self.slots[query_name(*query)]
        self.code[query_name(*query)] = f"e->v[{slot}]"
        if function == "elsize":
            self.queries.append(QueryRow("AOT_ELSIZE", slot, list(op.dtypes).index(dtype), 0, False))
            return
        assert tensor is not None
        number = [item.name for item in op.tensors].index(tensor.name)
        position = stride_position(tensor, rest[0]) if rest else 0
        late = tensor.role == "output" and function != "given"
        self.queries.append(QueryRow(f"AOT_{str(function).upper()}", slot, number, position, late))

    def named(self, text: str) -> list[tuple[str, int]]:
        """Return the sorted names that an expression reads, with their slots."""
        return [(name, self.slots[name]) for name in sorted(parse(text).names)]
