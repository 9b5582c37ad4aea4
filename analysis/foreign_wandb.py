"""Runs of W&B: a snapshot of them (`runners.snapshot`), and openrlbenchmark's offline data.

Both hold, per run, rows with a metric of the return and one of the steps, as W&B logged them; the config tells the
game, the seed and the experiment's name. Formats: docs/compare.md.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.foreign import Declared, ForeignRun, count_restarts, latest_rows, named_game, resolve_unit
from analysis.foreign_events import CLEANBA_ZEROS
from analysis.foreign_text import header, read_text
from analysis.openrlbenchmark import Selection, selections
from runners import snapshot
from runners.snapshot import setting

# What is fetched where nobody says otherwise: the names that CleanRL and Cleanba log.
COLUMNS = {
    "steps": "global_step", "episode_return": "charts/avg_episodic_return", "wall_seconds": "_runtime",
    "env_id": "env_id", "seed": "seed", "algorithm": "exp_name",
}  # fmt: skip
# Whose global_step counts env steps, as their code does: global_step grows by the envs of a vector step, of 4 frames.
COUNTS_ENV_STEPS = ("cleanba", "cleanrl")
PRODUCERS = {f"openrlbenchmark/{name}": name for name in COUNTS_ENV_STEPS}  # entity/project -> who logged there
RUNS = """
    SELECT run.rowid, run.id, run.state, run.username, run.config, tag.name FROM offlinerun AS run
    LEFT JOIN tag_offlinerun_through AS link ON link.offlinerun_id = run.id
    LEFT JOIN tag ON tag.id = link.tag_id
    WHERE run.entity = ? AND run.project = ? ORDER BY run.rowid
"""


def complete_columns(columns: Mapping[str, str]) -> dict[str, str]:
    """Declared columns with the defaults of what is not declared. Raises ValueError for what is unknown."""
    for name in columns:
        if name not in COLUMNS:
            raise ValueError(f"--columns: {name!r} is unknown; allowed: {', '.join(COLUMNS)}")
    return {**COLUMNS, **columns}


def wandb(path: Path, declared: Declared) -> list[ForeignRun]:
    """The runs of a snapshot. What each metric is was stated when they were fetched, and stands in the manifest."""
    if not (path / snapshot.MANIFEST).is_file():
        raise ValueError(f"{path}: has no {snapshot.MANIFEST}; allowed: ENTITY/PROJECT, or the folder of a snapshot")
    return [_snapshot_run(path, entry, declared) for entry in snapshot.read_manifest(path)]


def openrlbenchmark(path: Path, declared: Declared) -> list[ForeignRun]:
    """What --filters and --env-ids select of openrlbenchmark's offline data, its folder `dataset`.

    <entity>/<project>/offline.sqlite lists the runs with their config and tags; <entity>/<project>/<run>/run_df.csv is
    a run's history. A game without runs is noted on the selection's first run, and a selection without any is refused.
    """
    return [
        run for found in selections(declared.filters, declared.env_ids) for run in _offline_runs(path, found, declared)
    ]


def _snapshot_run(folder: Path, entry: Mapping[str, Any], declared: Declared) -> ForeignRun:
    where = f"{entry['entity']}/{entry['project']}/{entry['run']}"
    return _run(
        where, pd.read_parquet(folder / entry["file"]), folder / entry["file"], entry["config"], entry["columns"],
        entry["label"], declared, {key: entry[key] for key in ("run", "run_name", "state", "tags", "fetched_at")},
    )  # fmt: skip


def _offline_runs(path: Path, selection: Selection, declared: Declared) -> Iterator[ForeignRun]:
    columns = complete_columns(dict(declared.columns) | dict(selection.columns))
    project = path / selection.entity / selection.project
    found = [run for run in _listed(project, selection) if selection.matches(run["config"], run["tags"], run["user"])]
    if not found:
        raise ValueError(f"{project}: no run matches {selection.text!r} on {', '.join(selection.env_ids)}")
    without = sorted(set(selection.env_ids) - {setting(run["config"], columns["env_id"]) for run in found})
    notes = [f"{selection.text}: no run on {', '.join(without)}"] if without else []
    for run in found:
        file, notes_of_run = project / run["run"] / "run_df.csv", [*notes]
        history = _offline_history(file, columns, notes_of_run)
        where = f"{selection.entity}/{selection.project}/{run['run']}"
        label = selection.label
        about = {"run": run["run"], "state": run["state"], "tags": sorted(run["tags"])}
        yield _run(where, history, file, run["config"], columns, label, declared, about, notes_of_run)
        notes = []


def _listed(project: Path, selection: Selection) -> list[dict[str, Any]]:
    """The finished runs of a project by its database. Of two rows of one run the later counts."""
    file = project / "offline.sqlite"
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file; allowed: the folder with ENTITY/PROJECT/offline.sqlite")
    found: dict[str, dict[str, Any]] = {}
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            for row, run, state, user, config, tag in database.execute(RUNS, (selection.entity, selection.project)):
                if run not in found or found[run]["row"] != row:
                    about = {"row": row, "run": run, "state": state, "user": user, "tags": set()}
                    found[run] = about | {"config": json.loads(config)}
                found[run]["tags"] |= {tag} - {None}
    except (sqlite3.DatabaseError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read ({error}); allowed: openrlbenchmark's offline.sqlite") from None
    return [run for run in found.values() if run["state"] != "running"]  # openrlbenchmark leaves them out too


def _offline_history(file: Path, columns: Mapping[str, str], notes: list[str]) -> pd.DataFrame:
    """A run_df.csv, pandas' own table of all metrics: blank where a row does not have one."""
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file; allowed: the history that openrlbenchmark keeps of each run")
    named = {"wandb_step": "_step", "x": columns["steps"], **{key: columns[key] for key in snapshot.HISTORY[2:]}}
    there = header(file)
    numbers = {ours: name for ours, name in named.items() if name in there or ours in ("x", "episode_return")}
    found = read_text(file, numbers, notes=notes) or {
        (): pd.DataFrame({name: pd.Series(dtype=float) for name in numbers})
    }
    frame = found[()].rename(columns={"x": "steps"})  # read as x, since steps must not be blank there
    return frame.reindex(columns=snapshot.HISTORY)


def _run(
    where: str, history: pd.DataFrame, file: Path, config: Mapping[str, Any], columns: Mapping[str, str],
    label: str | None, declared: Declared, about: Mapping[str, Any], notes: list[str] | None = None,
) -> ForeignRun:  # fmt: skip
    entity, project, _ = where.split("/")
    producer = declared.producer or PRODUCERS.get(f"{entity}/{project}") or "wandb"
    counted = "env_steps" if producer in COUNTS_ENV_STEPS and columns["steps"] == "global_step" else None
    notes = [f"episode_return is the metric {columns['episode_return']}, steps {columns['steps']}", *(notes or [])]
    if columns["episode_return"] == "charts/avg_episodic_return":
        notes.append(CLEANBA_ZEROS)
    seed = setting(config, columns["seed"]) if declared.seed is None else declared.seed
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ValueError(f"{where}: the config's {columns['seed']} is {seed!r}; allowed: a whole number")
    name = label or setting(config, columns["algorithm"])
    return ForeignRun(
        algorithm=declared.algorithm or (str(name) if name else "wandb"),
        env_id=named_game(declared.env_id or setting(config, columns["env_id"]), file, f"config {columns['env_id']}"),
        seed=seed,
        unit=resolve_unit(f"W&B's {columns['steps']} in {entity}/{project}", counted, declared.unit),
        curve=_curve(where, history, columns, notes),
        files=(file,),
        producer={"name": producer, "entity": entity, "project": project, **about, "flags": dict(config)},
        notes=tuple(notes),
    )


def _curve(where: str, history: pd.DataFrame, columns: Mapping[str, str], notes: list[str]) -> pd.DataFrame:
    """The rows that have steps; a row without a return is one at which no return was logged."""
    with_steps = history["steps"].notna()
    if lost := int((history["episode_return"].notna() & ~with_steps).sum()):
        notes.append(f"{where}: {lost} returns stand in rows without {columns['steps']} and are left out")
    frame = history.loc[with_steps].reset_index(drop=True)
    if frame["episode_return"].isna().all():
        raise ValueError(
            f"{where}: no row has {columns['steps']} and {columns['episode_return']}; allowed: at least one"
        )
    good = frame["steps"].between(0, np.inf, inclusive="left") & ~np.isinf(frame["episode_return"])
    if not good.all():
        row = frame.loc[int(good.argmin())]
        found = f"{columns['steps']} {row['steps']}, {columns['episode_return']} {row['episode_return']}"
        raise ValueError(f"{where}, W&B step {row['wandb_step']:.0f}: {found}; allowed: finite numbers, steps from 0")
    steps = frame["steps"].to_numpy()
    if restarts := count_restarts(steps):
        notes.append(f"{where}: {restarts} restarts; later rows count")
    frame = frame.loc[latest_rows(steps)]
    return frame.reindex(columns=["steps", "episode_return", "num_episodes", "wall_seconds"]).reset_index(drop=True)
