"""Bundles that are built once for all workers of a test session, out of one cache of compiled variants."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner, Result

ROOT = Path(__file__).parents[2]
_KEPT = "AOTBUILD_TEST_CACHE"
"""The variable of the environment by which a session tells its workers what folder `keep_compiled` has found."""
_KEPT_SECONDS = 7 * 24 * 3600
"""After so long without a session, what a builder has compiled is removed."""


def session_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of a session share."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "builds"
    folder.mkdir(exist_ok=True)
    return folder


def session_cache(factory: pytest.TempPathFactory) -> Path:
    """The cache of compiled variants that all builds of a session share; see `keep_compiled`."""
    folder = Path(os.environ.get(_KEPT) or session_folder(factory) / "cache")
    folder.mkdir(exist_ok=True)
    return folder


def keep_compiled(cache: pytest.Cache) -> None:
    """Let this session and its workers take what earlier ones compiled by the same builder: pytest's cache has it.

    An entry's key has all of a kernel and its options; of the builder, the folder's name has the sources' hash.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # it has the environment of its session
    sources = sorted(path for part in ("aot", "runtime/aot_runtime") for path in (ROOT / part).rglob("*.py"))
    builder = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = cache.mkdir("compiled") / builder
    folder.mkdir(exist_ok=True)
    os.utime(folder)
    for other in folder.parent.iterdir():
        if other.stat().st_mtime < time.time() - _KEPT_SECONDS:
            shutil.rmtree(other, ignore_errors=True)
    os.environ[_KEPT] = str(folder)


def build_here(command: Sequence[str]) -> Result:
    """`aotbuild` with these words, in this process: to start a worker takes longer than to compile a few kernels."""
    from aot.cli import main

    with mock.patch("aot.session.WarmPool", lambda workers, timeout: ThreadPoolExecutor(1)):
        return CliRunner().invoke(main, command)


def build_once(
    factory: pytest.TempPathFactory, manifest: str | Path, filters: str | Mapping[str, str] = "", *archs: str
) -> Path:
    """The folder with the bundles of a manifest, by a path below the project's root. Read only.

    filters: as for `--filter`; or that of each architecture. archs: gfx942 by default.
    """
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from filelock import FileLock

    wanted = filters if isinstance(filters, Mapping) else dict.fromkeys(archs or ("gfx942",), filters)
    name = hashlib.sha256(f"{manifest} {wanted}".encode()).hexdigest()[:16]
    folder = session_folder(factory) / name
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "built").exists():
            for arch, text in wanted.items():
                options = [
                    "--arch",
                    arch,
                    "--cache-dir",
                    str(session_cache(factory)),
                    *(["--filter", text] if text else []),
                ]
                result = build_here([str(ROOT / manifest), "-o", str(folder), *options])
                assert result.exit_code == 0, result.output
            (folder / "built").touch()
    return folder
