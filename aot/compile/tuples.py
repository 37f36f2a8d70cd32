"""Kernel parameters that are tuples, as Triton takes them.

A job names every member by its path: `q.ptr`, `q.stride_heads`; members of a tuple without names by position:
`strides.0`, `score_mod.operands.0`. Triton wants the types nested as the tuples are, and constants and hints by the
positions along the path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class TupleError(ValueError):
    """The names of a signature are not those of the kernel's parameters and their members."""


def member_paths(
    names: Sequence[str], parameters: Sequence[str], classes: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    """Return the path of positions for each name of a signature.

    Args:
        names: parameters, or the members of those that are tuples, in order.
        parameters: the kernel's, in order.
        classes: the `NamedTuple` class of each parameter that has one.

    Raises:
        TupleError: the text continues "signature of 'kernel' ".
    """
    heads = list(dict.fromkeys(name.partition(".")[0] for name in names))
    if heads != list(parameters):
        raise TupleError(f"names {heads}, but the kernel's parameters are {list(parameters)}")
    paths: dict[str, tuple[int, ...]] = {}
    for position, parameter in enumerate(parameters):
        own = [name.split(".")[1:] for name in names if name.partition(".")[0] == parameter]
        if own == [[]]:
            paths[parameter] = (position,)
            continue
        if parameter not in classes:
            if own != [[str(i)] for i in range(len(own))]:
                raise TupleError(f"names members of {parameter!r}, which is not annotated with a NamedTuple class")
            paths |= {f"{parameter}.{i}": (position, i) for i in range(len(own))}
            continue
        fields = classes[parameter]._fields
        for member in own:
            if not member or member[0] not in fields or not all(part.isdigit() for part in member[1:]):
                path = ".".join([parameter, *member])
                raise TupleError(f"names {path!r}, but the members of {parameter!r} are {list(fields)}")
            paths[".".join([parameter, *member])] = (position, fields.index(member[0]), *map(int, member[1:]))
    if list(paths) != list(names) or list(paths.values()) != sorted(paths.values()):
        raise TupleError(f"has its members out of order: {list(names)}")
    return paths


def nested_types(types: Mapping[str, str], parameters: Iterable[str], classes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types of a signature, with those of members nested in their tuples."""
    return {
        name: _nested(types, name, classes[name]) if name in classes and name not in types else _member(types, name)
        for name in parameters
    }


def _nested(types: Mapping[str, str], parameter: str, tuple_class: Any) -> Any:
    return tuple_class(*(_member(types, f"{parameter}.{field}") for field in tuple_class._fields))


def _member(types: Mapping[str, str], path: str) -> Any:
    """Return the type of a parameter or member; for a tuple, a tuple of types, which may be empty."""
    if path in types:
        return types[path]
    return tuple(type_name for name, type_name in types.items() if name.startswith(f"{path}."))
