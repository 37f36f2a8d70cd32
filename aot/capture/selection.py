"""Kernels of a capture file that are built for a target, and variants of them for other arguments."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from aot.targets import Target
from aot_capture.records import Autotune, Capture, Function, Kernel
from aot_runtime.contract.dtypes import INTEGER_TYPES

DIVISIBLE = {"list": ["tt.divisibility", 16]}


def target_parts(target: Target) -> list[str | int]:
    """Return a target as kernels of a capture file have it: backend, architecture, lanes of a warp."""
    parts = target.gpu_target()
    return [parts.backend, parts.arch, parts.warp_size]


def kernels_for(capture: Capture, target: Target) -> list[Kernel]:
    """Return the kernels to build for a target, each once.

    These are the kernels that were captured on it. If there are none, those of the same vendor's other GPUs, else all:
    their options are chosen anew.
    """
    parts = target_parts(target)
    same = [kernel for kernel in capture.kernels if kernel.target == parts]
    vendor = [kernel for kernel in capture.kernels if kernel.target[0] == parts[0]]
    return unique(same or vendor or capture.kernels)


def unique(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Return the kernels without repetitions of their code and key."""
    return list({build_inputs(kernel): kernel for kernel in kernels}.values())


def build_inputs(kernel: Kernel) -> str:
    """Return all that decides a kernel's code and key, as JSON; the order of options and arguments is kept."""
    return json.dumps(
        [
            kernel.function, kernel.language, kernel.environment, kernel.target, kernel.signature, kernel.constants,
            kernel.attributes, kernel.options, kernel.given, kernel.hash, kernel.key,
        ]
    )  # fmt: skip


def results_for(capture: Capture, kernels: list[Kernel], target: Target) -> list[tuple[Autotune, Kernel]]:
    """Return the autotuners' results that are valid for a target, each with a kernel of its function.

    Results are those of the GPU that measured them: there are none for another target.
    """
    by_function = {kernel.function: kernel for kernel in kernels if kernel.target == target_parts(target)}
    last = {(result.function, json.dumps(result.key)): result for result in capture.autotunes}
    return [(result, by_function[result.function]) for result in last.values() if result.function in by_function]


def neighbours(kernels: list[Kernel], functions: dict[str, Function]) -> list[Kernel]:
    """Return the variants that differ from a captured kernel in one argument: a multiple of 16 or not, 1 or not.

    Their keys are not known; Triton's own computation gives them.
    """
    known = {_specialisation(kernel) for kernel in kernels}
    lists_constants = any(_lists_constants(kernel) for kernel in kernels)
    found: dict[str, Kernel] = {}
    for kernel in kernels:
        for variant in _variants(kernel, functions[kernel.function], lists_constants):
            found.setdefault(_specialisation(variant), variant)
    return [variant for specialisation, variant in found.items() if specialisation not in known]


def _specialisation(kernel: Kernel) -> str:
    return json.dumps(
        [kernel.function, kernel.target, kernel.signature, kernel.constants, kernel.attributes, kernel.options]
    )


def _lists_constants(kernel: Kernel) -> bool:
    """Return True if the kernel's Triton also lists hints for constants, which mean nothing."""
    places = enumerate(kernel.signature.values())
    return any(_at(kernel.attributes, place) is not None for place, kind in places if kind == "constexpr")


def _variants(kernel: Kernel, function: Function, lists_constants: bool) -> Iterator[Kernel]:
    constexprs = _constexpr_parameters(function)
    for place, (name, kind) in enumerate(kernel.signature.items()):
        if not isinstance(kind, str) or name in constexprs:
            continue
        if kind == "constexpr":
            if _at(kernel.constants, place) == 1:
                yield _changed(kernel, place, name, "i32", None, [])
            continue
        listed = _at(kernel.attributes, place)
        if listed is None or not (kind in INTEGER_TYPES or kind.startswith("*")):
            continue  # what the launch does not ask for (do_not_specialize)
        others = [hint for hint in listed["list"] if hint != DIVISIBLE]
        divisible = [] if len(others) < len(listed["list"]) else [DIVISIBLE]
        yield _changed(kernel, place, name, kind, None, [*divisible, *others])
        if kind in INTEGER_TYPES:
            yield _changed(kernel, place, name, "constexpr", 1, [] if lists_constants else None)


def _constexpr_parameters(function: Function) -> set[str]:
    arguments = ast.parse(function.source or "def f(): pass").body[0]
    assert isinstance(arguments, ast.FunctionDef)
    return {
        argument.arg
        for argument in (*arguments.args.posonlyargs, *arguments.args.args, *arguments.args.kwonlyargs)
        if argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation)
    }


def _at(pairs: list[Any], place: int) -> Any:
    return next((value for path, value in pairs if path == [place]), None)


def _changed(
    kernel: Kernel, place: int, name: str, kind: str, constant: int | None, hints: list[Any] | None
) -> Kernel:  # fmt: skip
    return replace(
        kernel,
        signature={**kernel.signature, name: kind},
        constants=_with(kernel.constants, place, constant),
        attributes=_with(kernel.attributes, place, None if hints is None else {"list": hints}),
        hash="",
        key=[],
    )


def _with(pairs: list[Any], place: int, value: Any) -> list[Any]:
    others = [pair for pair in pairs if pair[0] != [place]]
    return others if value is None else sorted([*others, [[place], value]], key=lambda pair: pair[0])
