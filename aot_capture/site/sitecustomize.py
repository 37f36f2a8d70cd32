"""Starts aot_capture in a Python whose PYTHONPATH has this folder, then runs the sitecustomize that it shadows."""

import importlib.machinery
import importlib.util
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _start():
    package = os.path.dirname(_FOLDER)
    spec = importlib.util.spec_from_file_location(
        "aot_capture", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    sys.modules["aot_capture"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    from aot_capture.starting import start

    start(os.environ)


def _run_shadowed():
    others = [path for path in sys.path if os.path.abspath(path) != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    _start()
except Exception as error:
    print(f"aot_capture did not start: {type(error).__name__}: {error}", file=sys.stderr)
_run_shadowed()
