"""Differences between a kernel that would compile and the captured kernel nearest to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from .installation import differences as installation_differences
from .installation import ptxas_version, release_of
from .records import Capture, Function, Installation, Kernel

_ABSENT = object()


def nearest(
    kernel: Kernel, functions: Mapping[str, Function], capture: Capture
) -> tuple[Optional[Kernel], list[str], int]:
    """Return the captured kernel with the fewest differences, these differences, and the number of candidates.

    Candidates are the captured kernels of the same name, those of the same module first.
    """
    function = functions[kernel.function]
    named = [other for other in capture.kernels if other.name == kernel.name]
    same = [other for other in named if capture.functions[other.function].module == function.module]
    compared = [
        (other, list(kernel_differences(other, capture.functions, kernel, functions))) for other in same or named
    ]
    if not compared:
        return None, [], 0
    best, found = min(compared, key=lambda pair: len(pair[1]))
    return best, found, len(compared)


def kernel_differences(
    was: Kernel, were: Mapping[str, Function], now: Kernel, are: Mapping[str, Function]
) -> Iterator[str]:
    """Yield the differences of two kernels of one name, those of the function first."""
    yield from function_differences(was.function, were, now.function, are)
    if was.target != now.target:
        yield f"target: captured {_target(was)}, now {_target(now)}"
    names = list(now.signature)
    yield from _changed("argument ", was.signature, now.signature, _type_text)
    yield from _changed("", _by_name(was.constants, list(was.signature)), _by_name(now.constants, names), value_text)
    yield from _changed(
        "argument ",
        _by_name(was.attributes, list(was.signature)),
        _by_name(now.attributes, names),
        _attributes_text,
    )
    yield from _option_differences(was, now)
    yield from _changed("", was.environment, now.environment, str, absent="not set")
    yield from _backend_differences(was, now)


def function_differences(
    was_id: str, were: Mapping[str, Function], now_id: str, are: Mapping[str, Function]
) -> list[str]:
    """Return the differences of a function and of those that it calls."""
    if were[was_id].key == are[now_id].key:
        return []
    found: list[str] = []
    seen: set[str] = set()
    waiting = [(was_id, now_id)]
    while waiting:
        old, new = waiting.pop(0)
        was, now = were.get(old), are.get(new)
        if was is not None and now is not None and new not in seen and was.key != now.key:
            seen.add(new)
            found += _own_differences(was, now)
            waiting += _called(was.refers, now.refers)
    return found or [f"{are[now_id].qualname}: something that it reads has changed"]


def _own_differences(was: Function, now: Function) -> Iterator[str]:
    where = f"{now.qualname} ({now.file}:{now.line})"
    if was.source_sha256 != now.source_sha256:
        yield f"{where}: its source has changed"
    elif was.line != now.line:
        moved = now.line - was.line
        direction = "down" if moved > 0 else "up"
        yield (
            f"{where}: moved {direction} by {abs(moved)} line{'s' * (abs(moved) > 1)}, from line {was.line}; "
            "the line is in Triton's key"
        )
    for name in sorted({**was.refers, **now.refers}):
        old, new = was.refers.get(name, _ABSENT), now.refers.get(name, _ABSENT)
        if old != new and not _is_namespace(old, new) and (_name_of(old) or old) != (_name_of(new) or new):
            yield f"{name}, read by {now.qualname}: captured {value_text(old)}, now {value_text(new)}"


def _called(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the functions of one name that two others call, as pairs of ids."""
    for name in was.keys() & now.keys():
        old, new = was[name], now[name]
        if _is_namespace(old, new):
            yield from _called(old["namespace"][1], new["namespace"][1])
        elif _name_of(old) is not None and _name_of(old) == _name_of(new):
            yield old["function"], new["function"]


def _name_of(value: Any) -> Optional[str]:
    """Return `module:qualname` of an encoded function; None for other values."""
    return ":".join(value["function"].split(":")[:2]) if isinstance(value, dict) and "function" in value else None


def _is_namespace(old: Any, new: Any) -> bool:
    return isinstance(old, dict) and isinstance(new, dict) and "namespace" in old and "namespace" in new


def _changed(
    prefix: str, was: Mapping[str, Any], now: Mapping[str, Any], text: Any, absent: str = "-"
) -> Iterator[str]:
    for name in {**was, **now}:
        old, new = was.get(name, _ABSENT), now.get(name, _ABSENT)
        if old != new:
            one, other = (absent if value is _ABSENT else text(value) for value in (old, new))
            yield f"{prefix}{name}: captured {one}, now {other}"


def _option_differences(was: Kernel, now: Kernel) -> Iterator[str]:
    """Yield the options that differ. Paths of libraries matter only where Triton hashes them: before 3.9, on AMD."""
    found = list(_changed("", _options(was), _options(now), value_text))
    if not found and was.key[2] != now.key[2]:
        libraries, others = ({"extern_libs": kernel.options.get("extern_libs")} for kernel in (was, now))
        found = list(_changed("", libraries, others, value_text))
    yield from found


def _options(kernel: Kernel) -> dict[str, Any]:
    return {name: value for name, value in kernel.options.items() if name not in ("arch", "extern_libs")}


def _backend_differences(was: Kernel, now: Kernel) -> Iterator[str]:
    old, new = was.key[1], now.key[1]
    if old == new or was.target != now.target:
        return
    ptxas = ptxas_version(old), ptxas_version(new)
    if ptxas[0] and ptxas[1]:
        yield f"ptxas: captured {release_of(ptxas[0])}, now {release_of(ptxas[1])}"
    else:
        yield f"compiler backend: captured {old[:80]}, now {new[:80]}"


def _target(kernel: Kernel) -> str:
    backend, arch, lanes = kernel.target
    return f"{backend} {arch} ({lanes} lanes)"


def _by_name(items: list[Any], names: list[str]) -> dict[str, Any]:
    found = {}
    for path, value in items:
        first, *rest = path
        name = names[first] if isinstance(first, int) and first < len(names) else str(first)
        found[name + "".join(f"[{index}]" for index in rest)] = value
    return found


def _type_text(value: Any) -> str:
    return value if isinstance(value, str) else value_text(value)


def _attributes_text(value: Any) -> str:
    pairs = [item["list"] for item in value.get("list", [])] if isinstance(value, dict) else []
    if not pairs:
        return "no assumption"
    names = {"tt.divisibility": "divisible by {}", "tt.pointer_range": "a tensor within {} bits of offset"}
    return ", ".join(names.get(name, f"{name} = {{}}").format(number) for name, number in pairs)


def value_text(value: Any) -> str:
    """Return an encoded value as a reader would write it, in at most 80 characters."""
    if value is _ABSENT:
        return "-"
    text = _python_text(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _python_text(value: Any) -> str:
    if not isinstance(value, dict) or len(value) != 1:
        return repr(value)
    ((tag, content),) = value.items()
    if tag in ("float", "dtype"):
        return str(content)
    if tag == "constexpr":
        return _python_text(content)
    if tag in ("tuple", "list"):
        return f"({', '.join(map(_python_text, content))})"
    if tag == "enum":
        return f"{content[1]}.{content[2]}"
    if tag == "function":
        return str(content).split(":")[1]
    if tag == "dataclass":
        fields = ", ".join(f"{name}={_python_text(item)}" for name, item in content[2].items())
        return f"{content[1]}({fields})"
    if tag == "import":
        return ".".join(content)
    if tag == "opaque":
        return str(content[1])
    return json.dumps(content)


def process_differences(here: Installation, capture: Capture) -> list[str]:
    """Return the differences of this process from the captured one nearest to it."""
    found = [installation_differences(captured, here) for captured in capture.installations]
    return min(found, key=len, default=[])
