"""The setting that all parts of the check share: the checkout, the working folder, and how to run programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .running import Result, environment, run

WHOLE_ARCH = "gfx942"
"""The architecture for which all that is shipped is built whole."""

MANIFESTS = ("manifests/*.yaml", "examples/foreign/*.yaml", "benchmarks/*/manifest.yaml")


@dataclass(frozen=True)
class Setting:
    """A run of the check. Nothing is written outside `work` and `cache`, which has what was compiled."""

    checkout: Path
    work: Path
    jobs: int
    cache: Path

    @property
    def dist(self) -> Path:
        """Return the folder of the bundles that were built whole."""
        return self.work / "dist"

    @cached_property
    def manifests(self) -> list[str]:
        """Return all shipped manifests, relative to the checkout."""
        found = [path for pattern in MANIFESTS for path in sorted(self.checkout.glob(pattern))]
        return [str(path.relative_to(self.checkout)) for path in found]

    @cached_property
    def tiers(self) -> Mapping[str, str]:
        """Return architecture → tier, as `aotbuild --list-archs` prints them."""
        result = self.run("aotbuild", "--list-archs")
        if result.status:
            raise RuntimeError(f"aotbuild --list-archs failed:\n{result.tail()}")
        return dict(line.split()[:2] for line in result.output.splitlines())

    def bundles(self) -> list[Path]:
        """Return the bundles that were built completely."""
        return sorted(path.parent for path in self.dist.glob("*/bundle.json"))

    def run(self, *command: str, cwd: Path | None = None, echo: bool = False) -> Result:
        """Run a program in the checkout, or in `cwd`."""
        return run(command, cwd or self.checkout, environment(self.cache), echo=echo)


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, flush=True)
