"""Abstract interpretation of a kernel's body, which records how it uses its parameters.

Names have sums as values (`aot.draft.values`). Called functions are inlined, and both sides of a branch are
interpreted. The body of a loop is interpreted twice, so that pointers that advance (`x_ptrs += BLOCK * stride`) become
multiples of the loop's count. Unsupported expressions become opaque atoms with their operands as dependencies, so
nothing here fails. Findings may be wrong for unusual kernels: a person reviews the draft.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from . import values
from .expressions import Either, Expressions, Frame, Text, Value, argument_of, whole
from .findings import Bound, Findings, Guard
from .texts import KernelText
from .values import Atom, Sum

MAX_SIDES = 4
"""Maximum number of branches on which a statement's values may depend; of further branches, one side is taken."""


def read_body(kernel: KernelText) -> Findings:
    """Interpret a kernel and the functions that it calls."""
    reader = _Reader(kernel)
    first = Frame(kernel.functions[""], {p.name: Sum.of(Atom(values.ARGUMENT, p.name)) for p in kernel.parameters})
    for parameter in kernel.parameters:
        for member in parameter.members:
            first.names[member.name] = Sum.of(Atom(values.ARGUMENT, member.name))
    reader.function(first)
    return reader.found


class _Reader(Expressions):
    def function(self, frame: Frame) -> Value:
        node = ast.parse(frame.text.source).body[0]
        assert isinstance(node, ast.FunctionDef)
        self._block(node.body, frame)
        return frame.result

    def _block(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        for i, statement in enumerate(body):
            if isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Return) and not statement.orelse:
                with self._guarded(self._branch(statement, frame)):
                    self._block(body[i + 1 :], frame)
                return
            self._statement(statement, frame)

    def _statement(self, node: ast.stmt, frame: Frame) -> None:
        match node:
            case ast.If():
                self._branch(node, frame)
            case ast.For():
                self._for(node, frame)
            case ast.While(test=test, body=body):
                self._value(test, frame)
                self._twice(body, frame, Sum.of(self._atom(values.LOOP)))
            case _:
                self._on_each_side(node, frame)

    def _on_each_side(self, node: ast.stmt, frame: Frame) -> None:
        """Interpret a statement for each combination of the branches on which its operands depend."""
        split = next(self._unresolved(node, frame), None)
        if split is None or len(self._sides) >= MAX_SIDES or not self.may_split():
            self._simple(node, frame)
            return
        before, outcomes = dict(frame.names), []
        for side in (True, False):
            frame.names = dict(before)
            self._sides[split.branch] = side
            with self._guarded(split.guards[0 if side else 1]):
                self._on_each_side(node, frame)
            outcomes.append(frame.names)
        del self._sides[split.branch]
        frame.names = self._joined_names(split.branch, split.guards, *outcomes)

    def _unresolved(self, node: ast.stmt, frame: Frame) -> Iterator[Either]:
        for item in ast.walk(node):
            if (isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)) or isinstance(node, ast.AugAssign):
                value = frame.names.get(getattr(item, "id", ""))
                while isinstance(value, Either) and value.branch in self._sides:
                    value = value.first if self._sides[value.branch] else value.second
                if isinstance(value, Either):
                    yield value

    def _joined_names(
        self,
        branch: int,
        guards: tuple[tuple[Guard, ...], tuple[Guard, ...]],
        first: Mapping[str, Value],
        second: Mapping[str, Value],
    ) -> dict[str, Value]:
        return {
            name: self.merged(branch, guards, first[name], second[name])
            if name in first and name in second
            else first.get(name, second.get(name))
            for name in {**second, **first}
        }

    def _simple(self, node: ast.stmt, frame: Frame) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                result = self._value(value, frame)
                for target in targets:
                    self._assign(target, result, frame)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._value(value, frame), frame)
            case ast.AugAssign(target=target, op=op, value=value):
                self._assign(target, self._value(ast.BinOp(_loaded(target), op, value), frame), frame)
            case ast.Expr(value=value):
                self._value(value, frame)
            case ast.Assert(test=test):
                self._asserted(test, frame)
            case ast.Return(value=ast.expr() as value):
                result = self._value(value, frame)
                frame.result = result if frame.result is None else frame.result

    def _assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            parts = value if isinstance(value, tuple) and len(value) == len(target.elts) else None
            for i, item in enumerate(target.elts):
                self._assign(item, parts[i] if parts else self._other([whole(value)], f"part {i}"), frame)
        elif isinstance(target, ast.Name):
            frame.names[target.id] = value

    def _branch(self, node: ast.If, frame: Frame) -> list[Guard]:
        guards, opposite = self._condition(node.test, frame)
        before, result = dict(frame.names), frame.result
        with self._guarded(guards):
            self._block(node.body, frame)
        after, first = frame.names, frame.result
        frame.names, frame.result = dict(before), result
        with self._guarded(opposite):
            self._block(node.orelse, frame)
        branch, sides = self.branch_number(), (tuple(guards), tuple(opposite))
        frame.names = self._joined_names(branch, sides, after, frame.names)
        if first is not None and frame.result is not None:
            frame.result = self.merged(branch, sides, first, frame.result)
        else:
            frame.result = first if frame.result is None else frame.result
        return opposite

    def _for(self, node: ast.For, frame: Frame) -> None:
        atom = self._atom(values.LOOP)
        index = Sum.of(atom)
        steps = [self._value(item, frame) for item in getattr(node.iter, "args", [])]
        bounds = [whole(step) for step in steps]
        if len(bounds) == 1:
            bounds = [Sum.number(0), *bounds]
        if len(bounds) >= 2:
            start, stop = bounds[:2]
            if len(bounds) > 2 and (name := bounds[2].argument()):
                self._note(self.found.loops, name)
            if start.constant is None:
                index = index.plus(start)
            self._bound(Bound(index, stop))
            unit = len(bounds) < 3 or bounds[2].constant == 1
        else:
            unit = False
        self._assign(node.target, index, frame)
        self._twice(node.body, frame, Sum.of(atom) if unit else None)

    def _twice(self, body: Sequence[ast.stmt], frame: Frame, count: Sum | None) -> None:
        """Interpret a loop's body twice: first to find the values that grow, then with their general form."""
        before = dict(frame.names)
        self._silent += 1
        self._block(body, frame)
        self._silent -= 1
        count = count or Sum.of(self._atom(values.LOOP))
        for name, value in before.items():
            before[name] = self._grown(name, value, frame.names.get(name), count)
        frame.names = {**frame.names, **before}
        self._block(body, frame)

    def _grown(self, name: str, value: Value, later: Value, count: Sum) -> Value:
        """Return a name's value in any iteration, from its values before the first and the second."""
        if isinstance(value, Either):
            sides = [self._grown(name, one, _side_of(later, value.branch, i), count)
                     for i, one in enumerate((value.first, value.second))]  # fmt: skip
            return Either(value.branch, value.guards, *sides)
        later = self.resolved(later)
        if not (isinstance(value, Sum) and isinstance(later, Sum)) or value.key() == later.key():
            return value
        known = set(value.terms) <= set(later.terms)
        step = later.plus(value, -1)
        return value.plus(step.times(count)) if known and value.terms else self._other([value, later], name)

    # Conditions

    def _condition(self, node: ast.expr, frame: Frame) -> tuple[list[Guard], list[Guard]]:
        """Return the guards of parameters if a condition holds, and if it does not."""
        match node:
            case ast.BoolOp(op=ast.And(), values=parts):
                return [guard for part in parts for guard in self._condition(part, frame)[0]], []
            case ast.BoolOp(op=ast.Or(), values=parts):
                return [], [guard for part in parts for guard in self._condition(part, frame)[1]]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._condition(operand, frame)[::-1]
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._comparison(left, op, right, frame)
        if name := argument_of(self._value(node, frame)):
            self._note(self.found.flags, name)
            return [Guard(name)], [Guard(name, False)]
        return [], []

    def _comparison(
        self, left: ast.expr, op: ast.cmpop, right: ast.expr, frame: Frame
    ) -> tuple[list[Guard], list[Guard]]:
        name = argument_of(self._value(left, frame))
        value = self._value(right, frame)
        constant = value.value if isinstance(value, Text) else whole(value).constant
        if not name or (constant is None and not isinstance(value, Text)):
            self._value(ast.Compare(left, [op], [right]), frame)
            return [], []
        if constant is None:
            self._note(self.found.present, name)
            there, gone = [Guard(name, presence=True)], [Guard(name, False, True)]
        elif isinstance(constant, bool):
            self._note(self.found.flags, name)
            there, gone = [Guard(name, not constant)], [Guard(name, constant)]
        else:
            if not self._silent and isinstance(op, ast.Eq | ast.NotEq) and constant not in self.found.compared[name]:
                self.found.compared[name].append(constant)
            there, gone = [], [Guard(name, constant)]
        if isinstance(op, ast.Is | ast.Eq):
            return gone, there
        return (there, gone) if isinstance(op, ast.IsNot | ast.NotEq) else ([], [])


def _loaded(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body


def _side_of(value: Value, branch: int, side: int) -> Value:
    if isinstance(value, Either) and value.branch == branch:
        return value.second if side else value.first
    return value
