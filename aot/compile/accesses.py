"""Find the pointers that a kernel reads and writes through, from Triton's IR.

Each access's pointer is followed back to the parameters that it may come from. If it may come from several, or from
something that cannot be followed (such as a loaded address), the result says so: nothing here is a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

READ, WRITE, UPDATE, MAYBE, DESCRIBED = "r", "w", "u", "?", "d"
"""Kinds of access: a plain load; a plain store; an atomic that does both; a possible store, such as one to one of
several tensors; the creation of a tensor descriptor, which is not an access yet.
"""
KINDS = frozenset({READ, WRITE, UPDATE, MAYBE, DESCRIBED})

_POINTER_AT: dict[str, tuple[str, int]] = {
    **dict.fromkeys(
        (
            *("tt.load", "tt.atomic_load", "tt.descriptor_load", "tt.descriptor_gather", "amdg.buffer_load"),
            *("ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local", "ttng.async_tma_gather"),
            *("amdg.async_tdm_copy_global_to_local", "amdg.async_tdm_gather"),
        ),
        (READ, 0),
    ),
    "amdg.buffer_load_to_local": (READ, 1),
    **dict.fromkeys(
        (
            *("tt.store", "tt.atomic_store", "tt.descriptor_store", "tt.descriptor_scatter"),
            *("ttng.async_tma_copy_local_to_global", "ttng.async_tma_scatter"),
            *("amdg.async_tdm_copy_local_to_global", "amdg.async_tdm_scatter"),
        ),
        (WRITE, 0),
    ),
    **dict.fromkeys(("amdg.buffer_store", "amdg.async_copy_local_to_global"), (WRITE, 1)),
    **dict.fromkeys(
        (
            *("tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce", "ttng.async_tma_reduce"),
            *("amdg.buffer_atomic_rmw", "amdg.buffer_atomic_cas"),
        ),
        (UPDATE, 0),
    ),
}
"""Operation → its kind of access, and the index of its pointer operand."""

_FORWARDS: dict[str, slice] = {
    **dict.fromkeys(
        (
            *("tt.addptr", "tt.bitcast", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.splat", "tt.split"),
            *("tt.trans", "tt.unsplat", "tt.make_tensor_descriptor", "ttng.reinterpret_tensor_descriptor"),
            *("ttg.convert_layout", "gluon.set_auto_layout", "amdg.extract_slice", "amdg.update_tensor_descriptor"),
        ),
        slice(0, 1),
    ),
    **dict.fromkeys(("tt.cat", "tt.join"), slice(0, 2)),
    "arith.select": slice(1, 3),
}
"""Operation → the operands that its pointer results are derived from."""

_HARMLESS = frozenset(
    {
        *("tt.ptr_to_int", "tt.return", "tt.func", "tt.print", "tt.assert", "builtin.module"),
        *("ttg.warp_yield", "ttg.warp_return"),
    }
)
_HARMLESS_DIALECTS = ("arith.", "math.", "scf.", "cf.", "ub.")

_LOOPS = {"scf.for": (3, 1), "scf.while": (0, 0)}
"""Loop → the index of its first operand, and of its body's first argument, that iterations pass on."""
_BRANCHES = frozenset({"scf.if", "ttg.warp_specialize"})
"""Operations whose results come from the terminator of one of their regions."""
_OPAQUE = frozenset({"tt.elementwise_inline_asm", "tt.extern_elementwise", "ttg.inline_asm"})
_EXCHANGE = 10  # of Triton's RMWOp


def pointer_accesses(module: Any, parameters: Sequence[str]) -> dict[str, str]:
    """Return the kinds of access through each pointer parameter of a kernel; empty if the IR is not as expected.

    Args:
        module: with its helpers inlined.
        parameters: names of the kernel's arguments, in order.
    """
    graph = _Graph(module)
    if len(graph.arguments) != len(parameters):
        return dict.fromkeys(parameters, MAYBE)
    names = dict(zip(graph.arguments, parameters, strict=True))
    found: dict[str, set[str]] = {name: {MAYBE} for name in parameters if graph.is_open}
    for kind, pointer in graph.accesses:
        sources = graph.sources(pointer)
        reached = [names[source] for source in sources if source in names]
        if len(sources) == len(reached) == 1:
            found.setdefault(reached[0], set()).add(kind)
        elif kind == MAYBE:
            _note(found, reached)
        elif kind == DESCRIBED:
            for name in reached:
                found.setdefault(name, set()).add(kind)
        elif kind != READ:  # of an address from elsewhere: of any
            _note(found, reached if len(reached) == len(sources) else parameters)
    return {name: "".join(sorted(kinds)) for name, kinds in found.items()}


def _note(found: dict[str, set[str]], names: Iterable[str]) -> None:
    for name in names:
        found.setdefault(name, set()).add(MAYBE)


class _Graph:
    """Origins of values, by their ids.

    Attributes:
        arguments: the kernel's arguments.
        accesses: (kind, pointer) of each access.
        is_open: there may be other accesses.
    """

    def __init__(self, module: Any):
        self.arguments: list[int] = []
        self.accesses: list[tuple[str, int]] = []
        self._made_of: dict[int, list[int]] = {}
        self._arguments_of: dict[int, list[int]] = {}
        self._end_of: dict[int, list[int]] = {}
        self._names: set[str] = set()
        self._kernel = module.get_entry_func_name()
        module.walk(self._visit)
        # Assembly that is not pure may take an address as a number.
        self.is_open = "tt.ptr_to_int" in self._names and bool(self._names & _OPAQUE)

    def sources(self, value: int) -> set[int]:
        found, seen, waiting = set(), {value}, [value]
        while waiting:
            current = waiting.pop()
            parts = self._made_of.get(current)
            if parts is None:
                found.add(current)
                continue
            waiting += [part for part in parts if part not in seen]
            seen.update(parts)
        return found

    def _visit(self, op: Any) -> None:
        name = op.get_name()
        operands = [op.get_operand(i).id() for i in range(op.get_num_operands())]
        results = [op.get_result(i).id() for i in range(op.get_num_results())]
        if name != "builtin.module":
            self._note_region(op.get_block(), operands[1:] if name == "scf.condition" else operands)
        if not op.get_bool_attr("pure"):
            self._names.add(name)
        if name in _POINTER_AT:
            kind, position = _POINTER_AT[name]
            exchanges = name.endswith("atomic_rmw") and op.get_int_attr("atomic_rmw_op") == _EXCHANGE
            self.accesses.append((WRITE if exchanges else kind, operands[position]))
        elif name in _FORWARDS:
            if name == "tt.make_tensor_descriptor":
                self.accesses.append((DESCRIBED, operands[0]))
            for result in results:
                self._made_of[result] = operands[_FORWARDS[name]]
        elif name == "tt.func":
            if op.get_str_attr("sym_name") == self._kernel:
                self.arguments = self._arguments_of[op.get_region(0).id()]
        elif name in _LOOPS:
            self._loop(op, name, operands, results)
        elif name in _BRANCHES:
            for region in _regions(op):
                self._join(results, self._end_of.get(region, []))
        elif name == "ttg.warp_specialize.partitions":
            for region in _regions(op):
                self._join(self._arguments_of.get(region, []), operands)
        elif name not in _HARMLESS and not name.startswith(_HARMLESS_DIALECTS):
            self.accesses += [(MAYBE, operand) for operand in operands]

    def _loop(self, op: Any, name: str, operands: list[int], results: list[int]) -> None:
        """Record the values that a loop carries: its inputs, and the results of its regions."""
        first_input, first_carried = _LOOPS[name]
        ends = [operands[first_input:], *(self._end_of.get(region, []) for region in _regions(op))]
        for values in ends:
            self._join(results, values)
            for region in _regions(op):
                self._join(self._arguments_of.get(region, [])[first_carried:], values)

    def _note_region(self, block: Any, operands: list[int]) -> None:
        """Record the arguments of each region's first block, and the operands of its terminator."""
        region = block.get_parent().id()
        if region not in self._arguments_of:
            self._arguments_of[region] = [block.get_argument(i).id() for i in range(block.get_num_arguments())]
        self._end_of[region] = operands

    def _join(self, targets: Iterable[int], parts: Iterable[int]) -> None:
        for target, part in zip(targets, parts, strict=False):
            self._made_of.setdefault(target, []).append(part)


def _regions(op: Any) -> Iterator[int]:
    yield from (op.get_region(i).id() for i in range(op.get_num_regions()))


def watched_stages(
    note: Callable[[Any], None], listed: Callable[[str], None] = lambda assembly: None
) -> Callable[..., Any]:
    """Return a hook for Triton's `add_stages_inspection_hook`.

    Args:
        note: called with the module once its helpers are inlined: in the dialect `tt`, or for a Gluon kernel in the
            dialects that it is written in.
        listed: called with the assembly.
    """

    def hook(*arguments: Any) -> Any:
        if not arguments:
            return "", ""  # of Triton's own cache, which is not used
        stages = arguments[1]
        _watch(stages, "ttir", note)
        if "ttir" not in stages:
            _watch(stages, "glir", lambda module: note(_inlined(module)))
        for name in ("amdgcn", "ptx"):
            _watch(stages, name, listed)
        return None

    return hook


def _watch(stages: dict[str, Callable[..., Any]], name: str, see: Callable[[Any], None]) -> None:
    make = stages.get(name)

    def watched(module: Any, metadata: Any) -> Any:
        made = make(module, metadata)  # type: ignore[misc]
        see(made)
        return made

    if make is not None:
        stages[name] = watched


def _inlined(module: Any) -> Any:
    """Inline the helpers of a Gluon kernel, as the next stage does first."""
    from triton._C.libtriton import ir, passes

    manager = ir.pass_manager(module.context)
    passes.gluon.add_inliner(manager)
    manager.run(module, "inline_gluon")
    return module
