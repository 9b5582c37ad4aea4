"""Learning-curve figures: one per game, every system's mean and band over seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from analysis.figure_style import theme
from analysis.records import groups
from analysis.scores import ScoreTable

WIDTH_INCHES, AXES_INCHES, LEGEND_ROW_INCHES = 4.6, 2.9, 0.17  # a third of a page at 1280 px; one row of the legend
LINE_STYLES = ("-", (0, (4, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
NUM_COLORS = 10  # of the palette

System = tuple[str, str]


def line_styles(systems: Sequence[System]) -> dict[System, dict[str, Any]]:
    """A colour per system and dashes per profile, so that curves that coincide show as dashes of two colours.

    Beyond ten systems colours repeat, with other dashes where profiles differ.
    """
    colors = sns.color_palette("colorblind", NUM_COLORS)
    profiles = list(dict.fromkeys(profile for _, profile in systems))
    return {
        system: {
            "color": colors[i % NUM_COLORS],
            "linestyle": LINE_STYLES[profiles.index(system[1]) % len(LINE_STYLES)],
        }
        for i, system in enumerate(systems)
    }


def learning_curves(
    curves: pd.DataFrame, env_id: str, styles: Mapping[System, dict], table: ScoreTable, frames_per_env_step: int
) -> Figure:
    """One game of `curves.over_seeds`: mean lines with bands; raw return left, HNS right where the game has one."""
    part = curves.loc[curves["env_id"] == env_id]
    drawn = {system: part.loc[(part["algorithm"] == system[0]) & (part["profile"] == system[1])] for system in styles}
    drawn = {system: rows for system, rows in drawn.items() if len(rows)}
    with theme():
        height = AXES_INCHES + LEGEND_ROW_INCHES * -(-len(drawn) // 2)
        figure = Figure((WIDTH_INCHES, height), layout="constrained")
        axes = figure.subplots()
        for system, rows in drawn.items():
            draw_mean_and_band(axes, rows, " on ".join(system), styles[system])
        axes.set_title(f"{env_id} (n = {seeds_label(part)})", loc="left", fontsize=9)
        axes.set(
            xlabel="env steps" + (f" ({frames_per_env_step} frames each)" if frames_per_env_step > 1 else ""),
            ylabel="episode return (points)",
            xlim=(0, float(part["env_steps"].max())),
        )
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        sns.despine(ax=axes)
        if env_id in table.scores:
            add_hns_axis(axes, *table.scores[env_id])
        figure.legend(loc="outside lower center", ncols=2, fontsize=7, frameon=False)
        figure.draw_without_rendering()  # lays out once; both files use it
        figure.set_layout_engine("none")
    return figure


def lag_histogram(lags: pd.DataFrame, styles: Mapping[System, dict]) -> Figure:
    """Share of env steps by policy lag, one group of bars per system; `lags` as `summary.policy_lags` gives them."""
    systems = [
        ((str(algorithm), str(profile)), rows) for (algorithm, profile), rows in groups(lags, ["algorithm", "profile"])
    ]
    width = 0.8 / len(systems)
    with theme():
        figure = Figure((WIDTH_INCHES, AXES_INCHES + LEGEND_ROW_INCHES * -(-len(systems) // 2)), layout="constrained")
        axes = figure.subplots()
        for i, (system, rows) in enumerate(systems):
            offset = (i - (len(systems) - 1) / 2) * width
            color = styles[system]["color"]
            axes.bar(rows["policy_lag"] + offset, 100 * rows["share"], width, label=" on ".join(system), color=color)
        axes.set(xlabel="policy lag (updates behind the learner)", ylabel="env steps (%)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        sns.despine(ax=axes)
        figure.legend(loc="outside lower center", ncols=2, fontsize=7, frameon=False)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def seeds_label(curves: pd.DataFrame) -> str:
    """`3 seeds`, or `2 to 3 seeds` where systems have different numbers."""
    sizes = curves.groupby(["algorithm", "profile"], observed=True)["seeds"].max().tolist()
    fewest, most = min(sizes), max(sizes)
    return f"{'' if fewest == most else f'{fewest} to '}{most} seed{'' if most == 1 else 's'}"


def add_hns_axis(axes: Axes, random: float, human: float) -> None:
    def hns(points: Any) -> Any:
        return (points - random) / (human - random)

    def points(hns: Any) -> Any:
        return random + hns * (human - random)

    axes.secondary_yaxis("right", functions=(hns, points)).set_ylabel("HNS (0 random, 1 human)")


def draw_mean_and_band(axes: Axes, rows: pd.DataFrame, label: str, style: Mapping) -> None:
    """Gaps stay gaps; a value between two gaps is a dot, or it would be invisible."""
    axes.plot(rows["env_steps"], rows["mean"], label=label, linewidth=1.3, **style)
    axes.fill_between(rows["env_steps"], rows["low"], rows["high"], color=style["color"], alpha=0.15, linewidth=0)
    known = np.pad(rows["mean"].notna().to_numpy(), 1)
    alone = rows.loc[known[1:-1] & ~known[:-2] & ~known[2:]]
    axes.plot(alone["env_steps"], alone["mean"], ".", markersize=3, color=style["color"])
