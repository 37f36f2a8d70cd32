"""hip-python 6.3 to 10, as far as its versions differ.

Three things changed in 10. Before, it opened its library by the name `libamdhip64.so`, which is its attribute
`hip.chip.DLL`; since, it asks a function of its own for the path, when its first call is made. A call that fills a
struct returns it, where the caller used to pass it in. And calls no longer hold the interpreter lock: before, a thread
that waits for the GPU keeps the other Python threads waiting.
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
    """The module with HIP's functions."""
    try:
        from hip import hip
    except ImportError as error:
        raise DeviceError(
            f"AMD GPUs need hip-python, which cannot be imported ({error}): pip install hip-python"
        ) from error
    return hip


def returns_structs(binding: Any) -> bool:
    """Whether this is hip-python 10 or later."""
    name: str = binding.__name__
    return name.startswith("rocm.")


def bind(binding: Any) -> Library:
    """Have hip-python call the process's libamdhip64, and find out which it is: it may have been called before.

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
    """Have hip-python open a certain library, where it makes its first call meanwhile."""
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
    """Whether hip-python calls a library: an error that it causes is then the latest of that library."""
    library.handle.hipGetLastError()
    with suppress(RuntimeError, ValueError):  # a status that the binding is too old to know
        binding.hipSetDevice(_NO_DEVICE)
    return bool(library.handle.hipGetLastError())
