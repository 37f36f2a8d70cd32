"""Install wheels of bundles as pip does."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from aot_bundle.wheel import WheelOptions, make_wheel


class Site:
    """A folder of packages that Python looks into, before all others."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.folder = folder
        folder.mkdir(parents=True)
        patch.syspath_prepend(folder)

    def install(self, *bundles: Path, name: str | None = None, version: str | None = None) -> Path:
        """Make a wheel and install it; return the wheel."""
        wheel = make_wheel(bundles, self.folder.parent / "wheels", WheelOptions(name, version))
        with zipfile.ZipFile(wheel) as file:
            file.extractall(self.folder)
        return wheel
