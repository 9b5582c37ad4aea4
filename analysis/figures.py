"""Figures from tidy frames: one function per kind of figure, each returning a Figure that `figure_style.save` writes.

Every frame has a column `system` and, for intervals, `low` and `high` (NaN: no interval is drawn). A caption says what
the numbers are and their n; it is part of the image.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from analysis.figure_style import TEXT_POINTS, Style, grid, legend, legend_inches, styles, system_rows, theme


def aggregate_intervals(frame: pd.DataFrame, *, caption: str, labels: Mapping[str, str] | None = None) -> Figure:
    """One panel per `statistic`, one row per system: `value` with its interval. `labels`: axis label per statistic."""
    look = _look(frame)
    statistics = list(dict.fromkeys(frame["statistic"]))
    with theme():
        figure, axes = grid(1, len(statistics), height=0.9 + 0.26 * len(look), caption=caption, sharey=True)
        for axis, statistic in zip(axes, statistics, strict=True):
            for system, row in _rows(frame.loc[frame["statistic"] == statistic], look):
                _point(axis, row, list(look).index(system), look[system])
            axis.set_xlabel(labels[statistic] if labels else statistic)
            axis.xaxis.set_major_locator(MaxNLocator(4))
        system_rows(axes[0], look)
    return figure


def performance_profiles(frame: pd.DataFrame, *, caption: str, of: str = "runs") -> Figure:
    """`fraction` of runs (or games: `of`) with an HNS above `threshold`, a fraction, per system."""
    look = _look(frame)
    with theme():
        figure, (axis,) = grid(1, 1, height=3.0 + legend_inches(look), caption=caption)
        for system, rows in _groups(frame, look):
            _curve(axis, rows.rename(columns={"fraction": "value"}), "threshold", look[system], system)
        axis.set(xlabel="threshold τ (HNS, 1 = human)", ylabel=f"fraction of {of} with HNS > τ", ylim=(0, 1.02))
        axis.margins(x=0)
        legend(figure, axis, look)
    return figure


def efficiency(frame: pd.DataFrame, *, x: str, label: str, caption: str) -> Figure:
    """Curves of `value` (axis `label`) over x = `env_steps` or `wall_seconds`, one per system, with their bands."""
    look = _look(frame)
    scale, unit = _unit(x, float(frame[x].max()))
    with theme():
        figure, (axis,) = grid(1, 1, height=3.0 + legend_inches(look), caption=caption)
        for system, rows in _groups(frame.assign(**{x: frame[x] / scale}), look):
            _curve(axis, rows, x, look[system], system)
        axis.set(xlabel=unit, ylabel=label)
        axis.margins(x=0.01)
        legend(figure, axis, look)
    return figure


def game_grid(frame: pd.DataFrame, *, x: str, label: str, caption: str) -> Figure:
    """A small panel per game (57 fit one page): curves of `value` over x = `env_steps` or `wall_seconds` with bands."""
    look, games = _look(frame), sorted(frame["env_id"].unique())
    scale, unit = _unit(x, float(frame[x].max()))
    columns = min(len(games), 6 if len(games) > 12 else 4)
    rows_of_panels = -(-len(games) // columns)
    with theme(TEXT_POINTS - 2):
        height = 0.6 + legend_inches(look) + 1.02 * rows_of_panels
        figure, axes = grid(rows_of_panels, columns, height=height, caption=caption, sharex=True)
        for axis, game in zip(axes, games):
            panel = frame.loc[frame["env_id"] == game]
            for system, rows in _groups(panel.assign(**{x: panel[x] / scale}), look):
                _curve(axis, rows, x, look[system], system, small=True)
            axis.set_title(_game(game), pad=2, fontsize=TEXT_POINTS - 1.5)
            axis.yaxis.set_major_locator(MaxNLocator(3))
            axis.yaxis.set_major_formatter(FuncFormatter(_short))
        for axis in axes[len(games) :]:
            axis.set_visible(False)
        for axis in axes[(rows_of_panels - 1) * columns : len(games)]:
            axis.set_xlabel(unit)  # the last row alone: all panels share the axis
        figure.supylabel(label, fontsize=TEXT_POINTS)
        legend(figure, axes[0], look)
    return figure


def game_dots(frame: pd.DataFrame, *, caption: str, label: str = "HNS (1 = human, symlog scale)") -> Figure:
    """A row per game, sorted by the best `value`; a marker per system with `low` to `high` where there is one."""
    look = _look(frame)
    best = frame.groupby("env_id")["value"].max().to_dict()
    games = sorted(best, key=lambda game: best[game])
    with theme(TEXT_POINTS - 1):
        figure, (axis,) = grid(
            1, 1, height=0.9 + legend_inches(look) + (0.12 + 0.008 * len(look)) * len(games), caption=caption
        )
        for i, (system, rows) in enumerate(_groups(frame, look)):
            heights = np.array([games.index(game) for game in rows["env_id"]]) + _offset(i, len(look))
            axis.errorbar(
                rows["value"], heights, xerr=_errors(rows), fmt=look[system].marker, color=look[system].color,
                label=system, markersize=3, elinewidth=0.8, markeredgewidth=0,
            )  # fmt: skip
        axis.set_xscale("symlog", linthresh=1.0)
        axis.axvline(1.0, color="black", linewidth=0.7, zorder=0)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_yticks(range(len(games)), [_game(str(game)) for game in games])
        axis.set(xlabel=label, ylim=(-0.7, len(games) - 0.3))
        legend(figure, axis, look)
    return figure


def improvement_probability(frame: pd.DataFrame, *, caption: str) -> Figure:
    """A row per pair (columns x, y): the `probability` that x does better than y, its interval, and the even line."""
    pairs = [f"{row['x']}  >  {row['y']}" for row in frame.to_dict("records")]
    with theme():
        figure, (axis,) = grid(1, 1, height=0.9 + 0.24 * len(pairs), caption=caption)
        for i, row in enumerate(frame.rename(columns={"probability": "value"}).to_dict("records")):
            _point(axis, row, i, next(iter(styles(["pair"]).values())))
        axis.axvline(0.5, color="black", linewidth=0.8, linestyle="--")
        axis.set_yticks(range(len(pairs)), pairs)
        axis.set(xlabel="probability of improvement P(X > Y)", xlim=(0, 1), ylim=(len(pairs) - 0.4, -0.6))
    return figure


def speedups(frame: pd.DataFrame, *, caption: str) -> Figure:
    """Bars of `speedup` (times; NaN: no bar) per system, a panel per `reference`, the number written at each end."""
    look, references = _look(frame), list(dict.fromkeys(frame["reference"]))
    with theme():
        figure, axes = grid(1, len(references), height=0.9 + 0.28 * len(look), caption=caption, sharey=True)
        for axis, reference in zip(axes, references, strict=True):
            panel = frame.loc[(frame["reference"] == reference) & frame["speedup"].notna()]
            for system, row in _rows(panel, look):
                _bar(axis, row, list(look).index(system), look[system])
            axis.axvline(1.0, color="black", linewidth=0.8)
            axis.set_xlabel(f"speed, times that of {reference}")
            axis.grid(visible=False, axis="y")
            axis.margins(x=0.18)
            axis.set_xlim(left=0)
        system_rows(axes[0], look)
    return figure


def _point(axis: Axes, row: Mapping, height: float, style: Style) -> None:
    if pd.notna(row["low"]):
        axis.plot([row["low"], row["high"]], [height, height], color=style.color, linewidth=4, alpha=0.35)
    axis.plot(row["value"], height, style.marker, color=style.color, markersize=5, markeredgewidth=0)


def _bar(axis: Axes, row: Mapping, height: float, style: Style) -> None:
    axis.barh(height, row["speedup"], height=0.62, color=style.color, alpha=0.85)
    end = row["speedup"]
    if pd.notna(row["low"]):
        axis.plot([row["low"], row["high"]], [height, height], color="black", linewidth=1.2)
        end = row["high"]
    axis.annotate(f"{row['speedup']:.2f}", (end, height), (3, 0), textcoords="offset points", va="center")


def _curve(axis: Axes, rows: pd.DataFrame, x: str, style: Style, name: str, *, small: bool = False) -> None:
    rows = rows.sort_values(x)
    marker, width = ("", 0.9) if small else (style.marker, 1.4)
    axis.plot(
        rows[x], rows["value"], color=style.color, linestyle=style.linestyle, marker=marker, label=name,
        linewidth=width, markersize=4, markeredgewidth=0, markevery=max(1, len(rows) // 8),
    )  # fmt: skip
    if rows["low"].notna().to_numpy().any():
        axis.fill_between(rows[x], rows["low"], rows["high"], color=style.color, alpha=0.2, linewidth=0)


def _look(frame: pd.DataFrame) -> dict[str, Style]:
    return styles(frame["system"].to_numpy().tolist())


def _groups(frame: pd.DataFrame, look: Mapping[str, Style]) -> Iterator[tuple[str, pd.DataFrame]]:
    for system in look:
        rows = frame.loc[frame["system"] == system]
        if len(rows):
            yield system, rows


def _rows(frame: pd.DataFrame, look: Mapping[str, Style]) -> Iterator[tuple[str, dict]]:
    for system, rows in _groups(frame, look):
        yield system, rows.iloc[0].to_dict()


def _errors(rows: pd.DataFrame) -> np.ndarray | None:
    """Distances [2, rows] to low and high as matplotlib wants them; None where no row has an interval."""
    if not rows["low"].notna().to_numpy().any():
        return None
    return np.stack([rows["value"] - rows["low"], rows["high"] - rows["value"]])


def _offset(index: int, count: int) -> float:
    """Systems of a game stand above each other within 0.7 of a row."""
    return 0.0 if count == 1 else 0.7 * (0.5 - index / (count - 1))


def _unit(x: str, largest: float) -> tuple[float, str]:
    """Divisor and axis label for a range of env steps or seconds."""
    if x == "env_steps":
        return (1e6, "env steps (millions)") if largest >= 1e6 else (1e3, "env steps (thousands)")
    if x == "wall_seconds":
        return (3600.0, "wall-clock time (hours)") if largest >= 4 * 3600 else (60.0, "wall-clock time (minutes)")
    raise ValueError(f"x is {x!r}; allowed: env_steps, wall_seconds")


def _game(env_id: str) -> str:
    return env_id.removesuffix("-v5")


def _short(value: float, _position: int) -> str:
    """Tick labels of raw scores: 12k instead of 12000."""
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"
