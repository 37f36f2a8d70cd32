"""Starts aot_capture in a Python whose PYTHONPATH has this folder, then runs the sitecustomize that it shadows.

Every start of Python in the program's processes pays for this file: it imports next to nothing.
"""

import importlib.machinery
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _start():
    package = os.path.dirname(_FOLDER)
    sys.modules["aot_capture"] = module = type(sys)("aot_capture")
    module.__path__, module.__file__ = [package], os.path.join(package, "__init__.py")
    from aot_capture.starting import start

    start(os.environ)


def _run_shadowed():
    others = [path for path in sys.path if os.path.abspath(path) != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib._bootstrap.module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    _start()
except Exception as error:
    print(f"aot_capture did not start: {type(error).__name__}: {error}", file=sys.stderr)
_run_shadowed()
