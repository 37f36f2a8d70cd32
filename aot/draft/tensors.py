"""The tensors of a kernel: their dims, in order, each with its stride and its extent.

An address is a pointer and a sum. What is multiplied by one stride, or by one product of sizes, is the index of one
dim; what is multiplied by neither is that of the innermost. The extent is the limit of a mask, of a remainder or of a
loop that has the same index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from . import values
from .findings import Access, Bound, Findings, Guard
from .texts import KernelText
from .values import Atom, Product, Sum, arguments

_BLOCK = re.compile(r"(?i)block|tile|chunk|group_?size|^b[a-z]{1,2}$")
_STRIDE = re.compile(r"(?i)stride|(^|_)ld[a-rt-z]?$")
POINTER_NAME = re.compile(r"(?i)(^|_)(ptr|ptrs|pointer)$|_ptr_")


@dataclass(frozen=True)
class Extent:
    """How far a dim reaches: a parameter's value, a number, or something that has to be given a name.

    Attributes:
        argument: the parameter that it is.
        number: the number that it is.
        program: the axis of the grid that counts it.
        length: the parameter that is the length of the range that goes over it whole.
        note: what tells it from other extents that have no parameter.
    """

    argument: str = ""
    number: int | None = None
    program: int | None = None
    length: str = ""
    note: str = ""

    @property
    def is_known(self) -> bool:
        return bool(self.argument or self.length) or self.number is not None


@dataclass
class Dim:
    """A dim of a tensor.

    Attributes:
        strides: the parameters that multiply its index: one that is a stride, or sizes.
        index: what counts along it.
    """

    strides: tuple[str, ...]
    index: Sum
    extent: Extent = field(default_factory=Extent)


@dataclass
class DraftTensor:
    """A pointer parameter.

    Attributes:
        kinds: how it is accessed: `read`, `write`, `update`.
        guards: what holds wherever it is accessed.
        is_index: whether what is loaded from it is part of an address or the end of a loop.
    """

    parameter: str
    dims: list[Dim]
    kinds: frozenset[str]
    guards: tuple[Guard, ...]
    is_index: bool = False
    is_handle: bool = False


def find_tensors(kernel: KernelText, found: Findings) -> list[DraftTensor]:
    """The pointer parameters that the kernel accesses, in the order of its parameters."""
    names = [item.name for p in kernel.parameters for item in (p.members or (p,)) if not item.constexpr]
    pointers = _pointers(names, found)
    shapes = _Shapes(kernel, found, pointers)
    accesses: dict[str, list[Access]] = {name: [] for name in names}
    for access in found.accesses:
        if base := pointers(access.pointer):
            accesses[base].append(access)
    indices = _index_tensors(found)
    tensors = []
    for name in names:
        if accesses[name] or name in found.handles:
            kinds = frozenset(a.kind for a in accesses[name]) | frozenset(found.handles.get(name, ()))
            guards = _common([*(access.guards for access in accesses[name]), *found.moved.get(name, ())])
            dims = shapes.of(name, accesses[name])
            tensors.append(DraftTensor(name, dims, kinds, guards, name in indices, name in found.handles))
    return tensors


def _pointers(names: Collection[str], found: Findings) -> Callable[[Sum], str]:
    """A function that gives the pointer that an address starts from."""
    sure: set[str] = set()

    def candidates(address: Sum) -> list[str]:
        alone = [product[0].key for product, count in address.terms.items() if len(product) == 1 and count == 1]
        return [name for name in alone if name in names and Atom(values.ARGUMENT, name) in address.atoms]

    addresses = [access.pointer for access in found.accesses] + [item.pointer for item in found.described]
    for address in addresses:
        options = candidates(address)
        if len(options) == 1:
            sure.add(options[0])
    limits = {name for bound in found.bounds for name in arguments(bound.limit.atoms)}

    def pointer(address: Sum) -> str:
        options = candidates(address)
        ranked = sorted(options, key=lambda name: (name not in sure, not POINTER_NAME.search(name), name in limits))
        return ranked[0] if ranked else ""

    return pointer


def _index_tensors(found: Findings) -> set[str]:
    """The parameters whose contents are part of an address, or limit something."""
    used = [atom for access in found.accesses for atom in access.pointer.below]
    counting = {values.RANGE, values.LOOP, values.PROGRAM}
    for bound in found.bounds:
        for one, two in ((bound.index, bound.limit), (bound.limit, bound.index)):
            used += two.below if counting & {atom.kind for atom in one.atoms} else ()
    return {atom.key for atom in used if atom.kind == values.LOADED}


def _common(groups: Sequence[tuple[Guard, ...]]) -> tuple[Guard, ...]:
    if not groups:
        return ()
    return tuple(guard for guard in groups[0] if all(guard in group for group in groups))


class _Shapes:
    """Finds the dims of tensors."""

    def __init__(self, kernel: KernelText, found: Findings, pointers: Callable[[Sum], str]):
        self.found, self._pointer = found, pointers
        self._order = {p.name: i for i, p in enumerate(kernel.parameters)}
        self._constexprs = {p.name for p in kernel.parameters if p.constexpr}
        self._sizes = self._find_sizes()

    def of(self, name: str, accesses: Sequence[Access]) -> list[Dim]:
        """The dims of a pointer, outermost first."""
        for described in self.found.described:
            if self._pointer(described.pointer) == name:
                return [
                    Dim(tuple(arguments(stride.atoms)), Sum.number(0), self._limit(Bound(extent, extent)) or Extent())
                    for extent, stride in zip(described.shape, described.strides, strict=False)
                ]
        if name in self.found.blocks_at:
            return [Dim((), index, self._tiled_extent(index)) for index in self.found.blocks_at[name]]
        best: dict[tuple[str, ...], tuple[Sum, int, Extent]] = {}
        shapes = [(self._groups(name, access.pointer), access.bounds) for access in accesses]
        most = max((len(groups) for groups, _ in shapes), default=0)
        for groups, bounds in shapes:
            for key, index in groups.items():
                score, extent = self._extent(index, bounds)
                if (key not in best or score > best[key][1]) and (len(groups) == most or key in best):
                    best[key] = (index, score, extent)
        dims = [Dim(key, index, extent) for key, (index, _, extent) in best.items()]
        return sorted(dims, key=self._rank)

    def _rank(self, dim: Dim) -> tuple[int, int, int]:
        """Outermost first: more sizes multiply what is further out, strides come in the order of parameters."""
        if not dim.strides:
            return (2, 0, 0)
        if self._is_stride(dim.strides[0]):
            return (0, self._order.get(dim.strides[0].partition(".")[0], 0), 0)
        return (1, -len(dim.strides), 0)

    def _groups(self, name: str, address: Sum) -> dict[tuple[str, ...], Sum]:
        """The index of each dim of an address, by the parameters that multiply it."""
        groups: dict[tuple[str, ...], dict[Product, int]] = {}
        for product, count in address.terms.items():
            if [atom.key for atom in product] == [name]:
                continue
            factors = [atom for atom in product if self._multiplies(atom, product)]
            strides = [atom for atom in factors if self._is_stride(atom.key)]
            factors = strides[:1] or factors  # beside a stride everything else is part of the index
            key = tuple(sorted(atom.key for atom in factors))
            rest = tuple(atom for atom in product if atom not in factors)
            groups.setdefault(key, {})[rest] = count
        only_offsets = {key for key, terms in groups.items() if set(terms) == {()}}
        return {key: Sum(terms) for key, terms in groups.items() if key not in only_offsets} or {(): Sum.number(0)}

    def _multiplies(self, atom: Atom, product: Product) -> bool:
        return atom.kind == values.ARGUMENT and len(product) > 1 and atom.key in self._sizes

    def _is_stride(self, name: str) -> bool:
        return bool(_STRIDE.search(name))

    def _find_sizes(self) -> set[str]:
        """The parameters that lie between a dim's neighbours: strides, and sizes of packed tensors."""
        lengths = {
            atom.key for access in self.found.accesses for atom in access.pointer.below if atom.kind == values.RANGE
        }
        found = set()
        for access in self.found.accesses:
            for product in access.pointer.terms:
                for atom in product:
                    if atom.kind != values.ARGUMENT or len(product) == 1:
                        continue
                    over_range = any(other.kind == values.RANGE and other.key != atom.key for other in product)
                    block = atom.key in self._constexprs and not over_range and atom.key in lengths
                    if not block and not (_BLOCK.search(atom.key) and atom.key in self._constexprs):
                        found.add(atom.key)
        return found

    # Extents

    def _extent(self, index: Sum, own: Sequence[Bound]) -> tuple[int, Extent]:
        """(how sure it is, the extent) of what an index counts."""
        best = (0, Extent())
        for bounds, bonus in ((own, 5), (self.found.bounds, 0)):
            for bound in bounds:
                score = _likeness(index, bound.index)
                limit = self._limit(bound)
                if score and limit is not None and score + bonus > best[0]:
                    best = (score + bonus, limit)
        return best if best[0] else (1, self._unbound(index))

    def _limit(self, bound: Bound) -> Extent | None:
        if name := bound.limit.argument():
            return Extent(argument=name)
        if bound.limit.constant is not None:
            return Extent(number=bound.limit.constant) if bound.limit.constant > 0 else None
        names = set(arguments(bound.limit.below))
        sizes = [name for name in names if name not in self._constexprs]
        if len(sizes) == 1:
            return Extent(argument=sizes[0])
        factors = list(bound.limit.terms)
        if len(factors) == 1 and all(atom.kind == values.ARGUMENT for atom in factors[0]):
            return Extent(note="*".join(atom.key for atom in factors[0]))
        return None

    def _tiled_extent(self, index: Sum) -> Extent:
        """The extent of a dim that blocks are taken of: what the kernel counts in blocks of this length."""
        tiled = [self.found.tiled[block] for block in arguments(index.atoms) if block in self.found.tiled]
        return Extent(argument=tiled[0]) if tiled else self._extent(index, ())[1]

    def _unbound(self, index: Sum) -> Extent:
        """The extent of what no limit is known of."""
        atoms = index.atoms
        kinds = {atom.kind for atom in atoms}
        programs = {atom.key for atom in atoms if atom.kind == values.PROGRAM}
        if kinds == {values.PROGRAM} and len(index.terms) == 1 and len(programs) == 1:
            return Extent(program=int(programs.pop()), note="")
        ranges = sorted(atom.key for atom in atoms if atom.kind == values.RANGE)
        if kinds == {values.RANGE} and len(ranges) == 1 and (ranges[0].isdigit() or ranges[0] in self._order):
            return Extent(number=int(ranges[0])) if ranges[0].isdigit() else Extent(length=ranges[0])
        return Extent(note=" + ".join(sorted("*".join(_short(atom) for atom in product) for product in index.terms)))


def _short(atom: Atom) -> str:
    below = sorted(part.key for part in atom.below if part.kind == values.PROGRAM)
    return f"{atom.kind}{''.join(below)}" if atom.kind in (values.OTHER, values.QUOTIENT) else f"{atom.kind} {atom.key}"


def _likeness(index: Sum, other: Sum) -> int:
    """How alike two indices are; 0: not at all."""
    if index.key() == other.key() and index.terms:
        return 100
    mine, theirs = index.atoms, other.atoms
    ranges = {atom for atom in mine & theirs if atom.kind == values.RANGE}
    if ranges:
        moving = [
            {a for a in atoms if a.kind in (values.PROGRAM, values.LOOP, values.OTHER)} for atoms in (mine, theirs)
        ]
        return max(20 + 10 * len(ranges) - len(moving[0] ^ moving[1]), 1)
    if any(atom.kind == values.RANGE for atom in mine | theirs):
        return 0
    shared = {atom for atom in mine & theirs if atom.kind in (values.LOOP, values.REMAINDER, values.OTHER)}
    return 10 * len(shared)


def strides_of(tensors: Iterable[DraftTensor]) -> Mapping[str, list[tuple[DraftTensor, int]]]:
    """Parameter that is a stride → the dims that it is of."""
    found: dict[str, list[tuple[DraftTensor, int]]] = {}
    for tensor in tensors:
        for position, dim in enumerate(tensor.dims):
            if len(dim.strides) == 1:
                found.setdefault(dim.strides[0], []).append((tensor, position))
    return found


def is_stride_name(name: str) -> bool:
    return bool(_STRIDE.search(name))


def is_block_name(name: str) -> bool:
    return bool(_BLOCK.search(name))
