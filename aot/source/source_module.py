"""A module that runs the statements that its users depend on, in order, and skips those that fail.

If a statement raises, the names that it binds are missing, and reading one fails with the same error. All other names
have the values that running the whole file would give them.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import copy
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from aot.errors import described, is_interrupt

from .missing import AbsentError, Missing
from .statements import (
    Statement,
    bound_names,
    called_name,
    inner_statements,
    is_jit_text,
    module_statements,
    used_decorators,
)

_HANDED_ON = {"triton": "triton", "tl": "triton.language"}
"""Names that packages re-export → Triton's modules, which replace them if the package is missing."""
ABSENT = object()

Importer = Callable[["SourceModule", str, "tuple[str, ...] | None", int], ModuleType]
"""Imports a dotted name for a module, given the imported names, if any, and the number of leading dots."""


class UndecidedError(Exception):
    """The value of a name depends on a condition that cannot be evaluated."""


class SourceModule:
    """The statements of a file, and the module that they fill.

    Attributes:
        module: the module that imports return, and that is in `sys.modules`.
        names: its namespace.
        scope: the globals that its jit functions are given, see `Closures`.
        file: its path, as messages have it.
        missing: name → error of the statement that was to bind it.
        left_out: line → error of each statement, condition and decorator that was needed and failed.
    """

    def __init__(self, module: ModuleType, path: Path, file: str, tree: ast.Module):
        self.module, self.names, self.path, self.file, self.tree = module, module.__dict__, path, file, tree
        self.scope: dict[str, Any] = {}
        self.missing: dict[str, BaseException] = {}
        self.left_out: dict[int, BaseException] = {}
        self._statements = module_statements(tree)
        self._binding: dict[str, list[Statement]] = defaultdict(list)
        for item in self._statements:
            for name in item.binds | item.patches:
                self._binding[name].append(item)
        self._has_star = any(item.is_star for item in self._statements)
        self._wanted: set[str] = set()
        self._done: set[Statement] = set()
        self._position = len(self._statements)  # of the statement that is running
        self._outcomes: dict[ast.If, bool | BaseException] = {}
        self._own_getattr: Callable[[str], Any] | None = None
        self._triton, self._of_triton = _triton_imports(self._statements), dict[str, Any]()
        self._tuned: dict[str, Any] = {}  # jit function → its autotuner and heuristics, or the error of evaluating them
        self._flags = _future_flags(tree)
        self._whole = False

    def connect(
        self,
        importer: Importer,
        submodule: Callable[[SourceModule, str], ModuleType | None],
        place: Callable[[TracebackType | None], str],
    ) -> None:
        """Set the functions that import modules, find submodules, and locate a traceback in the project."""
        self._importer, self._submodule, self._place = importer, submodule, place

        def import_(
            name: str, globals: object = None, locals: object = None, fromlist: Any = (), level: int = 0
        ) -> ModuleType:
            return importer(self, name, tuple(fromlist) if fromlist else None, level)

        self._getattr = self._attribute_or_absent
        self.names["__builtins__"] = _Builtins(vars(builtins) | {"__import__": import_}, missing=self.missing)
        self.names["__getattr__"] = self._getattr

    def demand(self, names: Iterable[str]) -> None:
        """Run the statements that names depend on, up to the current position in the file."""
        waiting = [name for name in names if name not in self._wanted]
        if self._whole or not waiting:
            return
        known = any(name in self._binding for name in waiting)
        self._want(waiting)
        if not known and not self._has_star:
            return
        self._forget_outdated()
        for item in self._statements[: self._position]:
            if item not in self._done and self._is_wanted(item):
                self._run(item)

    def attribute(self, name: str) -> Any:
        """Return an attribute of the module. Raises AbsentError, or the error of the statement that should have bound
        it.
        """
        self.demand({name})
        if name in self.names:
            return self.names[name]
        if name in self.missing:
            raise self.missing[name]
        if not name.startswith("__"):
            if (found := self._submodule(self, name)) is not None:
                return found
            self.demand({"__getattr__"})
            if self._own_getattr is not None:
                return self._own_getattr(name)
        raise AbsentError(f"module {self.module.__name__!r} has no attribute {name!r}")

    def nested(self, path: str) -> Any:
        """Return the function at a dotted path of classes and functions, as if it were at module level; `ABSENT` if
        there is none, or several.
        """
        found: list[ast.AST] = [self.tree]
        for part in path.split("."):
            inner = [node for outer in found for node in ast.walk(outer) if node not in found]
            found = [node for node in inner if getattr(node, "name", None) == part and hasattr(node, "body")]
        match found:
            case [ast.FunctionDef() as node]:
                for item in module_statements(ast.Module([node], [])):
                    self.demand(item.reads)
                return self._function(node)
        return ABSENT

    def tuned(self, name: str, function: Any) -> Any:
        """Return a jit function inside its autotuner and heuristics. Raises the error of evaluating these, if any."""
        found = self._tuned.get(name, function)
        if isinstance(found, BaseException):
            raise found
        return found

    def run_whole(self) -> None:
        """Run the whole file once, as Python does. Exceptions of the file propagate."""
        if not self._whole:
            self._whole = True
            self._execute(self.tree.body)

    def public_names(self) -> list[str]:
        """Return the names that `from … import *` imports."""
        self.demand({"__all__"})
        return self.names.get("__all__") or [name for name in self._binding if not name.startswith("_")]

    def notes(self) -> str:
        """Return a line that lists the statements that were needed and failed."""
        told = (f"line {line} ({described(error)})" for line, error in sorted(self.left_out.items()))
        return f"file {self.file}: left out {', '.join(told)}"

    def _attribute_or_absent(self, name: str) -> Any:
        try:
            return self.attribute(name)
        except BaseException as error:
            if is_interrupt(error) or isinstance(error, AttributeError):
                raise
            why = f"{described(error)}{self._place(error.__traceback__)}"
            raise AbsentError(f"'{self.module.__name__}.{name}', which is not available: {why}", error) from error

    # Which statements are run

    def _want(self, names: list[str]) -> None:
        while names:
            name = names.pop()
            if name not in self._wanted:
                self._wanted.add(name)
                names += (read for item in self._binding.get(name, ()) for read in item.reads)
                self._hand_on(name)

    def _is_wanted(self, item: Statement) -> bool:
        return item.is_star or not self._wanted.isdisjoint(item.binds | item.patches)

    def _forget_outdated(self) -> None:
        """Forget that earlier statements ran, if one to be run now reads a name that was bound again after it."""
        first_read: dict[str, int] = {}
        for item in self._statements[: self._position]:
            if item not in self._done and self._is_wanted(item):
                for name in item.reads:
                    first_read.setdefault(name, item.index)
        rebound = {name for name in first_read if len(self._binding.get(name, ())) > 1}
        if any(item.index > first_read[name] for item in self._done for name in item.binds & rebound):
            self._done = {item for item in self._done if item.index >= self._position}

    def _run(self, item: Statement) -> None:
        if not item.is_star:
            self._done.add(item)
        before, self._position = self._position, item.index
        try:
            if self._is_reached(item):
                self._perform(item.node)
        except BaseException as error:
            self._leave_out(item.node, item.binds, error)
        self._settle(item)
        for node in inner_statements(item.node):
            self._rescue(item, node)
        self._position = before

    def _is_reached(self, item: Statement) -> bool:
        """Return True if a statement's conditions have the outcomes for which it runs. Raises UndecidedError."""
        for test, outcome in item.conditions:
            found = self._outcome(test)
            if isinstance(found, BaseException):
                if not all(self._is_sole(item, name, test, outcome, found) for name in item.binds & self._wanted):
                    return False
            elif found is not outcome:
                return False
        return True

    def _outcome(self, test: ast.If) -> bool | BaseException:
        if test not in self._outcomes:
            try:
                self._outcomes[test] = bool(self._evaluate(test.test))
            except BaseException as error:
                if is_interrupt(error):
                    raise
                self._outcomes[test] = self.left_out[test.lineno] = _cause(error)
        return self._outcomes[test]

    def _is_sole(self, item: Statement, name: str, test: ast.If, outcome: bool, error: BaseException) -> bool:
        """Return True if a statement in a branch is the only one that binds a name, or the only jit function among its
        definitions: the others are for machines without Triton.
        """
        binding = self._binding[name]
        rivals = [one for one in binding if (test, outcome) not in one.conditions]
        if all(one.index > item.index and (test, not outcome) not in one.conditions for one in rivals):
            return True
        defined = all(isinstance(one.node, ast.FunctionDef | ast.ClassDef) for one in binding)
        if defined and sum(is_jit_text(one.node) for one in binding) == 1:
            return is_jit_text(item.node)
        lines = " and ".join(f"{self.file}:{one.node.lineno}" for one in binding)
        condition = f"the condition at {self.file}:{test.lineno} cannot be evaluated: {described(error)}"
        raise UndecidedError(f"{name!r} is bound at {lines}, and {condition}") from error

    def _leave_out(self, node: ast.stmt | ast.expr, binds: Iterable[str], error: BaseException) -> None:
        if is_interrupt(error):
            raise error
        self.left_out[node.lineno] = error = _cause(error)
        for name in binds:
            if not (isinstance(node, ast.Import) and name in self.names):  # `import a.b` where `a` is there
                self.names.pop(name, None)
                self.missing[name] = error

    def _rescue(self, item: Statement, node: ast.stmt) -> None:
        """Run a statement of a `try` that was not reached, if its names are bound nowhere else."""
        names = bound_names(node)
        wanted = [name for name in names & self._wanted if name not in self.names]
        inner = Counter(name for other in inner_statements(item.node) for name in bound_names(other))
        if wanted and all(self._binding[name] == [item] and inner[name] == 1 for name in wanted):
            try:
                self._perform(node)
            except BaseException as error:
                self._leave_out(node, names, error)
            self._settle(item)

    def _settle(self, item: Statement) -> None:
        """Keep Triton's modules, and note which names are available again."""
        self.names.update(self._of_triton)
        if self.names["__getattr__"] is not self._getattr:
            self._own_getattr = self.names["__getattr__"]
            self.names["__getattr__"] = self._getattr
        for name in item.binds & self.missing.keys() & self.names.keys():
            del self.missing[name]

    def _hand_on(self, name: str) -> None:
        """Import a name of Triton's, which is available even if the file's own conditions say otherwise."""
        if name in self._triton:
            try:
                self._execute([self._triton[name]])
                self._of_triton[name] = self.names[name]
            except ImportError:
                pass

    # What statements do

    def _evaluate(self, expression: ast.expr) -> Any:
        code = compile(ast.Expression(expression), str(self.path), "eval", dont_inherit=True, flags=self._flags)
        return eval(code, self.names)

    def _execute(self, nodes: list[ast.stmt], local: dict[str, Any] | None = None, postponed: bool = False) -> None:
        flags = self._flags | (__future__.annotations.compiler_flag if postponed else 0)
        exec(compile(ast.Module(nodes, []), str(self.path), "exec", dont_inherit=True, flags=flags), self.names, local)

    def _perform(self, node: ast.stmt) -> None:
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                self._import_all(node)
            case ast.ImportFrom(names=[alias]):
                self._import(node, alias)
            case ast.FunctionDef():
                self.names[node.name] = self._function(node)
            case ast.ClassDef():
                try:
                    self._execute([node])
                except BaseException as error:
                    if is_interrupt(error):
                        raise
                    self._execute([node], postponed=True)
            case ast.AnnAssign(value=None):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._execute([ast.copy_location(ast.Assign([target], value), node)])
            case _:
                self._execute([node])

    def _import(self, node: ast.ImportFrom, alias: ast.alias) -> None:
        try:
            self._execute([node])
        except ModuleNotFoundError:
            if alias.name not in _HANDED_ON:
                raise
            self.names[alias.asname or alias.name] = import_module(_HANDED_ON[alias.name])

    def _import_all(self, node: ast.ImportFrom) -> None:
        """Import the wanted names that no statement in this file binds."""
        wanted = self._wanted - self._binding.keys()
        if wanted <= vars(builtins).keys():
            return
        module = self._importer(self, node.module or "", (), node.level)
        public = getattr(module, "__all__", None)
        for name in wanted:
            if name in public if public else not name.startswith("_"):
                value = getattr(module, name, ABSENT)
                if value is not ABSENT:
                    self.names[name] = value

    def _function(self, node: ast.FunctionDef) -> Any:
        """Define a function with its decorators. Autotuners and heuristics around a jit function are stored, and other
        decorators around it are not run.
        """
        function, decorators = self._undecorated(node), used_decorators(node)
        if not decorators:  # a reference needs no Triton
            self._tuned[node.name] = function
            return function
        from triton.runtime.autotuner import Autotuner, Heuristics
        from triton.runtime.jit import JITCallable

        while decorators and not isinstance(function, JITCallable):
            function = self._decorated(function, decorators.pop(0))
        tuned = function
        try:
            for decorator in decorators:
                found = self._evaluate(decorator)(tuned)
                tuned = found if isinstance(found, Autotuner | Heuristics) else tuned
        except BaseException as error:
            self._leave_out(decorator, (), error)
            tuned = _cause(error)
        self._tuned[node.name] = tuned
        return function

    def _undecorated(self, node: ast.FunctionDef) -> Any:
        """Define a function without decorators, beginning at the line of its first one, which Triton hashes.

        If annotations cannot be evaluated, they stay text. A default that cannot be evaluated is an error when it is
        used.
        """
        bare, local = copy.copy(node), dict[str, Any]({_KEPT: lambda function: function})
        bare.decorator_list = [ast.copy_location(ast.Name(_KEPT, ast.Load()), item) for item in node.decorator_list[:1]]
        try:
            self._execute([bare], local)
        except BaseException as error:
            if is_interrupt(error):
                raise
            bare.args = self._with_defaults(node.args, local)
            self._execute([bare], local, postponed=True)
        return local[node.name]

    def _with_defaults(self, arguments: ast.arguments, local: dict[str, Any]) -> ast.arguments:
        def default(expression: ast.expr | None) -> Any:
            if expression is None:
                return None
            name = f"{_KEPT}{len(local)}"
            local[name] = self._value(expression)
            return ast.copy_location(ast.Name(name, ast.Load()), expression)

        found = copy.copy(arguments)
        found.defaults = [default(item) for item in arguments.defaults]
        found.kw_defaults = [default(item) for item in arguments.kw_defaults]
        return found

    def _value(self, expression: ast.expr) -> Any:
        try:
            return self._evaluate(expression)
        except BaseException as error:
            if is_interrupt(error):
                raise
            return Missing(f"{ast.unparse(expression)} ({described(_cause(error))})")

    def _decorated(self, function: Any, decorator: ast.expr) -> Any:
        """Apply a decorator. A `jit` that cannot be evaluated is replaced by Triton's, with the options that can be."""
        try:
            return self._evaluate(decorator)(function)
        except BaseException as error:
            if is_interrupt(error) or called_name(decorator) != "jit":
                raise
        from triton.experimental import gluon
        from triton.runtime.jit import jit

        keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
        options = {item.arg: self._value(item.value) for item in keywords if item.arg in _JIT_OPTIONS}
        if isinstance(options.get("noinline"), Missing):
            raise ValueError(f"noinline={options['noinline']}")
        known = {name: value for name, value in options.items() if not isinstance(value, Missing)}
        return (gluon.jit if "gluon" in ast.unparse(decorator) else jit)(**known)(function)


class _Builtins(dict[str, Any]):
    """Python's builtins, for code of a module. Reading a missing name raises the error that made it missing."""

    def __init__(self, names: dict[str, Any], missing: dict[str, BaseException]):
        super().__init__(names)
        self._missing = missing

    def __missing__(self, name: str) -> Any:
        # Code of the module looks names up in its frame's builtins, which is this; `inspect` may ask it, too.
        if name in self._missing and sys._getframe(1).f_builtins is self:
            raise self._missing[name]
        raise KeyError(name)


def _cause(error: BaseException) -> BaseException:
    """Return the error that made an attribute of a module missing; any other error is returned unchanged."""
    return (isinstance(error, AbsentError) and error.cause) or error


_KEPT = "<kept>"
"""A name that no file can write."""

_JIT_OPTIONS = (
    *("version", "repr", "launch_metadata", "do_not_specialize"),
    *("do_not_specialize_on_alignment", "debug", "noinline"),
)


def without_tuners(value: Any) -> Any:
    """Return the jit function inside an autotuner and heuristics; other values are returned unchanged."""
    from triton.runtime.autotuner import Autotuner, Heuristics

    while isinstance(value, Autotuner | Heuristics):
        value = value.fn
    return value


def _triton_imports(statements: Iterable[Statement]) -> dict[str, ast.stmt]:
    """Return name → import from Triton, for names that a file imports from Triton in a single way."""
    found: dict[str, dict[str, ast.stmt]] = defaultdict(dict)
    for node in (node for item in statements for node in (item.node, *inner_statements(item.node))):
        match node:
            case ast.ImportFrom(module=str(module), level=0) | ast.Import(names=[ast.alias(name=module)]):
                if module.partition(".")[0] == "triton":
                    for name in bound_names(node):
                        found[name][ast.dump(node)] = node
    return {name: next(iter(nodes.values())) for name, nodes in found.items() if len(nodes) == 1}


def _future_flags(tree: ast.Module) -> int:
    features = [
        getattr(__future__, alias.name, None)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        for alias in node.names
    ]
    return sum({feature.compiler_flag for feature in features if feature})
