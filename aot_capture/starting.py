"""Starts what the environment asks for, once the program imports Triton."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Optional

CAPTURE = "AOT_CAPTURE"  # the capture file
NO_SOURCE = "AOT_CAPTURE_NO_SOURCE"
INDUCTOR_WARM = "AOT_CAPTURE_INDUCTOR_WARM"  # found by the first process: 0 or 1
GUARD = "AOT_NO_COMPILE"  # RAISE or WARN
GUARD_CACHE = "AOT_NO_COMPILE_CACHE"  # the shipped cache, in the layout of Triton's
GUARD_KERNELS = "AOT_NO_COMPILE_KERNELS"  # the capture file to compare with
GUARD_LOG = "AOT_NO_COMPILE_LOG"
NO_GPU = "AOT_NO_GPU"  # a target, `backend:arch:lanes`, in place of the machine's device
RAISE, WARN = "raise", "warn"
MANAGER = "aot_capture.guard:Manager"

_Actions = dict[str, Callable[[ModuleType], None]]


def start(environ: Mapping[str, str]) -> None:
    """Arrange for the recorder, the guard and the driver to start with Triton. Until then nothing of them is imported."""
    actions: list[_Actions] = []
    if environ.get(NO_GPU):
        actions.append({"triton.runtime.driver": lambda module: _replace_driver(module, environ[NO_GPU])})
    if environ.get(CAPTURE):
        actions.append(_recording(environ))
    if environ.get(GUARD):
        actions.append({"triton.knobs": _guard, "triton.runtime.autotuner": _load_results})
    names = {name for group in actions for name in group}
    if names:
        _after_import({name: [group[name] for group in actions if name in group] for name in names})


def _replace_driver(module: Any, target: str) -> None:
    from .no_gpu import NoGpuDriver

    module.driver.set_active(NoGpuDriver(target))


def _guard(module: Any) -> None:
    from .listeners import chain

    def on_compile(**event: Any) -> None:
        from .guard import on_compile

        on_compile(**event)

    chain(type(module.compilation), on_compile)


def _load_results(module: Any) -> None:
    from .autotuning import load_results

    load_results(module)


def _recording(environ: Mapping[str, str]) -> _Actions:
    path, keep_source = environ[CAPTURE], environ.get(NO_SOURCE, "0") in ("", "0")
    warm = os.environ.setdefault(INDUCTOR_WARM, str(int(inductor_is_warm(environ)))) == "1"
    made: list[Any] = []

    def recorder() -> Any:
        from .recorder import Recorder
        from .records import append

        if not made:
            made.append(Recorder(functools.partial(append, path), keep_source, warm))
        return made[0]

    def knobs(module: Any) -> None:
        from .listeners import chain

        chain(type(module.compilation), recorder().on_compile)
        if hasattr(type(module.autotuning), "listener") and not environ.get(NO_GPU):
            chain(type(module.autotuning), recorder().on_autotune)

    def autotuner(module: Any) -> None:
        from .listeners import observe_choices

        if not hasattr(type(module.knobs.autotuning), "listener") and not environ.get(NO_GPU):
            observe_choices(module.Autotuner, recorder().on_autotune)

    return {"triton.knobs": knobs, "triton.runtime.autotuner": autotuner}


def inductor_cache(environ: Mapping[str, str]) -> str:
    """Return the folder of Inductor's cache, as torch chooses it."""
    folder = environ.get("TORCHINDUCTOR_CACHE_DIR")
    if folder:
        return folder
    user = next((environ[name] for name in ("LOGNAME", "USER", "LNAME", "USERNAME") if environ.get(name)), None)
    if user is None:
        import pwd

        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = str(os.getuid())
    return os.path.join(environ.get("TMPDIR") or "/tmp", f"torchinductor_{user}")


def inductor_is_warm(environ: Mapping[str, str]) -> bool:
    """Return True if Inductor's cache holds graphs: their kernels do not pass through Triton's compile() again."""
    try:
        return any(os.scandir(os.path.join(inductor_cache(environ), "fxgraph")))
    except OSError:
        return False


def _after_import(actions: dict[str, list[Callable[[ModuleType], None]]]) -> None:
    """Call the actions of each module once that has been imported."""
    for name in [name for name in actions if name in sys.modules]:
        for action in actions.pop(name):
            action(sys.modules[name])
    if actions:
        sys.meta_path.insert(0, _AfterImport(actions))


class _AfterImport:
    """A finder of modules that finds by the other finders, and acts after a module's own code has run."""

    def __init__(self, actions: dict[str, list[Callable[[ModuleType], None]]]) -> None:
        self._actions = actions

    def find_spec(self, name: str, path: Any = None, target: Optional[ModuleType] = None) -> Any:
        if name not in self._actions:
            return None
        actions = self._actions.pop(name)
        if not self._actions:
            sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                execute(module)
                for action in actions:
                    action(module)

            loader.exec_module = exec_module
        return spec
