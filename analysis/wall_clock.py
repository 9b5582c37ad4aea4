"""Runs along their own clocks: returns over wall-clock time, and where the seconds of an update go."""

import numpy as np
import pandas as pd

from analysis import curves, efficiency, records
from analysis.report_tables import Table, system_name
from analysis.summary import Summary
from analysis.tables import number

POINTS = 60  # of a game's curve, from 0 to the slowest run's end


def clock(run: records.Run) -> pd.DataFrame:
    """env_steps and wall_seconds, of all training so far, at its start and at the end of each update."""
    ends = records.rows(run, "metrics", ["env_steps", "wall_seconds"])
    return pd.DataFrame({name: np.concatenate([[0.0], ends[name]]) for name in ("env_steps", "wall_seconds")})


def curves_over_time(summary: Summary) -> pd.DataFrame:
    """Mean return over seeds at wall_seconds, per system and game, each run placed by its own clock.

    Columns system, env_id, wall_seconds, value, low, high (smallest and largest seed), seeds. A run that has ended, or
    has not finished an episode yet, is missing there.
    """
    timed = {run["run_id"]: clock(run) for run in summary.runs.to_dict("records")}
    by_game = summary.curves.dropna(subset="episode_return").groupby("env_id", sort=False, observed=True)
    parts = [_of_game(str(env_id), rows, timed) for env_id, rows in by_game]
    return pd.concat(parts, ignore_index=True)


def seconds_of_runs(summary: Summary) -> Table:
    """Per system: how long its runs took, and how fast they were."""
    taken = [clock(run)["wall_seconds"].max() / 60 for run in summary.runs.to_dict("records")]
    groups = summary.runs.assign(minutes=taken).groupby(records.SYSTEM, sort=False, observed=True)
    frame = groups.agg(
        runs=("minutes", "count"),
        minutes=("minutes", "median"),
        env_steps_per_second=("env_steps_per_second", "median"),
    ).reset_index()
    frame["times_slowest"] = frame["env_steps_per_second"] / frame["env_steps_per_second"].min()
    shown = {"minutes": 1, "env_steps_per_second": 0, "times_slowest": 2}
    return Table(
        name="wall_clock",
        caption="Medians over runs: minutes from start to end, env steps per second, and times the slowest system.",
        notes=("Minutes include compilation; env steps per second begin with the end of the first update.",),
        frame=frame,
        display=frame.assign(**{name: [number(v, decimals) for v in frame[name]] for name, decimals in shown.items()}),
    )


def phases(summary: Summary) -> Table:
    """Median milliseconds of an update per system and phase, over the updates of all its runs."""
    timing = records.frame(summary.runs, "timing")
    names = [name for name in timing if str(name).endswith("_seconds") and name != "wall_seconds"]
    frame = timing.groupby(records.SYSTEM, sort=False, observed=True)[names].median().mul(1000).reset_index()
    frame = frame.rename(columns=lambda name: str(name).replace("_seconds", "_ms"))
    rounded = {name: [number(v, 1) for v in frame[name]] for name in frame if str(name).endswith("_ms")}
    return Table(
        name="phases",
        caption="Where an update's time goes: median milliseconds per update.",
        notes=(
            "Actors and learner work at the same time, so that phases of both add up to more than an update. rollout: "
            "an actor's T env steps, of which env and inference; params_wait: an actor waits for new parameters; "
            "rollout_wait: the learner waits for a rollout; learn: its update.",
        ),
        frame=frame,
        display=frame.assign(**rounded),
    )


def _of_game(env_id: str, rows: pd.DataFrame, timed: dict[str, pd.DataFrame]) -> pd.DataFrame:
    placed = []
    for run, part in rows.groupby("run_id", sort=False, observed=True):
        known = timed[str(run)]  # past the last update's end the time is unknown, not the last one
        seconds = np.interp(part["env_steps"], known["env_steps"], known["wall_seconds"], right=np.nan)
        placed.append(part.assign(wall_seconds=seconds).dropna(subset="wall_seconds"))
    rows = pd.concat(placed)
    grid = efficiency.even_grid(rows["wall_seconds"].max() / 60, POINTS)
    parts = []
    for (algorithm, profile), part in records.groups(rows, records.SYSTEM):
        system = system_name(str(algorithm), str(profile))
        found = efficiency.on_grid(part, system, grid, axis="minutes", value="episode_return")
        values = found.scores[env_id]  # [seeds, points]
        frame = pd.DataFrame({"wall_seconds": grid * 60, "value": curves.mean_over_seeds(values)})
        present = pd.DataFrame(values)
        frame = frame.assign(low=present.min(), high=present.max(), seeds=present.count())
        parts.append(frame.assign(system=system, env_id=env_id).dropna(subset="value"))
    return pd.concat(parts)
