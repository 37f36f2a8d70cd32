"""Make the seeds: small bundles with one op each, of the tests' own kernels. Run by `python -m tests.fuzz.seeding`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from click.testing import CliRunner

from aot.cli import main

from .bundle_inputs import pack_seed

MANIFEST = Path(__file__).parents[1] / "support/small/small.yaml"
_SEEDS = {
    "affine": ("gfx942", "op=affine,T=float32,HAS_BIAS=true,NEGATED=true"),
    "row_sums": ("gfx942", "op=row_sums,RETURN_LARGEST=true"),
    "accumulate": ("gfx942", "op=accumulate"),
    "histogram": ("gfx942", "op=histogram"),
    "ramp": ("gfx942", "op=ramp"),
    "relay": ("gfx942", "op=relay,T=float16"),
    "scale_segments": ("gfx1100", "op=scale_segments"),
    "copy": ("gfx942", "op=copy,X_ROWS=true,OUT_COLUMNS=true"),
    "cubin": ("sm_90", "op=accumulate"),
}
"""Seed → its architecture and the `--filter` that it is built with."""


def make_seeds(folder: Path) -> None:
    """Build and pack them."""
    for name, (arch, wanted) in _SEEDS.items():
        words = ["--arch", arch, str(MANIFEST), "-o", str(folder / name), "--filter", wanted]
        built = CliRunner().invoke(main, words)
        assert built.exit_code == 0, built.output
        pack_seed(folder / name / f"small-{arch}", name)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        make_seeds(Path(scratch))
