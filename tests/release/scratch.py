"""Copies of the checkout in which command lines are run and may write anything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from .setting import WHOLE_ARCH, Setting
from .shown import files_of_pages

LEFT_OUT = shutil.ignore_patterns(
    ".git", "dist", "build", "*.egg-info", "__pycache__", ".venv", ".*_cache", ".hypothesis"
)


def make_template(setting: Setting) -> Path:
    """Copy the checkout with the bundles in dist/, the files that pages show, and what command lines read.

    The manifests among those files are built: other blocks of the pages are about their bundles.
    """
    folder = setting.work / "template"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(setting.checkout, folder, ignore=LEFT_OUT)
    (folder / "dist").mkdir()
    shutil.copy(setting.checkout / "dist/README.md", folder / "dist")
    for bundle in setting.bundles():
        shutil.copytree(bundle, folder / "dist" / bundle.name, copy_function=os.link)
    shown = files_of_pages(setting.checkout)
    _write_missing(folder, shown.items())
    np.save(folder / "x.npy", np.ones((8, 1000), np.float32))  # for `aotbundle profile --content x=x.npy`
    _make(setting, folder, "python", "-m", "aot_models.random_checkpoint", "checkpoint")
    for name in shown:
        if name.endswith("/manifest.yaml"):
            _make(setting, folder, "aotbuild", "--arch", WHOLE_ARCH, name)
    return folder


def _make(setting: Setting, folder: Path, *command: str) -> None:
    made = setting.run(*command, cwd=folder)
    if made.status:
        raise RuntimeError(f"{' '.join(command)} failed:\n{made.tail()}")


def _write_missing(folder: Path, files: Iterable[tuple[str, str]]) -> None:
    for name, text in files:
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def copy_template(template: Path, folder: Path) -> Path:
    """Copy the template for one script. Bundles are linked: replacing a bundle's file does not change the
    template's."""
    shutil.copytree(template, folder, ignore=lambda path, names: ["dist"] if Path(path) == template else [])
    shutil.copytree(template / "dist", folder / "dist", copy_function=os.link)
    return folder
