"""How figures look and are written: a style per system, the page's sizes, captions, legends, PNG and SVG.

Up to 12 systems are told apart by colour (seaborn's colour-blind palette), marker and line style together, so that a
grey print still reads. No pyplot: figures can be drawn in any thread and without a display.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

MAX_SYSTEMS = 12
PNG_DPI = 200  # legible when a 7 inch figure is printed across an A4 page
PAGE_WIDTH = 7.0  # inches: text width of a page
TEXT_POINTS = 8.0
CAPTION_POINTS = 6.5
CHARACTERS_PER_INCH = 19.5  # of DejaVu Sans at CAPTION_POINTS, a little below the mean

_PALETTE = sns.color_palette("colorblind", 10)
# Strongest contrasts first; the palette's grey and yellow, weak on white, come late.
_COLORS = [*(_PALETTE[i] for i in (0, 1, 2, 3, 4, 9, 5, 6)), "black", "#5b3a1a", _PALETTE[7], _PALETTE[8]]
_MARKERS = ["o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*"]
_DASHES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2))]


class Style(NamedTuple):
    color: Any
    marker: str
    linestyle: Any


def styles(systems: Sequence[str]) -> dict[str, Style]:
    """A style per system in the order given; raises ValueError above 12 systems, which no palette tells apart."""
    distinct = list(dict.fromkeys(systems))
    if len(distinct) > MAX_SYSTEMS:
        raise ValueError(f"a figure of {len(distinct)} systems; allowed: at most {MAX_SYSTEMS}, select some of them")
    return {
        system: Style(_COLORS[i], _MARKERS[i], _DASHES[(i + i // len(_DASHES)) % len(_DASHES)])
        for i, system in enumerate(distinct)
    }


def save(figure: Figure, stem: Path) -> list[Path]:
    """Writes stem.png and stem.svg, the same bytes for the same figure, and returns their paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    with mpl.rc_context({"svg.hashsalt": stem.name, "svg.fonttype": "path"}):
        figure.savefig(png, dpi=PNG_DPI, metadata={"Software": None})
        figure.set_layout_engine("none")  # the layout is made by now; making it again is half the time of 57 panels
        figure.savefig(svg, metadata={"Date": None})
    return [png, svg]


@contextmanager
def theme(points: float = TEXT_POINTS) -> Iterator[None]:
    """Fonts and lines of a figure whose text has this size."""
    names = ("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")
    thin = {"axes.linewidth": 0.6, "grid.linewidth": 0.4, "xtick.major.pad": 2, "ytick.major.pad": 2}
    settings: dict[Any, Any] = {**sns.axes_style("whitegrid"), **dict.fromkeys(names, points), **thin}
    with mpl.rc_context({**settings, "font.sans-serif": ["DejaVu Sans"]}):
        yield


def grid(
    rows: int, columns: int, *, height: float, caption: str, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """An empty figure of page width with its caption below; axes in reading order."""
    lines = textwrap.wrap(caption, int(PAGE_WIDTH * CHARACTERS_PER_INCH))
    figure = Figure(figsize=(PAGE_WIDTH, height + 0.12 * len(lines)), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False).ravel()
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=CAPTION_POINTS)
    for axis in axes:
        sns.despine(ax=axis)
    return figure, list(axes)


def system_rows(axis: Axes, look: Mapping[str, Style]) -> None:
    """Systems down the y axis, the first on top."""
    axis.set_yticks(range(len(look)), list(look))
    axis.set_ylim(len(look) - 0.5, -0.5)


def legend_columns(look: Mapping[str, Style]) -> int:
    """As many as the longest name allows."""
    widest = max(len(name) for name in look)
    return max(1, min(len(look), int(PAGE_WIDTH * 14 / (widest + 8))))


def legend_inches(look: Mapping[str, Style]) -> float:
    """Height that `legend` takes."""
    return 0.17 * -(-len(look) // legend_columns(look))


def legend(figure: Figure, axis: Axes, look: Mapping[str, Style]) -> None:
    """Above the axes, in the order of the systems."""
    by_name = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    names = [name for name in look if name in by_name]
    place = {"loc": "outside upper center", "ncols": legend_columns(look), "frameon": False, "handlelength": 3.2}
    figure.legend([by_name[name] for name in names], names, **place)
