"""The arguments and options that describe a call of a bundle's op."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from aot_runtime.errors import ArgumentError

from .parameters import BUNDLE, OpName, Pair, integers


def call_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add arguments and options that describe a call of an op. The command receives them as `call`."""

    @functools.wraps(command)
    def with_call(
        scalars: tuple[tuple[str, str], ...],
        settings: tuple[tuple[str, str], ...],
        given: tuple[str, ...],
        unaligned: tuple[str, ...],
        **rest: Any,
    ) -> None:
        from aot_bundle.callspec import CallSpec, UnsaidError

        pairs = {name: dict(rest.pop(name)) for name in ("shapes", "dims", "dtypes", "strides")}
        call = CallSpec(
            **pairs, given=frozenset(given), unaligned=frozenset(unaligned), scalars=dict((*scalars, *settings))
        )
        try:
            command(call=call, **rest)
        except UnsaidError as error:
            raise ArgumentError(f"{error} (pass --{error.kind} {error.name}=…)") from None

    with_options: Callable[..., None] = with_call
    for decorate in reversed(
        (
            click.argument("bundle", type=BUNDLE),
            click.argument("op", type=OpName()),
            click.argument("scalars", metavar="[SCALAR=VALUE]…", nargs=-1, type=Pair(str, "SCALAR=VALUE")),
            click.option(
                "--shape", "shapes", multiple=True, type=Pair(integers, "TENSOR=N,N,…"), help="A tensor's shape."
            ),
            click.option(
                "--dim",
                "dims",
                multiple=True,
                type=Pair(int, "DIM=N"),
                help="A dim's extent, for the shapes of required inputs without --shape.",
            ),
            click.option(
                "--given",
                multiple=True,
                metavar="TENSOR",
                help="An optional input to pass, shaped by --dim.",
            ),
            click.option(
                "--dtype",
                "dtypes",
                multiple=True,
                type=Pair(str, "NAME=DTYPE"),
                help="The dtype of a dtype variable or a tensor.",
            ),
            click.option(
                "--strides",
                multiple=True,
                type=Pair(integers, "TENSOR=N,N,…"),
                help="A tensor's strides in elements. [default: packed]",
            ),
            click.option(
                "--unaligned",
                multiple=True,
                metavar="TENSOR",
                help="A tensor whose address is not a multiple of 16 bytes.",
            ),
            click.option(
                "--set",
                "settings",
                multiple=True,
                type=Pair(str, "SCALAR=VALUE"),
                help="A scalar's value; same as the argument SCALAR=VALUE.",
            ),
        )
    ):
        with_options = decorate(with_options)
    return with_options
