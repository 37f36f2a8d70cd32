"""Differences between the versions of hip-python from 6.3 to 10.

Three things changed in 10:

- Older versions open the library by the name `libamdhip64.so`, their attribute `hip.chip.DLL`. Version 10 calls a
  function of its own for the path when its first call is made.
- Calls that fill a struct return it. In older versions, the caller passes it in.
- Calls release the interpreter lock. In older versions, a thread that waits for the GPU blocks all Python threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aot_runtime.errors import DeviceError

from .library import VARIABLE, Library, loaded_libraries, open_libraries

_SHORT_NAME = "amdhip64"
_NO_DEVICE = -1


def import_binding() -> Any:
    """Import the module with HIP's functions."""
    try:
        from hip import hip
    except ImportError as error:
        raise DeviceError(
            f"AMD GPUs need hip-python, which cannot be imported ({error}): pip install hip-python"
        ) from error
    return hip


def returns_structs(binding: Any) -> bool:
    """Return True for hip-python 10 or later."""
    name: str = binding.__name__
    return name.startswith("rocm.")


def bind(binding: Any) -> Library:
    """Make hip-python use the process's libamdhip64, and return it. hip-python may have opened a library before.

    Raises `DeviceError`.
    """
    tried = []
    for library in open_libraries():
        with _opening(binding, library):
            is_called = _calls(binding, library)
        if is_called or len(loaded_libraries()) <= 1:
            return library
        tried.append(str(library))
    raise DeviceError(
        f"hip-python calls another libamdhip64 than {' or '.join(tried)}: name one to both, in {VARIABLE}"
    )


@contextmanager
def _opening(binding: Any, library: Library) -> Iterator[None]:
    """Return a context in which the first call of hip-python opens the given library."""
    path = os.fsencode(library.path)
    holder, name, value = _new_hook(path) if returns_structs(binding) else _old_hook(path)
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


def _old_hook(path: bytes) -> tuple[Any, str, Any]:
    from hip import chip

    return chip, "DLL", path


def _new_hook(path: bytes) -> tuple[Any, str, Any]:
    from rocm.bindings.util import paths

    original = paths.get_library_path

    def find(short_name: str, *arguments: Any, **keywords: Any) -> Any:
        return path if short_name == _SHORT_NAME else original(short_name, *arguments, **keywords)

    return paths, "get_library_path", find


def _calls(binding: Any, library: Library) -> bool:
    """Return True if hip-python calls this library: an error that it causes is then the library's last error."""
    library.handle.hipGetLastError()
    with suppress(RuntimeError, ValueError):  # a status that the binding is too old to know
        binding.hipSetDevice(_NO_DEVICE)
    return bool(library.handle.hipGetLastError())
