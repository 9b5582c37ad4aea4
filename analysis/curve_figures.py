"""Learning-curve figures: one per game, every system's mean and band over seeds, as PNG and SVG."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from analysis.scores import ScoreTable

WIDTH_INCHES, AXES_INCHES, LEGEND_ROW_INCHES = 4.6, 2.9, 0.17  # a third of a page at 1280 px; one row of the legend
PNG_DOTS_PER_INCH = 200
LINE_STYLES = ("-", (0, (4, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
STYLE: Any = {  # matplotlib types the keys as literals
    "font.size": 8,
    "axes.spines.top": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "svg.hashsalt": "cleanba",  # the same curves give the same file
}

System = tuple[str, str]


def line_styles(systems: list[System]) -> dict[System, dict]:
    """A colour per system and a dash pattern per profile, so that curves that coincide show as two-coloured dashes."""
    colors = sns.color_palette("colorblind", 10)
    profiles = list(dict.fromkeys(profile for _, profile in systems))
    return {
        system: {"color": colors[i % 10], "linestyle": LINE_STYLES[profiles.index(system[1]) % len(LINE_STYLES)]}
        for i, system in enumerate(systems)
    }


def learning_curves(curves: pd.DataFrame, env_id: str, styles: Mapping[System, dict], table: ScoreTable) -> Figure:
    """One game of `curves.over_seeds`: mean lines with bands; raw return left, HNS right where the game has one."""
    with mpl.rc_context(STYLE):
        part = curves[curves["env_id"] == env_id]
        drawn = dict(list(part.groupby(["algorithm", "profile"], observed=True)))
        legend_rows = (len(drawn) + 1) // 2
        figure = Figure((WIDTH_INCHES, AXES_INCHES + LEGEND_ROW_INCHES * legend_rows), layout="constrained")
        axes = figure.subplots()
        for system in styles:
            if system in drawn:
                _draw(axes, drawn[system], " on ".join(system), styles[system])
        axes.set_title(f"{env_id} ({seeds_label(part)})", loc="left", fontsize=9)
        axes.set_xlabel("env steps (4 frames each)")
        axes.set_ylabel("episode return (points)")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlim(0, part["env_steps"].max())
        if env_id in table.scores:
            _add_hns_axis(axes, *table.scores[env_id])
        figure.legend(loc="outside lower center", ncols=2, fontsize=7, frameon=False)
        figure.draw_without_rendering()  # lays out once; both files use it
        figure.set_layout_engine("none")
        return figure


def seeds_label(curves: pd.DataFrame) -> str:
    """`n = 3 seeds`, or `n = 2 to 3 seeds` where systems have different numbers."""
    sizes = curves.groupby(["algorithm", "profile"], observed=True)["seeds"].max()
    fewest, most = int(sizes.min()), int(sizes.max())
    return f"n = {most} seed{'s' * (most > 1)}" if fewest == most else f"n = {fewest} to {most} seeds"


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Writes stem.png and stem.svg."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = (stem.with_name(stem.name + suffix) for suffix in (".png", ".svg"))
    figure.savefig(png, dpi=PNG_DOTS_PER_INCH)
    with mpl.rc_context(STYLE):
        figure.savefig(svg, metadata={"Date": None})
    return png, svg


def _add_hns_axis(axes: Axes, random: float, human: float) -> None:
    def hns(points: Any) -> Any:
        return (points - random) / (human - random)

    def points(hns: Any) -> Any:
        return random + hns * (human - random)

    axes.secondary_yaxis("right", functions=(hns, points)).set_ylabel("HNS (0 random, 1 human)")


def _draw(axes: Axes, rows: pd.DataFrame, label: str, style: Mapping) -> None:
    """Gaps stay gaps; a value between two gaps is a dot, or it would be invisible."""
    axes.plot(rows["env_steps"], rows["mean"], label=label, linewidth=1.3, **style)
    axes.fill_between(rows["env_steps"], rows["low"], rows["high"], color=style["color"], alpha=0.15, linewidth=0)
    known = rows["mean"].notna()
    alone = known & ~known.shift(1, fill_value=False) & ~known.shift(-1, fill_value=False)
    axes.plot(rows["env_steps"][alone], rows["mean"][alone], ".", markersize=3, color=style["color"])
