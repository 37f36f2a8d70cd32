"""Starts what the environment asks for, once the program imports Triton."""

from __future__ import annotations

import os
import sys

from .inductor import inductor_is_warm
from .variables import CAPTURE, GUARD, INDUCTOR_WARM, NO_GPU, NO_SOURCE

TYPE_CHECKING = False  # typing is not imported at every start of Python
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any, Optional

    _Actions = dict[str, Callable[[ModuleType], None]]


def start(environ: Mapping[str, str]) -> None:
    """Arrange for the recorder, the guard and the driver to start with Triton, and import nothing of them before."""
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
            made.append(Recorder(lambda record: append(path, record), keep_source, warm))
            os.register_at_fork(after_in_child=made[0].renew_lock)
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

    return {"triton.knobs": _harmless(knobs), "triton.runtime.autotuner": _harmless(autotuner)}


def _harmless(action: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Make an action report its failure, which else the program's import of Triton would meet."""

    def act(module: ModuleType) -> None:
        try:
            action(module)
        except Exception as error:
            print(f"aotbuild capture: nothing is captured: {type(error).__name__}: {error}", file=sys.stderr)

    return act


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
            sys.meta_path.remove(self)
        import importlib.util

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
