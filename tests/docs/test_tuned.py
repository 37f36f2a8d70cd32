"""The table of tuned ops by architecture and method in docs/howto/tune.md."""

from __future__ import annotations

from pathlib import Path

from aot.manifest.loading import load_tuning
from aot.manifest.schema import ArchTuningSpec
from tests.docs.markdown import section, table
from tests.docs.scripts import ROOT

ARCHS = ("gfx942", "gfx950", "gfx90a", "gfx1100", "gfx1201", "sm_80", "sm_90")


def origin(entry: ArchTuningSpec) -> str:
    """Return the best of the configs' origins."""
    configs = [config for launch in entry.launches.values() for config in launch]
    if entry.measured or any(config.measured for config in configs):
        return "measured"
    if any(config.modelled for config in configs) or (entry.modelled and "model of time" in entry.modelled.by):
        return "time"
    return "published" if entry.published else "resources"


def tuned(path: Path) -> dict[str, str]:
    return {arch: origin(entry) for entry in load_tuning(path).spec.tuning for arch in entry.arch}


def test_what_is_tuned():
    page = (ROOT / "docs/howto/tune.md").read_text(encoding="utf-8")
    rows = {row[0].strip("`"): row[1:] for row in table(section(page, "What is tuned"))}
    files = {path.stem: tuned(path) for path in sorted((ROOT / "manifests/tuning").glob("*.yaml"))}
    assert rows == {name: [found.get(arch, "") for arch in ARCHS] for name, found in files.items()}
