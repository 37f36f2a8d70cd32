"""Draws roofline.svg from roofline.csv and the data sheet's peaks in the table of architectures:

python docs/images/roofline.py docs/images/roofline.svg
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.peaks import PEAKS

TABLE = Path(__file__).with_suffix(".csv")
COLOURS: Mapping[str, tuple[str, str]] = {
    "#010101": ("#1f2328", "#e6e9ee"),  # text
    "#fefefe": ("#ffffff", "#1b1e26"),  # panel
    "#808081": ("#c3c8d0", "#3f4552"),  # grid
    "#0000fe": ("#2f45b5", "#8c9eff"),  # the roof, and what is modelled
    "#fe0000": ("#b3471d", "#ffab7d"),  # what was published
}
"""Colour that is drawn with → colours on a light and on a dark page."""
INK, PANEL, GRID, ROOF, PUBLISHED = COLOURS
PLACES = {"matmul": ((0, 8), "center"), "attention 128": ((10, -8), "left"), "attention 64": ((9, -9), "left")}
"""Offset of each name from its point, and its alignment; the others are below their points."""
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "aotbuild", "font.size": 11, "font.family": "sans-serif",
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "figure.facecolor": PANEL, "axes.facecolor": PANEL, "savefig.facecolor": PANEL,
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A launch: operations, bytes that it has to move at least, and its time, published or modelled."""

    kind: str
    name: str
    flops: float
    nbytes: float
    microseconds: float

    @property
    def intensity(self) -> float:
        return self.flops / self.nbytes

    @property
    def rate(self) -> float:
        """In TFLOP/s."""
        return self.flops / self.microseconds / 1e6


def points() -> list[Point]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return [Point(r["kind"], r["name"], float(r["flops"]), float(r["bytes"]), float(r["us"])) for r in rows]


def draw() -> str:
    """The picture, as text."""
    product, peaks = ARCHITECTURES["gfx942"].product, PEAKS["gfx942"]
    assert product is not None
    peak = peaks.matrix["f16"] * product.num_cus * peaks.clock / 1e12
    bandwidth = peaks.bandwidth / 1e12
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 4.6), layout="constrained")
        axes = figure.add_subplot()
        edges = (40, peak / bandwidth, 4000)
        axes.loglog(edges, [min(peak, bandwidth * x) for x in edges], color=ROOF, linewidth=2)
        axes.annotate(f"{bandwidth:.1f} TB/s", (130, bandwidth * 130), (-6, 2), textcoords="offset points", ha="right")
        axes.annotate(f"{peak:.0f} TFLOP/s", (4000, peak), (0, 6), textcoords="offset points", ha="right")
        styles = {
            "published": ("o", PUBLISHED, PUBLISHED, "published: ROCm's Triton GEMMs"),
            "modelled": ("v", PANEL, ROOF, "modelled: upper bound, our code"),
        }
        for kind, (marker, fill, edge, label) in styles.items():
            chosen = [point for point in points() if point.kind == kind]
            axes.plot([p.intensity for p in chosen], [p.rate for p in chosen], marker, color=edge, markerfacecolor=fill,
                      markersize=7, markeredgewidth=1.6, label=label, zorder=3)  # fmt: skip
            for p in chosen:
                if p.name:
                    offset, side = PLACES.get(p.name, ((0, -15), "center"))
                    axes.annotate(p.name, (p.intensity, p.rate), offset, textcoords="offset points", ha=side)
        axes.set(xlim=(40, 4500), ylim=(25, 2000), xlabel="operations for each byte of device memory", ylabel="TFLOP/s")
        axes.set_title(f"{product.title}, float16", fontsize=12)
        axes.grid(color=GRID, linewidth=0.6)
        axes.legend(loc="lower right", framealpha=1, facecolor=PANEL, edgecolor=GRID)
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.tick_params(axis=name, which="minor", length=0)
        axes.set_xticks([50, 100, 200, 500, 1000, 2000, 4000])
        axes.set_yticks([50, 100, 200, 500, 1000, 2000])
        axes.minorticks_off()
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Title": "Roofline of the MI300X"})
    return _in_both_schemes(text.getvalue())


def _in_both_schemes(svg: str) -> str:
    """With colours that follow the reader's colour scheme."""
    for number, drawn in enumerate(COLOURS):
        svg = svg.replace(drawn, f"var(--c{number})")
    light, dark = ("".join(f"--c{i}:{pair[way]};" for i, pair in enumerate(COLOURS.values())) for way in (0, 1))
    style = f"svg{{{light}}} @media (prefers-color-scheme: dark){{svg{{{dark}}}}}"
    return re.sub(r"(<style type=\"text/css\">)", rf"\1{style}", svg, count=1)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(), encoding="utf-8")
