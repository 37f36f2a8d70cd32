"""Bind the members of a kernel parameter that is a named tuple.

    class Matrix(NamedTuple):
        ptr: tl.tensor
        stride_rows: tl.tensor
        stride_columns: tl.tensor

A tensor's tuple has a member `ptr`, its address, and members `stride_<dim>`. A function's tuple has `function` and
`operands`, which it captures. Any other member is bound as a parameter of its name would be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aot.manifest.schema import BindSpec, Expr
from aot.source.kernel_source import NotPlain, Parameter
from aot_runtime.contract import records

POINTER, STRIDE = "ptr", "stride_"
FUNCTION, OPERANDS = "function", "operands"
NO_DIM = "none"


@dataclass(frozen=True)
class Absent:
    """The constant of a member of an absent tuple."""

    constant: Any


Value = Expr | BindSpec | tuple["Value", ...] | Absent
"""The value of a parameter or member: an expression, a tuple (as operands are), or nothing."""
Given = Expr | BindSpec | list[Expr | BindSpec | None] | None
"""An entry of `bind` for a parameter or member."""


class MemberError(ValueError):
    """A member is not bound, or bound to an invalid value."""


def member_values(
    parameter: Parameter,
    bind: Mapping[str, Given],
    tensors: Mapping[str, records.Tensor],
    by_name: Callable[[str], str | None],
) -> dict[str, Value]:
    """Return the value of each member, by its path. Raises `MemberError`.

    Args:
        bind: the launch's `bind`.
        by_name: returns the expression that a parameter's name stands for, or None.
    """
    given = bind.get(parameter.name)
    if given is None and parameter.name in bind:
        return {member.name: _absent(member) for member in parameter.members}
    if isinstance(given, list):
        return _by_position(parameter, given)
    if isinstance(given, BindSpec) and given.function is not None:
        return _of_function(parameter, given)
    dims = given.dims if isinstance(given, BindSpec) else None
    target = str((given.value if isinstance(given, BindSpec) else given) or parameter.name)
    if given is not None and target not in tensors:
        raise MemberError(
            f"parameter '{parameter.name}' is a tuple of {_fields(parameter)}, and '{target}' is not a tensor: bind it "
            f"to a tensor or a function, or bind its members one by one"
        )
    strides = _strides(parameter, tensors[target], dims, bind) if target in tensors else {}
    values: dict[str, Value] = {}
    for member in parameter.members:
        if member.name in bind:
            values[member.name] = as_value(bind[member.name])
        elif target in tensors and member.field == POINTER:
            values[member.name] = target
        elif member.name in strides:
            values[member.name] = strides[member.name]
        elif (named := by_name(member.field)) is not None:
            values[member.name] = named
    return _with_defaults(parameter, values)


def as_value(given: Given) -> Value:
    """Return the value of an entry of `bind`: a tuple for a list, `Absent` for null."""
    if isinstance(given, list):
        return tuple(map(as_value, given))
    return Absent(None) if given is None else given


def is_member(parameter: Parameter) -> bool:
    """Return True if a name is that of a member or an element of a tuple."""
    return "." in parameter.name


def length_fault(parameter: Parameter, count: int) -> str:
    """Return why the kernel cannot take this number of elements; empty if it can."""
    use = parameter.unpacked
    if use is None or use.least <= count <= (count if use.most is None else use.most):
        return ""
    wanted = f"{use.least}" if use.most == use.least else f"at least {use.least}"
    return f"has {count} element{'s' * (count != 1)}, but the kernel wants {wanted}: `{use.text}`"


def not_a_tuple(parameter: Parameter) -> str:
    """Return the error for a parameter that the kernel unpacks but that is bound to a single value."""
    assert parameter.unpacked is not None
    return f"is a tuple to the kernel, `{parameter.unpacked.text}`: bind it to a list of its elements"


def _by_position(parameter: Parameter, given: list[Expr | BindSpec | None]) -> dict[str, Value]:
    if len(given) != len(parameter.members):
        raise MemberError(
            f"parameter '{parameter.name}' is a tuple of {_fields(parameter)}: {len(parameter.members)} members, but "
            f"{len(given)} values are bound to them"
        )
    return {member.name: as_value(value) for member, value in zip(parameter.members, given, strict=True)}


def _of_function(parameter: Parameter, given: BindSpec) -> dict[str, Value]:
    if [member.field for member in parameter.members] != [FUNCTION, OPERANDS]:
        raise MemberError(
            f"parameter '{parameter.name}' is bound to '{given.function}', which only a tuple of {FUNCTION} and "
            f"{OPERANDS} can take; it is a tuple of {_fields(parameter)}"
        )
    function, operands = parameter.members
    return {function.name: str(given.function), operands.name: tuple(given.operands)}


def _with_defaults(parameter: Parameter, values: dict[str, Value]) -> dict[str, Value]:
    """Add the defaults of members that nothing binds. With none bound and a default for the tuple, all are absent."""
    if not values and parameter.has_default:
        return {member.name: _absent(member) for member in parameter.members}
    for member in parameter.members:
        if member.name not in values:
            if not member.has_default:
                raise MemberError(
                    f"member '{member.field}' of parameter '{parameter.name}' is not bound: the op has nothing with "
                    "this "
                    f"name, and `bind` does not list '{member.name}'"
                )
            values[member.name] = _default(member)
    return {member.name: values[member.name] for member in parameter.members}


def _absent(member: Parameter) -> Value:
    if member.has_default:
        return _default(member)
    return () if member.field == OPERANDS else Absent(0 if member.field.startswith(STRIDE) else None)


def _default(member: Parameter) -> Absent:
    if isinstance(member.default, NotPlain):
        raise MemberError(
            f"the default of member '{member.name}' is {member.default!r}; a number, a boolean, text or None is "
            "allowed: bind the member"
        )
    return Absent(member.default)


def _strides(
    parameter: Parameter, tensor: records.Tensor, dims: Sequence[str | int] | None, bind: Mapping[str, Any]
) -> dict[str, str]:
    """Return the stride for each `stride_<dim>`: by `dims`, else by the names of the dims, else by their order."""
    members = [member for member in parameter.members if member.field.startswith(STRIDE)]
    names = [member.field.removeprefix(STRIDE) for member in members]
    extents = [dim.extent for dim in tensor.shape]
    if dims is not None:
        if len(dims) != len(members):
            raise MemberError(
                f"parameter '{parameter.name}': {len(dims)} dims for its {len(members)} strides {', '.join(names)}"
            )
    elif all(name in extents for member, name in zip(members, names, strict=True) if member.name not in bind):
        dims = names
    elif len(names) == len(extents) and all(name not in extents or extents[i] == name for i, name in enumerate(names)):
        dims = list(range(len(extents)))
    else:
        wrong = next(
            member for member in members if member.field.removeprefix(STRIDE) not in extents and member.name not in bind
        )
        raise MemberError(
            f"member '{wrong.field}' of parameter '{parameter.name}' is not a stride of '{tensor.name}' "
            f"[{', '.join(extents)}], and its strides {', '.join(names)} cannot be matched to the dims by position: "
            f"list their dims, `bind: {{{parameter.name}: {{dims: [...]}}}}`"
        )
    return {
        member.name: "0" if dim == NO_DIM else f"stride({tensor.name}, {dim})"
        for member, dim in zip(members, dims, strict=True)
    }


def _fields(parameter: Parameter) -> str:
    return ", ".join(member.field for member in parameter.members)
