"""Describe pydantic's errors for a manifest's author: by place, with the nearest valid name."""

from __future__ import annotations

from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from aot_runtime.contract.expressions import nearest

from .schema import PATTERNS
from .yamlfile import Key, ManifestError, YamlFile

Model = TypeVar("Model", bound=BaseModel)


def validated(file: YamlFile, model: type[Model]) -> Model:
    """Validate a file's content as a model. Raises `ManifestError` with all faults, each with file:line:column."""
    if not isinstance(file.data, dict):
        raise file.error((), f"expected a mapping with the keys {', '.join(model.model_fields)}")
    try:
        return model.model_validate(file.data)
    except ValidationError as error:
        faults: dict[tuple[Key, ...], list[Any]] = {}
        for item in error.errors(include_url=False):
            faults.setdefault(_file_path(file, item["loc"]), []).append(item)
    described = sorted(
        (file.positions.get(path, (1, 1)), f"{file.locate(path)}: {text}")
        for path, items in faults.items()
        for text in _describe(model, path, items, deeper=any(other[: len(path)] == path != other for other in faults))
    )
    raise ManifestError(message for _, message in described)


def _file_path(file: YamlFile, keys: Iterable[Key]) -> tuple[Key, ...]:
    """Remove the members of unions from pydantic's path, which leaves the file's keys."""
    path: tuple[Key, ...] = ()
    for key in keys:
        if (*path, key) in file.positions:
            path = (*path, key)
    return path


_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}


def _describe(model: type[BaseModel], path: tuple[Key, ...], items: list[Any], deeper: bool) -> set[str]:
    """Describe the errors at one path. The errors of all members of a union become one."""
    name = ".".join(map(str, path))
    wrong = [item for item in items if item["type"] in _EXPECTED]
    texts = {_fault(model, path, name, item) for item in items if item not in wrong}
    if wrong and not texts and not deeper:
        expected = " or ".join(dict.fromkeys(_EXPECTED[item["type"]] for item in wrong))
        texts = {f"{name}: expected {expected}{_given(wrong[0])}"}
    return texts


def _fault(model: type[BaseModel], path: tuple[Key, ...], name: str, item: Any) -> str:
    match item["type"]:
        case "extra_forbidden":
            return f"unknown key '{path[-1]}'{nearest(str(path[-1]), _known_keys(model, path[:-1]))}"
        case "missing":
            return f"{name or 'the manifest'}: the key '{item['loc'][-1]}' is missing"
        case "string_pattern_mismatch":
            return f"{name}: '{item['input']}' {PATTERNS[item['ctx']['pattern']]}"
        case "value_error":
            return f"{name or 'the manifest'}: {item['ctx']['error']}"
        case "too_short" | "too_long":
            limits = item["ctx"]
            limit = f"at least {limits['min_length']}" if "min_length" in limits else f"at most {limits['max_length']}"
            return f"{name}: {limit} allowed, {len(item['input'])} given"
        case _:
            return f"{name}: {item['msg']}{_given(item)}"


def _given(item: Any) -> str:
    given = item["input"]
    kinds = {dict: "a mapping", list: "a list", type(None): "nothing"}
    return f" (given: {kinds.get(type(given), repr(given))})"


def _known_keys(model: type[BaseModel], path: tuple[Key, ...]) -> list[str]:
    """Return the keys of the model at `path`, found by following the annotations."""
    current: list[Any] = [model]
    for key in path:
        current = [inner for annotation in current for inner in _inside(annotation, key)]
    return [field for item in current for field in getattr(item, "model_fields", {})]


def _inside(annotation: Any, key: Key) -> list[Any]:
    """Yield the annotations of the value under `key`, one for each member of a union."""
    if key in getattr(annotation, "model_fields", {}):
        return _members(annotation.model_fields[key].annotation)
    arguments = get_args(annotation)
    return _members(arguments[-1]) if get_origin(annotation) in (dict, list) else []


def _members(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for argument in get_args(annotation) for member in _members(argument)]
    return [annotation]
