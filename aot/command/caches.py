"""Options for the caches that a command uses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from aot_runtime.regular_files import read_regular

LEAST_KEY_BYTES, MOST_KEY_BYTES = 16, 4096


class CacheUrl(click.ParamType):
    """A folder, or a URL that fsspec opens."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from aot.cache.stores import check_url

        try:
            check_url(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class KeyFile(click.ParamType):
    """The content of a file, stripped of white space."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        try:
            secret = read_regular(value, MOST_KEY_BYTES).strip()
        except OSError as error:
            self.fail(f"{value} cannot be read: {error.strerror}", param, ctx)
        if not LEAST_KEY_BYTES <= len(secret) <= MOST_KEY_BYTES:
            self.fail(f"{value} must have {LEAST_KEY_BYTES} to {MOST_KEY_BYTES} bytes", param, ctx)
        return secret


_OPTIONS = (
    click.option(
        "--cache-dir", type=click.Path(path_type=Path), envvar="AOTBUILD_CACHE_DIR", show_envvar=True,
        help="Folder of the cache of compiled variants. [default: ~/.cache/aotbuild]",
    ),
    click.option(
        "--shared-cache", type=CacheUrl(), envvar="AOTBUILD_SHARED_CACHE", show_envvar=True, metavar="URL",
        help="A cache that machines share, behind that of --cache-dir: a folder, or a URL of fsspec such as s3://bucket/x.",
    ),
    click.option(
        "--shared-cache-readonly", is_flag=True, envvar="AOTBUILD_SHARED_CACHE_READONLY", show_envvar=True,
        help="Write nothing to the shared cache.",
    ),
    click.option(
        "--shared-cache-required", is_flag=True, envvar="AOTBUILD_SHARED_CACHE_REQUIRED", show_envvar=True,
        help="Fail if the shared cache cannot be used, instead of printing a warning and going on.",
    ),
    click.option(
        "--shared-cache-key", type=KeyFile(), envvar="AOTBUILD_SHARED_CACHE_KEY", show_envvar=True, metavar="FILE",
        help="Use only entries of the shared cache that were written with the secret in this file.",
    ),
)  # fmt: skip


def cache_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of caches to a command, which receives them as one argument, `caches`: `CacheSettings`."""

    @functools.wraps(command)
    def wrapped(
        *arguments: Any, cache_dir: Path | None, shared_cache: str | None, shared_cache_readonly: bool,
        shared_cache_required: bool, shared_cache_key: bytes | None, **options: Any,
    ) -> None:  # fmt: skip
        from aot.cache.shared_cache import CacheSettings, SharedSettings

        if shared_cache is None:
            shared = None
        else:
            secret = shared_cache_key or b""
            shared = SharedSettings(shared_cache, shared_cache_readonly, shared_cache_required, secret)
        return command(*arguments, caches=CacheSettings(cache_dir, shared), **options)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
