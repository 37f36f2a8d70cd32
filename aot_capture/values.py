"""JSON for the Python values that Triton kernels depend on: constexprs, types, functions, layouts, modules."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import importlib
import numbers
import sys
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any, Optional

Json = Any
Attributes = Mapping[str, Any]  # attributes read from a value, and of these in turn: {"sub": {"f": {}}}

IMPORTABLE = ("triton", "math")
BUILTINS = frozenset(
    {"abs", "bool", "dict", "float", "getattr", "int", "isinstance", "len", "list", "max", "min", "print", "range"}
    | {"str", "tuple", "type"}
)
LARGEST = 10_000  # items of a container: a larger one is a table of the program, not a kernel's
_ENUM_BASES = ("IntFlag", "Flag", "IntEnum", "StrEnum", "Enum")


class ValueDecodeError(ValueError):
    """An encoded value that is malformed, or that cannot be made without the program that it comes from."""


def is_importable(module: str) -> bool:
    """Return True for the modules that the builder has too: Triton's, and `math`."""
    return module.split(".")[0] in IMPORTABLE


def resolve(module: str, qualname: str) -> Any:
    """Return the object `qualname` of `module`, which must be Triton's, `math`'s or a plain builtin."""
    if module == "builtins":
        if qualname not in BUILTINS:
            raise ValueDecodeError(f"{qualname!r} is not among the builtins that a kernel may name")
        return getattr(builtins, qualname)
    if not is_importable(module):
        raise ValueDecodeError(f"{module}.{qualname} is neither Triton's nor math's")
    try:
        found: Any = importlib.import_module(module)
        for name in filter(None, qualname.split(".")):
            found = getattr(found, name)
            owner = found.__name__ if isinstance(found, types.ModuleType) else getattr(found, "__module__", module)
            if not is_importable(str(owner)):
                raise ValueDecodeError(f"{module}.{qualname} belongs to {owner}, which is not Triton's")
    except (ImportError, AttributeError) as error:
        raise ValueDecodeError(f"this Triton has no {module}.{qualname}: {error}") from None
    return found


def _is_found_there(value: Any) -> bool:
    try:
        return resolve(value.__module__, value.__qualname__) is value
    except (ValueDecodeError, AttributeError, TypeError):
        return False


class Encoder:
    """Encodes values. Functions and classes are passed to `note_function` and `note_class`, which return their ids."""

    def __init__(self, note_function: Callable[[Any], str], note_class: Callable[[type], str]) -> None:
        self._note_function = note_function
        self._note_class = note_class

    def encode(self, value: Any, attributes: Attributes = {}) -> Json:  # noqa: B006
        """Return `value` as JSON. Of a module or class of the program, `attributes` alone are kept."""
        if value is None or type(value) in (bool, str, int):
            return value
        if isinstance(value, enum.Enum):
            return self._enum_member(value)
        number = _number(value)
        if number is not None:
            return number
        return self._of_triton(value) or self._container(value) or self._named(value, attributes) or _opaque(value)

    def encode_object(self, value: Any, attributes: Attributes, of_object: Attributes) -> Json:
        """Return `value` as JSON, and of an object of the program, as a namespace, the attributes `of_object`."""
        encoded = self.encode(value, attributes)
        if of_object and isinstance(encoded, dict) and "opaque" in encoded:
            return self._namespace(value, encoded["opaque"][0], of_object)
        return encoded

    def _enum_member(self, value: enum.Enum) -> Json:
        base = next((name for name in _ENUM_BASES if any(c.__name__ == name for c in type(value).__mro__)), "Enum")
        kind = type(value)
        return {"enum": [kind.__module__, kind.__qualname__, value.name, self.encode(value.value), base]}

    def _of_triton(self, value: Any) -> Json:
        import triton.language as tl

        if is_callable(value):
            fn: Any = getattr(value, "__func__", value)
            if _is_function_of_triton(fn):
                return {"import": [fn.fn.__module__, fn.fn.__qualname__]}
            return {"function": self._note_function(fn)}
        if is_marked(value) and not is_importable(value.__module__):
            return {"function": self._note_function(value)}
        if isinstance(value, tl.constexpr):
            return {"constexpr": self.encode(value.value)}
        if type(value) is tl.dtype:
            return {"dtype": value.name}
        return None

    def _container(self, value: Any) -> Json:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            kind = type(value)
            return {
                "namedtuple": [kind.__module__, kind.__qualname__, list(value._fields), [self.encode(v) for v in value]]
            }
        if isinstance(value, (tuple, list, dict)) and len(value) > LARGEST:
            return None
        if type(value) is tuple:
            return {"tuple": [self.encode(item) for item in value]}
        if type(value) is list:
            return {"list": [self.encode(item) for item in value]}
        if isinstance(value, dict):
            return {"dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        return None

    def _named(self, value: Any, attributes: Attributes) -> Json:
        if isinstance(value, types.ModuleType):
            if is_importable(value.__name__):
                return {"module": value.__name__}
            return self._namespace(value, value.__name__, attributes)
        if getattr(value, "__module__", None) is not None and hasattr(value, "__qualname__") and _is_found_there(value):
            return {"import": [value.__module__, value.__qualname__]}
        if isinstance(value, type):
            if getattr(value, "__triton_aggregate__", False):
                return {"aggregate": self._note_class(value)}
            return self._namespace(value, f"{value.__module__}.{value.__qualname__}", attributes)
        variable = _variable_of_triton(value)
        if variable is not None:
            return {"import": [type(value).__module__, variable]}
        if dataclasses.is_dataclass(value):
            return self._dataclass(value)
        return None

    def _namespace(self, value: Any, name: str, attributes: Attributes) -> Json:
        kept = {a: self.encode(getattr(value, a), deeper) for a, deeper in attributes.items() if hasattr(value, a)}
        return {"namespace": [name, kept]}

    def _dataclass(self, value: Any) -> Json:
        kind = type(value)
        fields = {f.name: self.encode(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        methods = {} if is_importable(kind.__module__) else functions_of_class(kind)
        return {
            "dataclass": [kind.__module__, kind.__qualname__, fields, {n: self.encode(m) for n, m in methods.items()}]
        }


def functions_of_class(kind: type) -> dict[str, Any]:
    """Return the Triton functions among a class's attributes, inherited ones included, by name."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        for name, value in vars(base).items():
            value = getattr(value, "__func__", value) if isinstance(value, staticmethod) else value
            if is_callable(value):
                found[name] = value
    return found


def is_callable(value: Any) -> bool:
    """Return True for a function that Triton compiles, or evaluates while it compiles."""
    from triton.runtime import jit

    if isinstance(value, getattr(jit, "JITCallable", jit.JITFunction)):
        return True
    return type(value).__name__ == "ConstexprFunction" and type(value).__module__.startswith("triton.")


def is_marked(value: Any) -> bool:
    """Return True for a plain Python function that is marked as a builtin of Triton, so that kernels may call it."""
    return isinstance(value, types.FunctionType) and bool(getattr(value, "__triton_builtin__", False))


def _variable_of_triton(value: Any) -> Optional[str]:
    """Return the name of the variable that holds an object, such as the driver, in its class's module of Triton."""
    module = type(value).__module__
    if not is_importable(module) or module not in sys.modules:
        return None
    return next((name for name, found in vars(sys.modules[module]).items() if found is value), None)


def _is_function_of_triton(fn: Any) -> bool:
    if not is_importable(str(fn.fn.__module__)):
        return False
    try:
        return resolve(fn.fn.__module__, fn.fn.__qualname__) is fn
    except ValueDecodeError:
        return False


def _number(value: Any) -> Json:
    """Encode floats and the numbers of other libraries, as long as they read like Python's: they enter keys as text."""
    if isinstance(value, float):
        return {"float": float.__repr__(value)}
    if isinstance(value, numbers.Integral) and str(int(value)) == str(value):
        return int(value)
    if isinstance(value, numbers.Real) and str(float(value)) == str(value):
        return {"float": repr(float(value))}
    return None


def _opaque(value: Any) -> Json:
    """Encode a type and, of builtin types alone, the text: the text of a tensor would copy it from the GPU."""
    kind = type(value)
    text = repr(value)[:200] if kind.__module__ == "builtins" and not isinstance(value, Collection) else ""
    return {"opaque": [f"{kind.__module__}.{kind.__qualname__}", text]}


class Decoder:
    """Makes values from JSON. `make_function` and `make_class` are called with the ids of functions and classes.

    It imports Triton's modules and `math`; anything else that would need the program raises `ValueDecodeError`.
    """

    def __init__(self, make_function: Callable[[str], Any], make_class: Callable[[str], Any]) -> None:
        self._make_function = make_function
        self._make_class = make_class

    def decode(self, value: Json) -> Any:
        """Return the value that `Encoder.encode` was given."""
        if value is None or isinstance(value, (bool, str, int)):
            return value
        if not isinstance(value, dict) or len(value) != 1:
            raise ValueDecodeError(f"malformed value: {str(value)[:80]}")
        ((tag, content),) = value.items()
        make = getattr(self, f"_{tag}", None) if tag in TAGS else None
        if make is None:
            raise ValueDecodeError(f"unknown tag {tag!r}")
        try:
            return make(content)
        except ValueDecodeError:
            raise
        except (TypeError, ValueError, KeyError, AttributeError, AssertionError, RecursionError) as error:
            raise ValueDecodeError(f"malformed {tag}: {error}") from None

    def _float(self, text: str) -> float:
        return float(text)

    def _constexpr(self, value: Json) -> Any:
        import triton.language as tl

        return tl.constexpr(self.decode(value))

    def _dtype(self, name: str) -> Any:
        import triton.language as tl

        return tl.dtype(name)

    def _tuple(self, items: list[Json]) -> tuple[Any, ...]:
        return tuple(self.decode(item) for item in items)

    def _list(self, items: list[Json]) -> list[Any]:
        return [self.decode(item) for item in items]

    def _dict(self, items: list[list[Json]]) -> dict[Any, Any]:
        return {self.decode(key): self.decode(item) for key, item in items}

    def _module(self, name: str) -> Any:
        return resolve(name, "")

    def _namespace(self, content: list[Any]) -> Any:
        name, attributes = content
        made = types.ModuleType(str(name))
        vars(made).update({key: self.decode(value) for key, value in attributes.items()})
        return made

    def _function(self, name: str) -> Any:
        return self._make_function(name)

    def _aggregate(self, name: str) -> Any:
        return self._make_class(name)

    def _enum(self, content: list[Any]) -> Any:
        module, qualname, name, value, base = content
        if is_importable(module):
            return resolve(module, f"{qualname}.{name}")
        if base not in _ENUM_BASES or not hasattr(enum, base):
            raise ValueDecodeError(f"{module}.{qualname} derives from the unknown enum {base!r}")
        made = getattr(enum, base)(qualname.split(".")[-1], {name: self.decode(value)})
        return made[name]

    def _dataclass(self, content: list[Any]) -> Any:
        module, qualname, encoded, methods = content
        fields = {name: self.decode(value) for name, value in encoded.items()}
        if is_importable(module):
            kind = resolve(module, qualname)
            if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
                raise ValueDecodeError(f"{module}.{qualname} is not a dataclass")
            return kind(**fields)
        namespace = {name: self.decode(value) for name, value in methods.items()}
        return dataclasses.make_dataclass(qualname.split(".")[-1], list(fields), namespace=namespace, frozen=True)(
            **fields
        )

    def _namedtuple(self, content: list[Any]) -> Any:
        _, qualname, fields, values = content
        kind = collections.namedtuple(qualname.split(".")[-1], fields)  # type: ignore[misc]
        return kind(*map(self.decode, values))

    def _import(self, content: list[str]) -> Any:
        return resolve(*content)

    def _opaque(self, content: list[str]) -> Any:
        kind, text = content
        said = f": {text}" if text else ""
        raise ValueDecodeError(f"a value of type {kind} cannot be made without the program{said}")


TAGS = frozenset(
    {"float", "constexpr", "dtype", "tuple", "list", "dict", "module", "namespace", "function", "aggregate", "enum"}
    | {"dataclass", "namedtuple", "import", "opaque"}
)
