"""Figures of a comparison: two bands and the area between them for each game, all games by divergence, the IQM."""

from collections.abc import Hashable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, NullLocator

from analysis import compare, curves
from analysis.compare import BAND_CONFIDENCE, Comparison
from analysis.curve_figures import add_hns_axis, draw_mean_and_band
from analysis.figure_style import TEXT_POINTS, grid, legend, legend_inches, styles, theme
from analysis.tables import number

# How a verdict is drawn: Okabe and Ito's colours, and a marker so that a grey print still reads.
VERDICTS = {
    "same": ("#0072b2", "o"),
    "better": ("#009e73", "^"),
    "worse": ("#d55e00", "v"),
    "cannot tell": ("#7f7f7f", "x"),
}
SHADE = "#f0e442"  # of the area between the means
LINEAR_BELOW = {"HNS": 0.01, "points": 1.0}  # the strip's scale is logarithmic above

Row = Mapping[Hashable, Any]


def game(found: Comparison, row: Row) -> Figure:
    """Mean and band of both sides on one game, the area between the means shaded, the largest gap marked."""
    env_id = row["env_id"]
    part = found.curves.loc[found.curves["env_id"] == env_id].rename(columns={"set": "algorithm"}).assign(profile="")
    drawn = curves.over_seeds(part)
    names = _labels(found)
    look = styles(list(names.values()))
    sides = {side: drawn.loc[drawn["algorithm"] == side].reset_index(drop=True) for side in names}
    with theme():
        figure, (axes,) = grid(1, 1, height=3.2 + legend_inches(look), caption=plain(caption(found, row)))
        for side, rows in sides.items():
            style = look[names[side]]
            draw_mean_and_band(axes, rows, names[side], {"color": style.color, "linestyle": style.linestyle})
        env_steps, low, high = sides["A"]["env_steps"], sides["A"]["mean"], sides["B"]["mean"]
        axes.fill_between(env_steps, low, high, color=SHADE, alpha=0.6, linewidth=0, zorder=0)
        widest = (high - low)[env_steps == row["largest_gap_env_steps"]].index
        if len(widest) and row["area"] > 0:
            at = widest[0]
            axes.plot([env_steps[at]] * 2, [low[at], high[at]], color="black", linewidth=0.9, marker="_", markersize=6)
        axes.set_title(plain(f"{env_id}: {row['word']}"), loc="left", fontsize=TEXT_POINTS + 1)
        axes.set(
            xlabel="env steps (1 env step = 1 action of the agent)",
            ylabel="episode return (points)",
            xlim=(0, float(drawn["env_steps"].max())),
        )
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if env_id in found.table.scores:
            add_hns_axis(axes, *found.table.scores[env_id])
        legend(figure, axes, look)
    return figure


def strip(found: Comparison) -> Figure:
    """A row per game, the furthest apart on top: area between the curves, beside what noise alone makes of it.

    Of games with and without HNS, those with it.
    """
    unit = found.margin_unit
    rows = found.games.loc[(found.games["unit"] == unit) & found.games["area"].notna()].sort_values(by="area")
    with theme(TEXT_POINTS - 1):
        figure, (axes,) = grid(1, 1, height=1.3 + 0.13 * len(rows), caption=plain(strip_caption(found)))
        axes.barh(
            range(len(rows)), rows[["floor_a_largest", "floor_b_largest"]].max(axis=1), height=0.7, color="#dddddd",
            label="A/A floor: largest area between halves of one set",
        )  # fmt: skip
        for word, (color, marker) in VERDICTS.items():
            _points(axes, rows["area"].to_numpy(), rows["word"].str.startswith(word).to_numpy(), word, color, marker)
        if found.margin is not None:
            axes.axvline(found.margin, color="black", linewidth=0.8, linestyle="--", label="margin")
        axes.set_xscale("symlog", linthresh=LINEAR_BELOW[unit])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks(range(len(rows)), [plain(env_id.removesuffix("-v5")) for env_id in rows["env_id"]])
        axes.set(xlabel=f"area between the mean curves per unit budget ({unit})", ylim=(-0.7, len(rows) - 0.3))
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def overall(found: Comparison) -> Figure:
    """IQM of HNS over games along training, both sides with their pointwise intervals, the area between shaded."""
    names = _labels(found)
    look = styles(list(names.values()))
    row = found.overall or {}
    with theme():
        figure, (axes,) = grid(1, 1, height=3.0 + legend_inches(look), caption=plain(overall_caption(found)))
        sides = {side: found.overall_curves.loc[found.overall_curves["set"] == side] for side in names}
        for side, rows in sides.items():
            style = look[names[side]]
            axes.plot(
                rows["env_steps"], rows["estimate"], color=style.color, linestyle=style.linestyle, label=names[side]
            )
            axes.fill_between(rows["env_steps"], rows["low"], rows["high"], color=style.color, alpha=0.2, linewidth=0)
        axes.fill_between(
            sides["A"]["env_steps"], sides["A"]["estimate"], sides["B"]["estimate"], color=SHADE, alpha=0.6,
            linewidth=0, zorder=0,
        )  # fmt: skip
        axes.set_title(f"IQM over {row['num_games']} games: {row['word']}", loc="left", fontsize=TEXT_POINTS + 1)
        axes.set(xlabel="env steps (1 env step = 1 action of the agent)", ylabel="IQM of HNS (1 = human)")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        legend(figure, axes, look)
    return figure


def caption(found: Comparison, row: Row) -> str:
    decimals = 3 if row["unit"] == "HNS" else 1
    return _sentences(
        f"n = {row['seeds_a']} seeds of A, {row['seeds_b']} of B. Lines: mean over seeds; bands {curves.BAND}; "
        f"yellow: the area between the means, {number(row['area'], decimals)} {row['unit']} per unit budget; black: "
        f"the largest gap, B - A = {number(row['largest_gap'], decimals)} {row['unit']}",
        f"A/A floor (largest area between halves of one set): {number(row['floor_a_largest'], decimals)} in A, "
        f"{number(row['floor_b_largest'], decimals)} in B. Permutation p = {number(row['p_value'], 4)} "
        f"(smallest attainable {number(row['smallest_p'], 4)})",
        f"Curves: mean return in each of {row['num_bins']} bins of the budget, weighted by episodes; no smoothing",
        found=found,
    )


def strip_caption(found: Comparison) -> str:
    return _sentences(
        f"{_labels(found)['B']} against {_labels(found)['A']}: {len(found.games)} games, n = "
        f"{seeds(found, 'a')} seeds of A, {seeds(found, 'b')} of B. Linear below {LINEAR_BELOW[found.margin_unit]:g}",
        f"Curves: {compare.smoothing(found)}",
        f"HNS table: {found.table.label}",
        found=found,
    )


def overall_caption(found: Comparison) -> str:
    row = found.overall or {}
    return _sentences(
        f"IQM over {row['num_games']} games; {row['runs_a']} runs of A, {row['runs_b']} of B. Bands: pointwise "
        f"{BAND_CONFIDENCE:.0%} bootstrap over seeds, stratified by game. Area {number(row['area'], 3)} HNS per unit "
        f"budget; permutation p = {number(row['p_value'], 4)} (smallest attainable {number(row['smallest_p'], 4)})",
        f"HNS table: {found.table.label}",
        found=found,
    )


def seeds(found: Comparison, side: str) -> str:
    """`3`, or `3 to 5` where games differ."""
    counts = found.games[f"seeds_{side}"]
    return f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"


def plain(text: str) -> str:
    """Names from logs are no mathematics: matplotlib sets what stands between dollar signs as such."""
    return text.replace("$", r"\$")


def _labels(found: Comparison) -> dict[str, str]:
    return {"A": plain(f"A: {found.a.name}"), "B": plain(f"B: {found.b.name}")}


def _sentences(*parts: str, found: Comparison) -> str:
    """With what the sets differ in, where that was asked for: no figure goes without it."""
    mixed = [f"COMPARED ALTHOUGH {difference}" for difference in found.mixed]
    return (
        ". ".join([*mixed, *parts])
        + f". Protocol: {found.a.protocol}"
        + ("." if found.a.protocol == found.b.protocol else f" in A, {found.b.protocol} in B.")
    )


def _points(axes: Axes, areas, chosen, label: str, color: str, marker: str) -> None:
    if chosen.any():
        axes.plot(
            areas[chosen], chosen.nonzero()[0], marker, color=color, label=f"B is {label}" if marker != "x" else label,
            markersize=4, linestyle="none",
        )  # fmt: skip
