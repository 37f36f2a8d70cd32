"""Ingredients of Triton's cache keys in this process: version, files, ptxas, environment."""

from __future__ import annotations

import functools
import hashlib
import os
import pkgutil
import platform
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Optional

from .inductor import inductor_cache
from .records import Installation

_PREFIXES = ("TRITON_", "AMDGCN_", "MLIR_", "LLVM_", "DISABLE_LLVM", "PTXAS_", "USE_IR_LOC", "NVPTX_", "ALLOW_LHS_TMEM")
_UNRELATED = ("TRITON_CACHE_", "TRITON_HOME", "TRITON_REDIS", "TRITON_REMOTE_", "TRITON_DUMP_", "TRITON_PRINT_")


def triton_key() -> str:
    """Return Triton's own key of its installation: the version and the sha256 of each file, in one text."""
    return str(_key_function()())


def _key_function() -> Callable[[], str]:
    from triton.compiler import compiler
    from triton.runtime import cache

    found: Callable[[], str] = (cache if hasattr(cache, "triton_key") else compiler).triton_key
    return found


@functools.lru_cache(maxsize=None)
def triton_root() -> Path:
    """Return the folder of the package triton."""
    import triton

    return Path(os.path.abspath(triton.__file__)).parent


def key_files() -> Iterator[Path]:
    """Yield the files whose contents are in Triton's key, in the key's order."""
    root = triton_root()
    yield Path(str(sys.modules[_key_function().__module__].__file__))
    yield from _modules(root / "compiler", "triton.compiler.")
    yield from _modules(root / "backends", "triton.backends.")
    suffix = sysconfig.get_config_var("EXT_SUFFIX").split(".")[-1]
    yield root / "_C" / f"libtriton.{suffix}"
    yield from _modules(root / "language", "triton.language.")


def _modules(folder: Path, prefix: str) -> Iterator[Path]:
    for module in pkgutil.walk_packages([str(folder)], prefix=prefix):
        spec = module.module_finder.find_spec(module.name)  # type: ignore[call-arg]
        if spec is not None and spec.origin:
            yield Path(spec.origin)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's contents."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def files_of_key() -> tuple[dict[str, str], bool]:
    """Return Triton's files with their sha256, and whether these give Triton's own key.

    Triton has hashed its files by the time that it compiles, so the largest, its C++ library, is not read again.
    """
    import triton

    paths = list(key_files())
    hashes = _hashes_in(triton_key(), triton.__version__)
    known = len(hashes) == len(paths)
    found = [
        stated if known and path.parent.name == "_C" else sha256_of(path)
        for path, stated in zip(paths, hashes if known else [""] * len(paths))
    ]
    root = triton_root()
    files: dict[str, str] = {}
    for path, digest in zip(paths, found):
        name = os.path.relpath(path, root)
        files[f"./{name}" if name in files else name] = digest  # Triton 3.4 has a file in its key twice
    return files, triton.__version__ + "-".join(files.values()) == triton_key()


def _hashes_in(key: str, version: str) -> list[str]:
    return re.findall("[0-9a-f]{64}", key[len(version) :]) if key.startswith(version) else []


def environment() -> dict[str, str]:
    """Return the variables that are set and may change the code of kernels."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    named = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_PREFIXES) and not name.startswith(_UNRELATED)
    }
    return {**named, **get_cache_invalidating_env_vars()}


def ptxas_version(backend_key: str) -> Optional[str]:
    """Return ptxas's version text, which is in the key of Triton's CUDA backend; None for other backends."""
    return backend_key.rpartition("-")[0] if "ptxas" in backend_key or "Cuda compilation" in backend_key else None


def installation(backend_key: str = "", inductor_warm: bool = False) -> Installation:
    """Describe this process; `backend_key` is the key of the backend of a kernel that it compiled."""
    import triton
    from triton import knobs

    files, key_ok = files_of_key()
    return Installation(
        pid=os.getpid(),
        triton=triton.__version__,
        files=files,
        key_ok=key_ok,
        python=platform.python_version(),
        extension_suffix=sysconfig.get_config_var("EXT_SUFFIX"),
        machine=platform.machine(),
        root=str(triton_root()),
        cache=str(knobs.cache.dir),
        ptxas=ptxas_version(backend_key),
        environment=environment(),
        inductor_cache=inductor_cache(os.environ) if "torch" in sys.modules else None,
        inductor_warm=inductor_warm and "torch" in sys.modules,
    )


def differences(captured: Installation, here: Installation) -> list[str]:
    """Return the ingredients of Triton's key that differ, each as `name: captured X, now Y`."""
    found = []
    if captured.triton != here.triton:
        found.append(f"Triton: captured {captured.triton}, now {here.triton}")
    else:
        found += file_differences(here.triton, captured.files, here.files)
    if captured.ptxas != here.ptxas and captured.ptxas and here.ptxas:
        found.append(f"ptxas: captured {release_of(captured.ptxas)}, now {release_of(here.ptxas)}")
    changed = changed_variables(captured.environment, here.environment)
    return [*found, *(f"{name}: captured {was}, now {now}" for name, was, now in changed)]


def file_differences(version: str, there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Return a line that names the files of a version of Triton whose hashes differ; none if all are equal."""
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return [f"files of Triton {version}: {', '.join(names[:4])}{more}"] if names else []


def changed_variables(
    there: Mapping[str, Optional[str]], here: Mapping[str, Optional[str]]
) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value there, value here) of the variables that differ; "not set" stands for a missing value."""
    for name in sorted({**there, **here}):
        was, now = there.get(name), here.get(name)
        if was != now:
            yield name, was or "not set", now or "not set"


def release_of(text: str) -> str:
    """Return the release in ptxas's version text, such as V12.8.93."""
    match = re.search(r"V[\d.]+", text)
    return match.group() if match else text.strip().splitlines()[-1] if text.strip() else text
