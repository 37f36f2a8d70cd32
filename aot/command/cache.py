"""`aotbuild cache`: list and prune the caches of compiled variants, and fill a shared one."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from aot.command.caches import cache_options
from aot.command.parameters import EXIT_FAILED, Age, Size
from aot_bundle.terminal import error_lines, write, write_error, write_json

if TYPE_CHECKING:
    from aot.cache.listing import CacheListing
    from aot.cache.shared_cache import CacheSettings, SharedSettings

_DAY_S = 86400.0


@contextmanager
def _told() -> Iterator[None]:
    from aot.cache.shared_cache import CacheError

    try:
        yield
    except CacheError as error:
        write_error("aotbuild", *error_lines(error))
        sys.exit(EXIT_FAILED)


def _shared(caches: CacheSettings) -> SharedSettings:
    if caches.shared is None:
        raise click.UsageError("no shared cache: pass --shared-cache, or set AOTBUILD_SHARED_CACHE")
    return caches.shared


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cache() -> None:
    """List or prune what earlier builds compiled.

    \b
    Examples:
      aotbuild cache ls
      aotbuild cache prune --max-size 2GiB
      aotbuild cache prune --unused-for 30d --dry-run
      aotbuild cache push --shared-cache /mnt/team/aotbuild
    """


@cache.command()
@cache_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with sizes in bytes.")
def ls(caches: CacheSettings, as_json: bool) -> None:
    """Count the entries of the local cache, and of the shared cache if there is one.

    For each kind, print the number of entries, their size, and when the oldest was last used. Most network stores do
    not
    know that; for them it is when the oldest was written.

    \b
    Examples:
      aotbuild cache ls
      aotbuild cache ls --json
    """
    from aot.cache.listing import list_local, list_shared

    with _told():
        data = _counts(list_local(caches))
        shared = _counts(list_shared(caches.shared)) if caches.shared is not None else None
    if as_json:
        write_json({**data, "shared": shared} if shared else data)
    else:
        write(*(line for item in (data, shared) if item for line in _table(item)))


def _counts(listed: CacheListing) -> dict[str, Any]:
    data: dict[str, Any] = {"path": listed.place, "kinds": {}}
    for kind, entries in listed.by_kind().items():
        days = (time.time() - min(entry.used for entry in entries)) / _DAY_S
        data["kinds"][kind] = {
            "entries": len(entries),
            "bytes": sum(entry.size for entry in entries),
            "oldest_days": round(days, 2),
        }
    return data


def _table(data: dict[str, Any]) -> list[str]:
    from aot_bundle.text_table import table_lines
    from aot_runtime.formats import size_text

    if not data["kinds"]:
        return [f"{data['path']} is empty"]
    rows = [("KIND", "ENTRIES", "SIZE", "OLDEST USE")]
    for kind, found in data["kinds"].items():
        rows.append((kind, str(found["entries"]), size_text(found["bytes"]), f"{found['oldest_days']:.0f} days ago"))
    return [data["path"], *table_lines(rows, right=(1, 2, 3))]


@cache.command()
@cache_options
@click.option("--shared", is_flag=True, help="Prune the shared cache instead of the local one.")
@click.option("--max-size", type=Size(), help="Keep the most recently used entries, up to this size in total.")
@click.option("--unused-for", type=Age(), help="Remove entries that were not used for this long: 30d, 2w, 12h.")
@click.option("--all", "everything", is_flag=True, help="Remove every entry.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed; remove nothing.")
def prune(
    caches: CacheSettings, shared: bool, max_size: int | None, unused_for: float | None, everything: bool,
    dry_run: bool,
) -> None:  # fmt: skip
    """Remove entries of the cache. Entries of older versions of aotbuild are always removed.

    A build that runs at the same time compiles again what it misses.

    \b
    Examples:
      aotbuild cache prune
      aotbuild cache prune --max-size 500MiB
      aotbuild cache prune --unused-for 2w --dry-run
      aotbuild cache prune --shared --shared-cache /mnt/team/aotbuild --unused-for 90d
    """
    from aot.cache.listing import list_local, list_shared, select_entries
    from aot_runtime.formats import size_text

    horizon = None if unused_for is None else time.time() - unused_for * _DAY_S
    if shared and _shared(caches).readonly and not dry_run:
        raise click.UsageError("the shared cache is read-only (--shared-cache-readonly)")
    with _told():
        listed = list_shared(_shared(caches)) if shared else list_local(caches)
        chosen = listed.entries if everything else select_entries(listed.entries, max_size, horizon)
        if not dry_run:
            listed.remove(chosen)
    verb = "would remove" if dry_run else "removed"
    write(f"{verb} {len(chosen)} of {len(listed.entries)} entries, {size_text(sum(e.size for e in chosen))}")


@cache.command()
@cache_options
def push(caches: CacheSettings) -> None:
    """Write the entries that the shared cache lacks to it, from the local cache.

    A build itself writes only what it compiles to the shared cache, and not what it found in the local one.

    \b
    Examples:
      aotbuild cache push --shared-cache /mnt/team/aotbuild
    """
    from aot.cache.listing import list_local, list_shared, push_missing

    settings = _shared(caches)
    if settings.readonly:
        raise click.UsageError("the shared cache is read-only (--shared-cache-readonly)")
    with _told():
        local, shared = list_local(caches), list_shared(settings)
        written = push_missing(local, shared, settings)
    write(f"{shared.place}: {written} entries written, {len(shared.entries)} were there")
