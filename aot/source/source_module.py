"""A module of a project that runs no statement until something is read that the statement binds.

The module's namespace starts empty. What its code looks up and does not find there Python looks for among the builtins,
which are the module's own mapping: that finds the statements that bind the name, runs them, and keeps what they bind.
So each name is what it would be had the whole file run, and the statements that nobody needs are never run.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from aot.errors import described, is_interrupt

from .bindings import Bindings, Block, Statement, is_own
from .definitions import Definition, define, is_jit_text, is_tuner

ABSENT = object()
"""What a name means that no statement binds."""

Importer = Callable[["SourceModule", str, "tuple[str, ...] | None", int], ModuleType]
"""What an import statement of a module imports: of a dotted name, these names, with so many dots."""


class AbsentError(AttributeError):
    """A module has no statement that binds a name."""


class UndecidedError(Exception):
    """A name has several values, and which one it is depends on a condition that cannot be evaluated."""


class SourceModule:
    """A module and its statements.

    Attributes:
        module: what imports give, and what is in `sys.modules`.
        file: its path, as messages have it.
        left_out: (line, error) of each statement and decorator that was needed and raised.
    """

    def __init__(self, module: ModuleType, path: Path, file: str, tree: ast.Module, bindings: Bindings):
        self.module, self.path, self.file, self.tree, self._bindings = module, path, file, tree, bindings
        self.left_out: dict[int, BaseException] = {}
        self._results: dict[Statement, dict[str, Any] | BaseException] = {}
        self._definitions: dict[Statement, Definition] = {}
        self._branches: dict[Statement, Block] = {}
        self._running: list[Statement] = []
        self._lines: list[float] = []
        self._whole = False

    def connect(self, importer: Importer, submodule: Callable[[SourceModule, str], ModuleType | None]) -> None:
        """Let the module import by `importer`, and have as attributes the modules that are in it."""
        self._importer, self._submodule = importer, submodule
        namespace = self.module.__dict__
        namespace["__builtins__"] = _Builtins(self, importer)
        namespace["__getattr__"] = self.attribute

    # What names mean

    def attribute(self, name: str) -> Any:
        """What the module calls `name`. Raises what a statement that binds it raises, or AttributeError."""
        namespace = self.module.__dict__
        value = namespace.get(name, ABSENT)
        if value is ABSENT:
            value = self.lookup(name)
        if value is not ABSENT:
            namespace[name] = value
            return value
        if not name.startswith("__"):
            if (found := self._submodule(self, name)) is not None:
                return found
            if (own := self.lookup("__getattr__")) is not ABSENT:
                return own(name)
        raise AbsentError(f"module {self.module.__name__!r} has no attribute {name!r}")

    def read(self, name: str) -> Any:
        """What the code of the module reads as `name`; `ABSENT` where no statement before it binds that."""
        value = self.lookup(name, self._lines[-1] if self._lines else math.inf)
        if value is not ABSENT:
            self.module.__dict__[name] = value
        return value

    def lookup(self, name: str, before: float = math.inf, core: bool = False) -> Any:
        """What `name` means before the statement of an index. Raises what a statement that binds it raises.

        Args:
            core: whether of a decorated jit function just that is wanted.
        """
        if self._whole:
            return self.module.__dict__.get(name, ABSENT)
        leaves = self._bindings.leaves.get(name, ())
        if len(leaves) == 1:
            found = self._outcome(leaves[0], name, core) if leaves[0].index < before else ABSENT
        elif (only := self._of_triton(leaves)) is not None:
            found = self._outcome(only, name, core)
        else:
            found = self._latest(self._bindings.statements, name, before, core) if leaves else ABSENT
        return self._starred(name, before) if found is ABSENT else found

    def defined(self, path: str) -> Any:
        """The function that a dotted path of classes and functions leads to, as if it were at module level; `ABSENT`
        where there are none, or several."""
        found: list[ast.AST] = [self.tree]
        for part in path.split("."):
            inner = [node for outer in found for node in ast.walk(outer) if node not in found]
            found = [node for node in inner if getattr(node, "name", None) == part and hasattr(node, "body")]
        match found:
            case [ast.FunctionDef() as node]:
                return self._define(node).value
        return ABSENT

    def _outer_decorators(self, name: str) -> tuple[ast.expr, ...]:
        """The decorators around a jit function that `lookup` has found, from the innermost."""
        for leaf in reversed(self._bindings.leaves.get(name, ())):
            if leaf in self._definitions and name in leaf.names:
                return self._definitions[leaf].outer
        return ()

    def tuned(self, name: str, function: Any) -> Any:
        """A jit function of the module within its autotuner and heuristics; its other decorators are not run. Raises
        what those raise."""
        from triton.runtime.autotuner import Autotuner, Heuristics

        for decorator in self._outer_decorators(name):
            if is_tuner(decorator):
                found = self.evaluate(decorator)(function)
                function = found if isinstance(found, Autotuner | Heuristics) else function
        return function

    def notes(self) -> str:
        """What was needed and could not be evaluated, in a line."""
        told = (f"line {line} ({described(error)})" for line, error in sorted(self.left_out.items()))
        return f"file {self.file}: left out {', '.join(told)}"

    def function_at(self, name: str, line: int) -> ast.FunctionDef | None:
        """The text of the function at module level whose `def` is at a line; None where there is none."""
        nodes = (leaf.node for leaf in self._bindings.leaves.get(name, ()))
        return next((node for node in nodes if isinstance(node, ast.FunctionDef) and node.lineno == line), None)

    def names(self) -> tuple[str, ...]:
        """All names that statements bind."""
        return tuple(self._bindings.leaves)

    def jit_names(self) -> tuple[str, ...]:
        """The functions whose text says that they are jit functions."""
        return tuple(
            node.name for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef) and is_jit_text(node)
        )

    # What statements do

    def run_whole(self) -> None:
        """Run the file as Python does, once. Raises what it raises."""
        if self._whole:
            return
        self._whole = True
        code = compile(self.tree, str(self.path), "exec", dont_inherit=True, flags=self._bindings.flags)
        exec(code, self.module.__dict__)

    def evaluate(self, expression: ast.expr, index: float = math.inf) -> Any:
        """An expression of the module's text, at the place of a statement. Raises what it raises."""
        code = compile(ast.Expression(expression), str(self.path), "eval", dont_inherit=True, flags=self._flags)
        with self._at(index):
            return eval(code, self.module.__dict__)

    @property
    def _flags(self) -> int:
        return self._bindings.flags

    def _of_triton(self, leaves: list[Statement] | tuple[()]) -> Statement | None:
        """The one way in which a name's statements import it from Triton, which is there, whatever a file makes of the
        machine."""
        found = {ast.dump(leaf.node): leaf for leaf in leaves if is_own(leaf.node, "triton")}
        if len(found) != 1:
            return None
        (only,) = found.values()
        return None if isinstance(self._result(only), BaseException) else only

    def _latest(self, block: Block, name: str, before: float, core: bool) -> Any:
        for statement in reversed(block):
            if name not in statement.names or statement.index >= before or statement in self._running:
                continue
            if isinstance(statement.node, ast.Delete):
                return ABSENT
            if isinstance(statement.node, ast.If):
                found = self._latest(self._branch(statement, name), name, before, core)
            elif name in statement.changes and isinstance(self._result(statement), BaseException):
                continue  # an attribute of a function that could not be set
            else:
                found = self._outcome(statement, name, core)
            if found is not ABSENT:
                return found
        return ABSENT

    def _branch(self, statement: Statement, name: str) -> Block:
        assert isinstance(statement.node, ast.If)
        if statement not in self._branches:
            try:
                taken = bool(self.evaluate(statement.node.test, statement.index))
            except BaseException as error:
                if is_interrupt(error):
                    raise
                return self._only_branch(statement, name, error)
            self._branches[statement] = statement.blocks[0 if taken else 1]
        return self._branches[statement]

    def _only_branch(self, statement: Statement, name: str, error: BaseException) -> Block:
        """The branch that binds a name which nothing else binds; or that defines a jit function of the name, where all
        others define what Triton cannot call: they are for a machine without it."""
        leaves = self._bindings.leaves[name]
        binding = [block for block in statement.blocks if any(name in item.names for item in block)]
        if len(binding) == 1 and leaves[0].index > statement.index:
            return binding[0]
        if all(isinstance(leaf.node, ast.FunctionDef | ast.ClassDef) for leaf in leaves):
            jit = [block for block in binding if any(name in item.names and is_jit_text(item.node) for item in block)]
            if len(jit) == 1 and sum(is_jit_text(leaf.node) for leaf in leaves) == 1:
                return jit[0]
        lines = " and ".join(f"{self.file}:{leaf.node.lineno}" for leaf in leaves)
        condition = f"the condition at {self.file}:{statement.node.lineno} cannot be evaluated: {described(error)}"
        raise UndecidedError(f"{name!r} is bound at {lines}, and {condition}") from error

    def _outcome(self, statement: Statement, name: str, core: bool) -> Any:
        if statement in self._running:
            return ABSENT
        result = self._result(statement)
        if isinstance(result, BaseException):
            raise result
        definition = self._definitions.get(statement)
        if core or definition is None or not definition.outer:
            return result.get(name, ABSENT)
        return self._decorated(definition, statement.index)

    def _decorated(self, definition: Definition, index: float) -> Any:
        value = definition.value
        for decorator in definition.outer:
            try:
                value = self.evaluate(decorator, index)(value)
            except BaseException as error:
                if is_interrupt(error) or is_tuner(decorator):
                    raise
                self.left_out[decorator.lineno] = error
        return value

    def _result(self, statement: Statement) -> dict[str, Any] | BaseException:
        if statement not in self._results:
            self._results[statement] = self._run(statement)
        return self._results[statement]

    def _run(self, statement: Statement) -> dict[str, Any] | BaseException:
        namespace = self.module.__dict__
        hook = namespace["__getattr__"]
        self._running.append(statement)
        try:
            with self._at(statement.index):
                if isinstance(statement.node, ast.FunctionDef):
                    self._definitions[statement] = definition = self._define(statement.node, statement.index)
                    return {statement.node.name: definition.value}
                had = {name: namespace[name] for name in statement.names if name in namespace}
                if isinstance(statement.node, ast.ClassDef):
                    self._execute_class(statement.node)
                else:
                    self._execute(_plain(statement.node))
                namespace.update(had)  # what a statement in it has bound before
                return {name: namespace[name] for name in statement.names if name in namespace}
        except BaseException as error:
            if is_interrupt(error):
                raise
            self.left_out[statement.node.lineno] = error
            return (isinstance(error, ModuleNotFoundError) and _triton_itself(statement.node)) or error
        finally:
            self._running.pop()
            namespace["__getattr__"] = hook

    def _define(self, node: ast.FunctionDef, index: float = math.inf) -> Definition:
        namespace = self.module.__dict__

        def execute(bare: ast.stmt, postponed: bool) -> Any:
            before = namespace.get(node.name, ABSENT)
            self._execute(bare, postponed)
            found = namespace.pop(node.name)
            if before is not ABSENT:
                namespace[node.name] = before
            return found

        return define(node, lambda expression: self.evaluate(expression, index), execute, namespace)

    def _execute(self, node: ast.stmt, postponed: bool = False) -> None:
        flags = self._flags | (__future__.annotations.compiler_flag if postponed else 0)
        code = compile(ast.Module([node], []), str(self.path), "exec", dont_inherit=True, flags=flags)
        exec(code, self.module.__dict__)

    def _execute_class(self, node: ast.ClassDef) -> None:
        try:
            self._execute(node)
        except BaseException as error:
            if is_interrupt(error):
                raise
            self._execute(node, postponed=True)

    @contextmanager
    def _at(self, index: float) -> Iterator[None]:
        """Let names that are bound several times mean what they do before a statement."""
        namespace, rebound = self.module.__dict__, self._bindings.rebound
        held = {name: namespace.pop(name) for name in rebound if name in namespace}
        self._lines.append(index)
        try:
            yield
        finally:
            self._lines.pop()
            for name in rebound:
                namespace.pop(name, None)
            namespace.update(held)

    def _starred(self, name: str, before: float) -> Any:
        """What `from … import *` binds a name to; one whose module is not there binds nothing."""
        if name.startswith("_"):
            return ABSENT
        for statement in reversed(self._bindings.stars):
            if statement.index >= before or statement in self._running:
                continue
            self._running.append(statement)
            try:
                assert isinstance(statement.node, ast.ImportFrom)
                module = self._importer(self, statement.node.module or "", (), statement.node.level)
                if name in getattr(module, "__all__", [name]):
                    return getattr(module, name)
            except AttributeError:
                continue
            except ImportError as error:
                self.left_out[statement.node.lineno] = error
            finally:
                self._running.pop()
        return ABSENT


class _Builtins(dict[str, Any]):
    """Python's builtins, for a module's code: a name that the module binds is looked for there first."""

    def __init__(self, owner: SourceModule, importer: Importer):
        super().__init__(vars(builtins))
        self._owner = owner

        def import_(
            name: str, globals: object = None, locals: object = None, fromlist: Any = (), level: int = 0
        ) -> ModuleType:
            return importer(owner, name, tuple(fromlist) if fromlist else None, level)

        super().__setitem__("__import__", import_)

    def __getitem__(self, name: str) -> Any:
        # Code of the module looks names up in its frame's builtins, which is this; `inspect` may ask it, too.
        if sys._getframe(1).f_builtins is self:
            found = self._owner.read(name)
            if found is not ABSENT:
                return found
        return super().__getitem__(name)


def _triton_itself(node: ast.stmt) -> dict[str, Any]:
    """What an import of a package that is not there binds, if that is known: other packages hand Triton on."""
    import triton
    import triton.language

    known = {"triton": triton, "tl": triton.language}
    if not isinstance(node, ast.ImportFrom):
        return {}
    return {alias.asname or alias.name: known[alias.name] for alias in node.names if alias.name in known}


def _plain(node: ast.stmt) -> ast.stmt:
    if isinstance(node, ast.AnnAssign) and node.value:
        return ast.copy_location(ast.Assign([node.target], node.value), node)
    return node
