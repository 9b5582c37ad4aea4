"""Scores along training: aggregates at env steps (sample efficiency) or at minutes (wall-clock efficiency).

Each run lies on its own axis; runs meet on a common grid. A value past a run's last row, or before its first, is
missing: it is neither extrapolated nor does it shorten the other runs. At each point of the grid the figures are those
of the score matrix of the runs that are there, as `bootstrap.aggregates` gives them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import statistics
from analysis.bootstrap import DEFAULT, Cells, Resampling, bootstrap_draw, note_on_seeds, replicates
from analysis.matrix import from_frame

# The axis of a figure, the column of a record that it comes from, and how many of the column's units one of it is.
AXES = {"env_steps": ("env_steps", 1.0), "frames": ("frames", 1.0), "minutes": ("wall_seconds", 60.0)}

_MOST_POINTS = 128  # resampled at a time: 50 MB of replicates at 50,000 repetitions


@dataclass(frozen=True, eq=False)
class Curves:
    """One system's curves: `grid` [P] in the unit that `axis` names; `scores` env_id -> [seeds, P], in `unit`."""

    system: str
    axis: str
    grid: np.ndarray
    unit: str
    scores: Mapping[str, np.ndarray]


def even_grid(end: float, num_points: int = 100) -> np.ndarray:
    """Evenly spaced points up to and with `end`, which is the budget or the minutes of interest."""
    if end <= 0 or num_points < 1:
        raise ValueError(f"grid: {num_points} points up to {end}; allowed: at least 1 point, an end above 0")
    return np.linspace(end / num_points, end, num_points)


def on_grid(
    frame: pd.DataFrame, system: str, grid: np.ndarray, *, axis: str = "env_steps", value: str = "hns"
) -> Curves:
    """One system's tidy rows env_id, seed, `value` and env_steps, frames or wall_seconds -> curves on the grid.

    Between two rows of a run, its score is interpolated linearly.
    """
    if axis not in AXES:
        raise ValueError(f"{system}: axis is {axis!r}; allowed: {', '.join(AXES)}")
    grid = np.asarray(grid, np.float64)
    if not grid.size or not np.isfinite(grid).all() or (np.diff(grid) <= 0).any():
        raise ValueError(f"{system}: the points of a grid must be finite numbers that increase, at least one")
    column, factor = AXES[axis]
    missing = [name for name in ("env_id", "seed", column, value) if name not in frame.columns]
    if missing:
        found = ", ".join(map(str, frame.columns))
        raise ValueError(f"{system}: column {', '.join(missing)} is missing; found {found}")
    ends = from_frame(frame.drop_duplicates(["env_id", "seed"], keep="last"), system, value=value)
    runs = dict(iter(frame.groupby(["env_id", "seed"])))
    scores = {
        env_id: np.stack(
            [
                _on_grid(f"{system}: {env_id} seed {seed}", runs[env_id, seed], column, value, grid * factor)
                for seed in seeds
            ]
        )
        for env_id, seeds in (ends.seeds or {}).items()
    }
    return Curves(system, axis, grid, ends.unit, scores)


def efficiency(
    curves: Sequence[Curves],
    *,
    names: Sequence[str] = ("median", "iqm", "mean"),
    resampling: Resampling = DEFAULT,
) -> pd.DataFrame:
    """The named aggregates at every point of the grid with pointwise intervals, a row per system, statistic and point.

    Columns: system, statistic, the axis, estimate, low, high, num_games, num_runs, fewest_seeds, most_seeds, note.
    Where a game has no run left the aggregate would be of other games: it is missing (NaN), and `note` says so.
    """
    _refuse_different_axes(curves)
    frames = [_of_system(one, name, resampling) for one in curves for name in names]
    return pd.concat(frames, ignore_index=True)


def _of_system(curves: Curves, name: str, resampling: Resampling) -> pd.DataFrame:
    present = np.concatenate([np.isfinite(runs) for runs in curves.scores.values()])
    low, high, estimate = (np.full(curves.grid.size, np.nan) for _ in range(3))
    sizes = np.stack([np.isfinite(runs).sum(axis=0) for runs in curves.scores.values()])
    for points in _alike(present):
        if sizes[:, points[0]].min() == 0:
            continue
        scores = {env_id: runs[np.isfinite(runs[:, points[0]])][:, points] for env_id, runs in curves.scores.items()}
        estimate[points] = [_point(name, scores, i) for i in range(len(points))]
        if sizes[:, points[0]].max() > 1:
            low[points], high[points] = _band(curves.system, name, scores, resampling)
    frame = pd.DataFrame({"system": curves.system, "statistic": name, curves.axis: curves.grid})
    counts = {"num_games": (sizes > 0).sum(axis=0), "num_runs": sizes.sum(axis=0)}
    counts |= {"fewest_seeds": sizes.min(axis=0), "most_seeds": sizes.max(axis=0)}
    return frame.assign(estimate=estimate, low=low, high=high, **counts, note=[_note(column) for column in sizes.T])


def _alike(present: np.ndarray) -> list[np.ndarray]:
    """Neighbouring points at which the same runs are present, a few at a time. present [N, P] -> indices."""
    changes = 1 + np.flatnonzero((present[:, 1:] != present[:, :-1]).any(axis=0))
    stretches = np.split(np.arange(present.shape[1]), changes)
    return [part for points in stretches for part in np.split(points, range(_MOST_POINTS, len(points), _MOST_POINTS))]


def _point(name: str, scores: Mapping[str, np.ndarray], point: int) -> float:
    return statistics.AGGREGATES[name]({env_id: runs[:, point] for env_id, runs in scores.items()})


def _band(
    system: str, name: str, scores: Mapping[str, np.ndarray], resampling: Resampling
) -> tuple[np.ndarray, np.ndarray]:
    """Pointwise interval of scores env_id -> [seeds, P] -> [P], [P]."""
    cells = Cells.of({env_id: runs.T for env_id, runs in scores.items()})
    draw = bootstrap_draw(system, cells, resampling)
    replicated = replicates(cells, [name], draw=draw, resampling=resampling)[name]
    low, high = np.quantile(replicated, resampling.quantiles, axis=1)
    return low, high


def _note(sizes: np.ndarray) -> str:
    gone = int((sizes == 0).sum())
    return f"{gone} of {len(sizes)} games have no run here: no figure" if gone else note_on_seeds(sizes)


def _on_grid(run: str, rows: pd.DataFrame, column: str, value: str, grid: np.ndarray) -> np.ndarray:
    """One run's score at the points of the grid [P], NaN where it has none."""
    for name in (column, value):
        entries = rows[name].to_numpy()
        if entries.dtype.kind not in "iuf" or not np.isfinite(entries).all():
            raise ValueError(f"{run}: {name} has an entry that is no finite number; leave out rows without an episode")
    if (np.diff(rows[column].to_numpy()) <= 0).any():
        raise ValueError(f"{run}: {column} does not increase from row to row; allowed: one row per {column}, in order")
    return np.interp(grid, rows[column].to_numpy(np.float64), rows[value].to_numpy(), left=np.nan, right=np.nan)


def _refuse_different_axes(curves: Sequence[Curves]) -> None:
    if not curves:
        raise ValueError("no curves were given; at least one system's are needed")
    first = curves[0]
    if first.unit != "hns" and len(first.scores) > 1:
        raise ValueError(f"{first.system}: an aggregate over games needs human-normalised scores; found {first.unit}")
    systems = [one.system for one in curves]
    if len(set(systems)) != len(systems):
        raise ValueError(f"systems {', '.join(systems)}: a name occurs twice; name each system once")
    for other in curves[1:]:
        if (other.axis, other.unit) != (first.axis, first.unit) or not np.array_equal(other.grid, first.grid):
            raise ValueError(
                f"{first.system} ({first.axis}, {first.unit}) and {other.system} ({other.axis}, {other.unit}) lie on "
                "different grids; allowed: one axis, one grid and one unit"
            )
        differing = sorted(set(first.scores) ^ set(other.scores))
        if differing:
            raise ValueError(
                f"{first.system} and {other.system} do not have the same games: only one has {', '.join(differing)}"
            )
