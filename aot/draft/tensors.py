"""Find the tensors of a kernel: their dims in order, each with its stride and extent.

An address is a pointer plus a sum. A term that is multiplied by a stride, or by a product of sizes, is the index of one
dim. The remaining terms are the index of the innermost dim. The extent is the limit of a mask, of a remainder or of a
loop that has the same index.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from . import values
from .findings import Access, Bound, Described, Findings, Guard
from .texts import KernelText
from .values import Atom, Product, Sum, arguments

_BLOCK = re.compile(r"(?i)block|tile|chunk|group_?size|^b[a-z]{1,2}$")
_STRIDE = re.compile(r"(?i)stride|(^|_)ld[a-rt-z]?$")
POINTER_NAME = re.compile(r"(?i)(^|_)(ptr|ptrs|pointer)$|_ptr_")


ONE = "one element"
SURE = 100
"""Score of similarity from which on a mask's bound applies to an index."""


@dataclass(frozen=True)
class Extent:
    """The extent of a dim: a parameter's value, a number, or something that needs a name.

    Attributes:
        argument: the parameter that it is.
        text: an expression of parameters that it is.
        number: the number that it is.
        program: the axis of the grid that counts it, in steps of `times`.
        length: the parameter that is the length of the range over the whole dim.
        note: distinguishes it from other extents without a parameter.
        is_sure: a mask of the access itself states it.
    """

    argument: str = ""
    text: str = ""
    number: int | None = None
    program: int | None = None
    times: int = 1
    length: str = ""
    note: str = ""
    is_sure: bool = field(default=False, compare=False)

    @property
    def is_known(self) -> bool:
        return bool(self.argument or self.length or self.text) or self.number is not None


@dataclass
class Dim:
    """A dim of a tensor.

    Attributes:
        strides: the factors of its index: one stride parameter, or sizes and numbers, as text.
        index: the value that counts along it.
    """

    strides: tuple[str, ...]
    index: Sum
    extent: Extent = field(default_factory=Extent)


@dataclass
class DraftTensor:
    """A pointer parameter.

    Attributes:
        kinds: kinds of access: `read`, `write`, `update`.
        guards: conditions that hold wherever it is accessed.
        is_index: whether values loaded from it are part of an address or the end of a loop.
    """

    parameter: str
    dims: list[Dim]
    kinds: frozenset[str]
    guards: tuple[Guard, ...]
    is_index: bool = False
    is_handle: bool = False


def find_tensors(
    kernel: KernelText, found: Findings, passed: Collection[str], strides: Collection[str]
) -> list[DraftTensor]:
    """Return the pointer parameters that the kernel accesses, in order.

    Args:
        passed: parameters that are known to be tensors.
        strides: parameters that are known to be strides.
    """
    names = [item.name for p in kernel.parameters for item in (p.members or (p,)) if not item.constexpr]
    pointers = _pointers(names, found, passed)
    shapes = _Shapes(kernel, found, pointers, strides)
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


def _pointers(names: Collection[str], found: Findings, passed: Collection[str]) -> Callable[[Sum], str]:
    sure = set(passed)

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

    def __init__(self, kernel: KernelText, found: Findings, pointers: Callable[[Sum], str], strides: Collection[str]):
        self.found, self._pointer, self._strides = found, pointers, strides
        self._order = {p.name: i for i, p in enumerate(kernel.parameters)}
        self._constexprs = {p.name for p in kernel.parameters if p.constexpr}
        self._sizes = self._find_sizes()

    def of(self, name: str, accesses: Sequence[Access]) -> list[Dim]:
        for described in self.found.described:
            if self._pointer(described.pointer) == name:
                return [*self._outside(name, described.pointer), *self._described(described)]
        if name in self.found.blocks_at:
            return [Dim((), index, self._tiled_extent(index)) for index in self.found.blocks_at[name]]
        best: dict[tuple[str, ...], tuple[Sum, int, Extent]] = {}
        shapes = [(self._groups(name, access.pointer, access.bounds), access.bounds) for access in accesses]
        most = max((len(groups) for groups, _ in shapes), default=0)
        for groups, bounds in shapes:
            for key, index in groups.items():
                score, extent = self._extent(index, bounds)
                if (key not in best or _is_better(score, extent, *best[key][1:])) and (
                    len(groups) == most or key in best
                ):
                    best[key] = (index, score, extent)
        dims = sorted((Dim(key, index, extent) for key, (index, _, extent) in best.items()), key=self._rank)
        self._set_packed_extents(dims)
        return dims

    def _outside(self, name: str, pointer: Sum) -> list[Dim]:
        groups = self._groups(name, pointer, ())
        dims = [Dim(key, index, self._extent(index, ())[1]) for key, index in groups.items() if index.terms]
        return sorted(dims, key=self._rank)

    def _described(self, described: Described) -> list[Dim]:
        return [
            Dim(tuple(arguments(stride.atoms)), Sum.number(0), self._limit(Bound(extent, extent)) or Extent())
            for extent, stride in zip(described.shape, described.strides, strict=False)
        ]

    def _rank(self, dim: Dim) -> tuple[int, int, int]:
        """Return the sort key of a dim, outermost first: outer dims have more factors, and strides the order of
        parameters.
        """
        if not dim.strides:
            return (2, 0, 0)
        if self._is_stride(dim.strides[0]):
            return (0, self._order.get(dim.strides[0].partition(".")[0], 0), 0)
        names = [item for item in dim.strides if not item.isdigit()]
        return (1, -len(names), -math.prod(int(item) for item in dim.strides if item.isdigit()))

    def _groups(self, name: str, address: Sum, bounds: Sequence[Bound]) -> dict[tuple[str, ...], Sum]:
        groups: dict[tuple[str, ...], dict[Product, int]] = {}
        for product, count in address.terms.items():
            if [atom.key for atom in product] == [name]:
                continue
            factors = [atom for atom in product if self._multiplies(atom, product)]
            strides = [atom for atom in factors if self._is_stride(atom.key)]
            factors = strides[:1] or factors  # beside a stride everything else is part of the index
            key = tuple(sorted(atom.key for atom in factors))
            rest = tuple(atom for atom in product if atom not in factors)
            if not strides and count > 1 and rest and self._is_width(address, rest, count, bounds):
                key, count = tuple(sorted((*key, str(count)))), 1
            groups.setdefault(key, {})[rest] = count
        only_offsets = {key for key, terms in groups.items() if set(terms) == {()}}
        return {key: Sum(terms) for key, terms in groups.items() if key not in only_offsets} or {(): Sum.number(0)}

    def _is_width(self, address: Sum, rest: Product, count: int, bounds: Sequence[Bound]) -> bool:
        """Return True if a factor of an index is the width of rows, and not the length of a tile."""
        if any(atom.kind == values.RANGE for atom in rest):
            return False
        lengths = [atom.key for product in address.terms for atom in product if atom.kind == values.RANGE]
        if any(length.isdigit() and int(length) > count for length in lengths):
            return False
        whole_tile = any(length == str(count) for length in lengths)
        is_flat = any({rest} | {(atom,) for atom in bound.index.atoms if atom.kind == values.RANGE}
                      <= bound.index.terms.keys() for bound in bounds)  # fmt: skip
        return not is_flat and (not whole_tile or not bounds)

    def _multiplies(self, atom: Atom, product: Product) -> bool:
        return atom.kind == values.ARGUMENT and len(product) > 1 and atom.key in self._sizes

    def _is_stride(self, name: str) -> bool:
        return name in self._strides or is_stride_name(name)

    def _find_sizes(self) -> set[str]:
        """Find the parameters between a dim's neighbours: strides, and sizes of packed tensors."""
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

    def _set_packed_extents(self, dims: Sequence[Dim]) -> None:
        """Set the extents of packed dims: the quotients of the factors of neighbouring dims."""
        for outer, inner in pairwise(dims):
            if not outer.strides or any(map(self._is_stride, (*outer.strides, *inner.strides))):
                continue
            names = [item for item in outer.strides if not item.isdigit()]
            within = [item for item in inner.strides if not item.isdigit()]
            number, by = (math.prod(int(i) for i in dim.strides if i.isdigit()) for dim in (outer, inner))
            if any(names.count(item) < within.count(item) for item in within) or number % by:
                continue
            for item in within:
                names.remove(item)
            factors = [*names, *([str(number // by)] if number != by or not names else [])]
            if len(factors) == 1:
                one = factors[0]
                if inner.extent.argument != one:
                    inner.extent = Extent(number=int(one)) if one.isdigit() else Extent(argument=one)
            elif not inner.extent.is_known:
                inner.extent = Extent(text=" * ".join(factors))

    # Extents

    def _extent(self, index: Sum, own: Sequence[Bound]) -> tuple[int, Extent]:
        if any(atom.key.startswith(values.LOADED_KEY) for atom in index.atoms):
            # What numbers in memory are below says nothing of what they point into, but where that is masked.
            limits = (self._limit(bound) for bound in own if bound.index.key() == index.key())
            known = next((limit for limit in limits if limit is not None), None)
            return (SURE, known) if known is not None else (1, self._unbound(index))
        best = (0, Extent())
        for bounds, bonus in ((own, 5), (self.found.bounds, 0)):
            for bound in bounds:
                score = _likeness(index, bound.index)
                limit = self._reached(index, bound) or self._limit(bound)
                if score and limit is not None and score + bonus > best[0]:
                    best = (score + bonus, replace(limit, is_sure=score + bonus > SURE))
        return best if best[0] else (1, self._divided(index, own) or self._unbound(index))

    def _reached(self, index: Sum, bound: Bound) -> Extent | None:
        """Return the reach of a multiple of a bounded value plus an offset; None for the bounded value itself."""
        if index.key() == bound.index.key() or not bound.index.terms:
            return None
        counts = {index.terms.get(product, 0) / count for product, count in bound.index.terms.items()}
        times = int(counts.pop()) if len(counts) == 1 else 0
        if times < 1:
            return None
        rest = index.plus(bound.index.times(Sum.number(times)), -1)
        limit = text_of(self.found, bound.limit)
        offset = text_of(self.found, rest) if set(rest.terms) - {()} else ""
        if not limit or (set(rest.terms) - {()} and not offset):
            return None
        if offset:
            return Extent(text=f"{times} * ({limit}) + {offset}" if times > 1 else f"{limit} + {offset}")
        behind = rest.constant or 0
        if times == 1:
            return Extent(text=f"{limit} + {behind}") if behind > 0 else None
        return Extent(text=f"{times} * ({limit})") if 0 <= behind < times else None

    def _divided(self, index: Sum, own: Sequence[Bound]) -> Extent | None:
        """Return the extent of an index that counts groups: a quotient of a bounded value."""
        match list(index.terms.items()):
            case [((values.Atom(kind=values.QUOTIENT, key=key),), 1)]:
                inner, divisor = self.found.quotients[key]
                score, extent = self._extent(inner, own)
                text = extent.text or extent.argument or str(extent.number or "")
                by = text_of(self.found, divisor)
                return Extent(text=f"cdiv({text}, {by})") if score > 1 and text and by else None
        return None

    def _limit(self, bound: Bound) -> Extent | None:
        if name := bound.limit.argument():
            return Extent(argument=name)
        if bound.limit.constant is not None:
            return Extent(number=bound.limit.constant) if bound.limit.constant > 0 else None
        if text := text_of(self.found, bound.limit):
            return Extent(text=text)
        names = set(arguments(bound.limit.below))
        sizes = [name for name in names if name not in self._constexprs]
        return Extent(argument=sizes[0]) if len(sizes) == 1 else None

    def _tiled_extent(self, index: Sum) -> Extent:
        """Return the extent of a dim that is divided into blocks: the parameter counted in such blocks."""
        tiled = [self.found.tiled[block] for block in arguments(index.atoms) if block in self.found.tiled]
        return Extent(argument=tiled[0]) if tiled else self._extent(index, ())[1]

    def _unbound(self, index: Sum) -> Extent:
        if not index.terms:
            return Extent(note=ONE)
        atoms = index.atoms
        kinds = {atom.kind for atom in atoms}
        programs = {atom.key for atom in atoms if atom.kind == values.PROGRAM}
        if kinds == {values.PROGRAM} and len(index.terms) == 1 and len(programs) == 1:
            return Extent(program=int(programs.pop()), times=next(iter(index.terms.values())))
        ranges = sorted(atom.key for atom in atoms if atom.kind == values.RANGE)
        if kinds == {values.RANGE} and len(ranges) == 1 and (ranges[0].isdigit() or ranges[0] in self._order):
            return Extent(number=int(ranges[0])) if ranges[0].isdigit() else Extent(length=ranges[0])
        return Extent(note=" + ".join(sorted("*".join(_short(atom) for atom in product) for product in index.terms)))


def _is_better(score: int, extent: Extent, old_score: int, old: Extent) -> bool:
    """Return True if an extent is more certain, or larger, than the one from another access."""
    if score == old_score or (extent.text and old.argument and extent.text.startswith(old.argument)):
        return len(extent.text) > len(old.text) and old.number is None
    return score > old_score


def text_of(found: Findings, total: Sum) -> str:
    """Return a sum of parameters and their quotients as the text of an expression; empty for other sums."""
    parts = []
    for product, count in total.terms.items():
        factors = [_factor(found, atom) for atom in product]
        if not all(factors) or count < 0:
            return ""
        parts.append(" * ".join([*([str(count)] if count != 1 or not factors else []), *factors]))
    return " + ".join(parts)


def _factor(found: Findings, atom: Atom) -> str:
    if atom.kind == values.ARGUMENT:
        return atom.key if atom.key.isidentifier() else ""
    if atom.kind == values.QUOTIENT and atom.key in found.quotients:
        parts = [text_of(found, part) for part in found.quotients[atom.key]]
        return f"(({parts[0]}) // ({parts[1]}))" if all(parts) else ""
    return ""


def _short(atom: Atom) -> str:
    below = sorted(part.key for part in atom.below if part.kind == values.PROGRAM)
    return f"{atom.kind}{''.join(below)}" if atom.kind == values.OTHER else f"{atom.kind} {atom.key}"


def _likeness(index: Sum, other: Sum) -> int:
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
    """Return stride parameter → its dims."""
    found: dict[str, list[tuple[DraftTensor, int]]] = {}
    for tensor in tensors:
        for position, dim in enumerate(tensor.dims):
            if len(dim.strides) == 1 and not dim.strides[0].isdigit():
                found.setdefault(dim.strides[0], []).append((tensor, position))
    return found


def is_stride_name(name: str) -> bool:
    return bool(_STRIDE.search(name))


def is_block_name(name: str) -> bool:
    return bool(_BLOCK.search(name))
