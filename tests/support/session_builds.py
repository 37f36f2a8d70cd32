"""Bundles built once for all workers of a test session, with a persistent cache of compiled variants.

Keys of the cache hash the kernel, the compiler and the options, and its folder's name hashes the builder's code. So
entries of earlier sessions are still valid.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner, Result

ROOT = Path(__file__).parents[2]


def session_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all workers of a session share."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "builds"
    folder.mkdir(exist_ok=True)
    return folder


def session_cache() -> Path:
    """Return the cache of compiled variants that sessions with the same builder share."""
    from aot.cache.layered_cache import default_cache_dir

    caches = os.environ.get("AOTBUILD_TEST_CACHE") or default_cache_dir().with_name("aotbuild-tests")
    return Path(caches) / _builder()


@cache
def _builder() -> str:
    files = [path for room in ("source", "compile", "cache") for path in sorted((ROOT / "aot" / room).glob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def build_here(command: Sequence[str]) -> Result:
    """Run `aotbuild` with these words in this process: to start a worker takes longer than to compile a few kernels."""
    from aot.cli import main

    with mock.patch("aot.build.WarmPool", lambda workers, timeout: ThreadPoolExecutor(1)):
        return CliRunner().invoke(main, command)


def build_once(
    factory: pytest.TempPathFactory, manifest: str | Path, filters: str | Mapping[str, str] = "", *archs: str
) -> Path:
    """Return the folder with the bundles of a manifest, by a path below the project's root.

    Read only. filters: as for `--filter`; or that of each architecture. archs: gfx942 by default.
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
                    str(session_cache()),
                    *(["--filter", text] if text else []),
                ]
                result = build_here([str(ROOT / manifest), "-o", str(folder), *options])
                assert result.exit_code == 0, result.output
            (folder / "built").touch()
    return folder
