"""Draw charts with matplotlib, as inline SVG in the page's colours that a strict Content-Security-Policy allows."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from aot_runtime.contract.peaks import Peaks

from .given import ProfiledLaunch
from .spreads import Measure

WIDTH, ROW = 3.5, 0.36
"""Width of a chart and height of a row, in inches."""
LABEL = 44
"""Most characters of a label."""
LARGEST = 2**40
"""Charts are clipped to this value, since a forged bundle may have numbers of any size. Tables show all."""
COLOURS: Mapping[str, str] = {
    "#010101": "var(--ink)", "#808081": "var(--grid)", "#0000fe": "var(--data)", "#fe0000": "var(--other)",
}  # fmt: skip
"""CSS colour of the page by colour in matplotlib."""
INK, GRID, DATA, OTHER = COLOURS
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "aotbuild", "text.parse_math": False, "font.size": 9,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": GRID, "xtick.color": INK, "ytick.color": INK,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d{3,}")


def spread_chart(measure: Measure) -> str:
    """Draw each group as a line from minimum to maximum, with a dot per value and a bar at the median."""
    with _axes(len(measure.spreads)) as (figure, axes):
        for at, spread in enumerate(measure.spreads):
            distinct = sorted({_drawn(value) for value in spread.values})
            axes.plot([distinct[0], distinct[-1]], [at, at], color=DATA, linewidth=1.2)
            axes.plot(distinct, [at] * len(distinct), "o", color=DATA, markersize=3, clip_on=False)
            axes.plot([_drawn(spread.median)], [at], "|", color=OTHER, markersize=9, markeredgewidth=2, clip_on=False)
        _rows(axes, [spread.group for spread in measure.spreads], 0)
        most = max(1, *(_drawn(spread.values[-1]) for spread in measure.spreads))
        axes.xaxis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(most / 4))))
        axes.xaxis.set_major_formatter(lambda value, _: measure.text(value) if value >= 0 else "")
        return _element(figure, f"{measure.key}-", measure.title)


def _drawn(value: float) -> float:
    return min(max(value, 0), LARGEST)


def mix_chart(launch: ProfiledLaunch, prefix: str, title: str) -> str:
    """Draw a bar for each class of instructions."""
    classes = launch.classes_by_count
    with _axes(len(classes)) as (figure, axes):
        axes.barh(range(len(classes)), [count for _, count in classes], height=0.3, color=DATA)
        _rows(axes, [name for name, _ in classes], 0.15)
        axes.locator_params(axis="x", nbins=4)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        return _element(figure, prefix, title)


def roofline_chart(launches: Sequence[tuple[str, ProfiledLaunch]], peaks: Peaks, num_cus: int, title: str) -> str:
    """Draw labelled launches with matrix operations in a roofline of a product's data-sheet peaks."""
    reached = [launch.intensity for _, launch in launches]
    kinds = sorted({launch.main_kind for _, launch in launches if launch.main_kind in peaks.matrix})
    tops = {kind: peaks.matrix[kind] * num_cus * peaks.clock for kind in kinds or peaks.matrix}
    ridges = [top / peaks.bandwidth for top in tops.values()]
    left, right = min([*reached, *ridges]) / 4, max([*reached, *ridges]) * 4
    with _axes(7) as (figure, axes):
        for kind, top in tops.items():
            edges = (left, top / peaks.bandwidth, right)
            axes.loglog(edges, [min(top, peaks.bandwidth * x) for x in edges], color=DATA, linewidth=1.5)
            axes.annotate(kind, (right, top), (0, 3), textcoords="offset points", ha="right")
        for label, launch in launches:
            axes.plot([launch.intensity], [launch.highest_rate], "o", color=OTHER, markersize=5)
            axes.annotate(label, (launch.intensity, launch.highest_rate), (5, -9), textcoords="offset points")
        axes.set(xlabel="operations for each byte of memory", ylabel="operations per second")
        axes.grid(color=GRID, linewidth=0.5)
        axes.minorticks_off()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: _engineering(value))
        return _element(figure, "roofline-", title)


def _engineering(value: float) -> str:
    for unit, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:g} {unit}"
    return f"{value:g}"


@contextmanager
def _axes(rows: int) -> Iterator[tuple[Figure, Axes]]:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH, 0.5 + ROW * max(rows, 1)), layout="constrained")
        yield figure, figure.add_subplot()


def _rows(axes: Axes, labels: Sequence[str], lift: float) -> None:
    """Set up rows from top to bottom, with labels above them to leave room for long ones."""
    for at, label in enumerate(labels):
        text = "".join(letter if letter.isprintable() else " " for letter in label)
        text = text if len(text) <= LABEL else f"{text[: LABEL - 1]}…"
        axes.text(0, at - 0.26 - lift, text, transform=axes.get_yaxis_transform(), fontsize=8.5)
    axes.set_ylim(len(labels) - 0.5, -0.9 - lift)
    axes.set_yticks([])
    axes.set_xlim(left=0)
    axes.grid(axis="x", color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)


def _element(figure: Figure, prefix: str, title: str) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ElementTree.fromstring(text.getvalue())
    _remove(root, lambda element: element.tag == f"{_SVG}style" or element.tag.endswith("}metadata"))
    for element in root.iter():
        _adapt(element, prefix)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": title}
    ElementTree.register_namespace("", _SVG.strip("{}"))
    return ElementTree.tostring(root, encoding="unicode")


def _remove(parent: ElementTree.Element, unwanted: Callable[[ElementTree.Element], bool]) -> None:
    for child in [*parent]:
        if unwanted(child):
            parent.remove(child)
        else:
            _remove(child, unwanted)


def _adapt(element: ElementTree.Element, prefix: str) -> None:
    """Replace styles by attributes, colours by the page's, and ids by unique ones."""
    attributes = element.attrib
    for declaration in attributes.pop("style", "").split(";"):
        name, colon, value = declaration.partition(":")
        if colon and name.strip() != "font-family":  # the page sets the font
            attributes[name.strip()] = value.strip()
    for name, value in attributes.items():
        if name in ("fill", "stroke"):
            attributes[name] = COLOURS.get(value, value)
        elif name in ("d", "x", "y", "transform"):
            attributes[name] = _NUMBER.sub(lambda found: f"{float(found[0]):.2f}", value).replace("\n", "")
    if "id" in attributes:
        attributes["id"] = prefix + attributes["id"]
    if "clip-path" in attributes:
        attributes["clip-path"] = attributes["clip-path"].replace("url(#", f"url(#{prefix}")
    if _HREF in attributes:
        attributes["href"] = "#" + prefix + attributes.pop(_HREF).removeprefix("#")
