"""`aotbuild cache`: what the cache of compiled variants holds, and making it smaller."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from aot.command.parameters import Age, Size

_DAY_S = 86400.0


def _cache_dir(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--cache-dir", type=click.Path(path_type=Path), envvar="AOTBUILD_CACHE_DIR", show_envvar=True,
        help="The cache. [default: ~/.cache/aotbuild]",
    )(command)  # fmt: skip


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cache() -> None:
    """List or prune what earlier builds compiled.

    \b
    Examples:
      aotbuild cache ls
      aotbuild cache prune --max-size 2GiB
      aotbuild cache prune --unused-for 30d --dry-run
    """


@cache.command()
@_cache_dir
@click.option("--json", "as_json", is_flag=True, help="As JSON, sizes in bytes.")
def ls(cache_dir: Path | None, as_json: bool) -> None:
    """Count what is kept.

    Printed are, of each kind, how many entries there are, their size, and when the oldest was last used.

    \b
    Examples:
      aotbuild cache ls
      aotbuild cache ls --json
    """
    from aot.compile.cache_entries import list_cache

    listed = list_cache(cache_dir)
    data: dict[str, Any] = {"path": str(listed.path), "kinds": {}}
    for kind, entries in listed.by_kind().items():
        days = (time.time() - min(entry.used for entry in entries)) / _DAY_S
        data["kinds"][kind] = {
            "entries": len(entries),
            "bytes": sum(entry.size for entry in entries),
            "oldest_days": round(days, 2),
        }
    click.echo(json.dumps(data, indent=1) if as_json else _table(data))


def _table(data: dict[str, Any]) -> str:
    from aot_runtime.text_table import table_lines
    from aot_runtime.texts import size_text

    if not data["kinds"]:
        return f"{data['path']} is empty"
    rows = [("KIND", "ENTRIES", "SIZE", "OLDEST USE")]
    for kind, found in data["kinds"].items():
        rows.append((kind, str(found["entries"]), size_text(found["bytes"]), f"{found['oldest_days']:.0f} days ago"))
    return "\n".join([data["path"], *table_lines(rows, right=(1, 2, 3))])


@cache.command()
@_cache_dir
@click.option("--max-size", type=Size(), help="Keep the entries that were used last, up to this size in total.")
@click.option("--unused-for", type=Age(), help="Remove entries that were not used for so long: 30d, 2w, 12h.")
@click.option("--all", "everything", is_flag=True, help="Remove every entry.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
def prune(
    cache_dir: Path | None, max_size: int | None, unused_for: float | None, everything: bool, dry_run: bool
) -> None:
    """Remove entries of the cache. Those that older versions of aotbuild wrote always go.

    A build that runs meanwhile compiles again what it misses.

    \b
    Examples:
      aotbuild cache prune
      aotbuild cache prune --max-size 500MiB
      aotbuild cache prune --unused-for 2w --dry-run
    """
    from aot.compile.cache_entries import list_cache, select_entries
    from aot_runtime.texts import size_text

    listed = list_cache(cache_dir)
    horizon = None if unused_for is None else time.time() - unused_for * _DAY_S
    chosen = listed.entries if everything else select_entries(listed.entries, max_size, horizon)
    if not dry_run:
        listed.remove(chosen)
    verb = "would remove" if dry_run else "removed"
    click.echo(f"{verb} {len(chosen)} of {len(listed.entries)} entries, {size_text(sum(e.size for e in chosen))}")
