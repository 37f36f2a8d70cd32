"""Starts what the environment asks for, once the program imports Triton."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Optional

CAPTURE = "AOT_CAPTURE"  # the capture file
NO_SOURCE = "AOT_CAPTURE_NO_SOURCE"
INDUCTOR_WARM = "AOT_CAPTURE_INDUCTOR_WARM"  # what the first process found; 0 or 1


def start(environ: Mapping[str, str]) -> None:
    """Arrange for the recorder to start with Triton. Until then nothing of it is imported."""
    if environ.get(CAPTURE):
        path, keep_source = environ[CAPTURE], environ.get(NO_SOURCE, "0") in ("", "0")
        warm = os.environ.setdefault(INDUCTOR_WARM, str(int(inductor_is_warm(environ)))) == "1"

        def record() -> Any:
            from .recorder import Recorder

            return Recorder(path, keep_source, warm)

        _after_import(_listen(record))


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


def _listen(make_recorder: Callable[[], Any]) -> dict[str, Callable[[ModuleType], None]]:
    made: list[Any] = []

    def recorder() -> Any:
        if not made:
            made.append(make_recorder())
        return made[0]

    def knobs(module: Any) -> None:
        from .listeners import chain

        chain(type(module.compilation), recorder().on_compile)
        if hasattr(type(module.autotuning), "listener"):
            chain(type(module.autotuning), recorder().on_autotune)

    def autotuner(module: Any) -> None:
        from .listeners import observe_choices

        if not hasattr(type(module.knobs.autotuning), "listener"):
            observe_choices(module.Autotuner, recorder().on_autotune)

    return {"triton.knobs": knobs, "triton.runtime.autotuner": autotuner}


def _after_import(actions: dict[str, Callable[[ModuleType], None]]) -> None:
    """Call each action with its module once that has been imported."""
    for name in [name for name in actions if name in sys.modules]:
        actions.pop(name)(sys.modules[name])
    if actions:
        sys.meta_path.insert(0, _AfterImport(actions))


class _AfterImport:
    """A finder of modules that finds by the other finders, and acts after the module's own code has run."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions

    def find_spec(self, name: str, path: Any = None, target: Optional[ModuleType] = None) -> Any:
        if name not in self._actions:
            return None
        action = self._actions.pop(name)
        if not self._actions:
            sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                execute(module)
                action(module)

            loader.exec_module = exec_module
        return spec
