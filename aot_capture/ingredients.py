"""Ingredients of keys that a shipped cache states, compared with those of the Triton that is to use it.

Where one differs, every look-up misses. A shipped cache has its manifest, `captured.json`, beside the folder of
kernels; an installed one has it in the folder `aotbuild` of Triton's cache.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import sysconfig
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from .installation import changed_variables, file_differences, files_of_key, triton_root

MANIFEST = "captured.json"
INSTALLED = "aotbuild"
"""Folder in Triton's cache with the manifests of what is installed."""


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return the ingredients that differ, one a line. Both have the fields of a manifest's `ingredients`.

    `root` is a path here, and its digest there, where it is in the keys.
    """
    found = []
    if there["triton"] != here["triton"]:
        found.append(f"Triton: {there['triton']} was captured, {here['triton']} is here")
    else:
        found += file_differences(there["triton"], there["files"], here["files"])
        if there["backend"] != here["backend"]:
            was, now = backend_release(there["backend"]), backend_release(here["backend"])
            found.append(f"compiler: {was} was captured, {now} is here")
    if there.get("root") and there["root"] != root_digest(here["root"]):
        found.append(f"Triton's folder, whose path is in the keys of HIP before Triton 3.9: here it is {here['root']}")
    changed = changed_variables(there["environment"], here["environment"])
    return [*found, *(f"{name}: {was} was captured, {now} is here" for name, was, now in changed)]


def launcher_difference(manifest: Mapping[str, Any], suffix: str) -> Optional[str]:
    """Return why the C launchers of a shipped cache are not found by a Python whose extension modules have `suffix`."""
    built = manifest["ingredients"].get("extension_suffix", "")
    if built in ("", suffix) or not any(name.endswith(built) for name in manifest["files"]):
        return None
    return f"Python: launchers are {built}, and this one's are {suffix}: a C compiler makes them at the first launches"


def root_digest(folder: str) -> str:
    """Return the digest by which a manifest names the folder of Triton."""
    return hashlib.sha256(folder.encode()).hexdigest()


def backend_release(backend: str) -> str:
    """Shorten the key of a backend: ptxas's version is in a text of several lines."""
    found = re.search(r"V\d[\d.]+", backend)
    return f"ptxas {found.group()}" if found else backend.strip()[-80:]


def ingredients_here(backend: str) -> dict[str, Any]:
    """Return those of this process, once Triton has hashed its files. `backend` is the key of its compiler."""
    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars

    return {
        "triton": triton.__version__,
        "files": files_of_key()[0],
        "backend": backend,
        "environment": get_cache_invalidating_env_vars(),
        "root": str(triton_root()),
    }


def mismatch(shipped: Optional[str], cache: str, target: Any, backend: str) -> list[str]:
    """Return the reasons why this process cannot find any cached kernel for a target; empty if it can.

    Args:
        shipped: folder of a shipped cache's kernels; None for the installed ones.
        cache: folder of Triton's cache.
        target: Triton's target.
        backend: the key of its compiler.
    """
    stated = [
        manifest
        for manifest in _manifests(shipped, cache)
        if manifest["target"] == [target.backend, target.arch, target.warp_size]
    ]
    if not stated:
        return []
    here, suffix = ingredients_here(backend), sysconfig.get_config_var("EXT_SUFFIX")
    found = []
    for manifest in stated:
        differing = differences(manifest["ingredients"], here)
        launchers = launcher_difference(manifest, suffix)
        lines = [f"  {line}" for line in differing]
        if differing:
            lines.insert(0, f"none of the {len(manifest['kernels'])} kernels of {manifest['name']} can be found:")
        found.append([*lines, launchers] if launchers else lines)
    return min(found, key=len)


def _manifests(shipped: Optional[str], cache: str) -> Iterator[dict[str, Any]]:
    """Yield the manifests that can be read; the others were refused when they were installed."""
    beside = os.path.join(os.path.dirname(shipped), MANIFEST) if shipped else None
    for path in [beside] if beside else sorted(glob.glob(os.path.join(glob.escape(cache), INSTALLED, "*.json"))):
        try:
            with open(path, encoding="utf-8") as file:
                manifest = json.load(file)
        except (OSError, ValueError):
            continue
        if isinstance(manifest, dict) and {"target", "ingredients", "kernels", "files", "name"} <= manifest.keys():
            yield manifest
