"""The records of an experiment's runs as tidy frames: one row per run, and the rows that the runs wrote.

A run counts when its record is complete and, where the experiment's file is there, when the file declares it as it is;
every other run is listed by name with what is the matter with it.
"""

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from runners.record import read_rows, read_spec, read_status
from runners.spec import SCHEMA, Experiment

Run = Mapping[Hashable, Any]  # one row of `Records.runs`

KEYS = ["experiment", "algorithm", "env_id", "profile", "seed", "run_id"]
SYSTEM = ["algorithm", "profile"]
CELL = ["experiment", "algorithm", "env_id", "profile", "seed"]
SETTINGS = ["schedule", "network", "protocol", "total_env_steps"]  # those that every algorithm has and a page names
# Settings that change when things happen, and under a schedule with a rule nothing else.
TIMING = ("actor_delay_seconds", "learner_delay_seconds", "delay_kind")
UNDECLARED = "undeclared"  # state of a run that the experiment's file does not declare, or with other settings
FINAL_SCORE = "mean raw return of the episodes that ended in the last 10 % of the run's planned env steps, per seed"


@dataclass(frozen=True, kw_only=True)
class Records:
    """`runs`: one row per run that counts. `left_out`: KEYS, state and reason of every other run."""

    runs: pd.DataFrame
    left_out: pd.DataFrame


def load(
    results: Path,
    experiments: Sequence[str],
    *,
    incomplete: bool = False,
    files: Mapping[Path, Experiment] | None = None,
) -> Records:
    """The runs under results/runs/<experiment>/. With `incomplete`, unfinished runs count as far as they went.

    `files` are experiment files by their path: of their experiments no run counts that they do not declare.

    Raises ValueError for an experiment without records, an unknown schema, two records of one cell, and runs of one
    experiment and algorithm whose settings differ.
    """
    found = pd.DataFrame([row for experiment in experiments for row in _experiment_rows(results, experiment)])
    for path, experiment in (files or {}).items():
        declared = [cell.run_id for cell in experiment.cells]  # what the runs mean: never the cell alone
        others = (found["experiment"] == experiment.name) & ~found["run_id"].isin(declared)
        found.loc[others, ["state", "reason"]] = UNDECLARED, f"not declared by {path}: other settings or another cell"
    if len(experiments) > 1:  # a label means what its own experiment says it means
        found = label_algorithms(found)
    found = found.sort_values(KEYS, ignore_index=True)
    counts = (found["state"] == "complete") | (incomplete & (found["state"] != UNDECLARED))
    runs = found.loc[counts].reset_index(drop=True)
    _refuse_duplicates(runs)
    _refuse_other_settings(runs)
    return Records(runs=runs, left_out=found.loc[~counts, [*KEYS, "state", "reason"]].reset_index(drop=True))


def rows(run: Run, table: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """One run's rows of `episodes`, `metrics`, `timing` or `fingerprints`, with the run's KEYS in front."""
    frame = read_rows(run["folder"], table, columns)
    for position, key in enumerate(KEYS):
        frame.insert(position, key, run[key])
    return frame


def frame(runs: pd.DataFrame, table: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The rows of all `runs` in one frame, keys as categories. Mind the memory: a run of 50M env steps has 20,000."""
    parts = pd.concat([rows(run, table, columns) for run in runs.to_dict("records")], ignore_index=True)
    return parts.astype(dict.fromkeys((key for key in KEYS if key != "seed"), "category"))


def groups(frame: pd.DataFrame, keys: Sequence[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    """(values of the keys, their rows), in the order in which they occur."""
    return iter(frame.groupby(list(keys), sort=False, observed=True))


def map_runs(runs: pd.DataFrame, function: Callable[[Run], object], *, threads: int = 2) -> list:
    """`function` of each run, in the order of `runs`; files are read on `threads` threads."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, (run for run in runs.to_dict("records"))))


def episodes(run: Run) -> pd.DataFrame:
    """One run's episodes: env_steps at their end and raw episode_return, checked.

    Raises ValueError for returns that are no finite numbers and for env steps past the run's plan, as frames would be.
    """
    frame = read_rows(run["folder"], "episodes", ["env_steps", "episode_return"])
    for column in frame:
        frame[column] = _finite(frame[column].tolist(), where=f"{run['folder']}/episodes, column {column}")
    if len(frame) and frame["env_steps"].max() > run["planned_env_steps"]:
        raise ValueError(
            f"{run['folder']}/episodes: env_steps reaches {frame['env_steps'].max():,.0f}, the run planned "
            f"{run['planned_env_steps']:,}; allowed: env steps over all envs, not frames, within the plan"
        )
    return frame


def final_score(episodes: pd.DataFrame, planned_env_steps: int) -> tuple[float, int]:
    """(mean return, number) of the episodes that ended in the last 10 % of `planned_env_steps`; (NaN, 0) without any.

    A run that stopped early has no episodes there, hence no final score.
    """
    last = episodes["episode_return"][10 * episodes["env_steps"] > 9 * planned_env_steps]
    return (float(last.mean()) if len(last) else np.nan, len(last))


def frames_per_env_step(run: Run) -> int:
    """Emulator frames of an env step, which the trainer knows of the protocol and wrote with each row: 4 in Atari."""
    row = read_rows(run["folder"], "metrics", ["env_steps", "frames"]).iloc[-1]
    return int(row["frames"] // row["env_steps"])


def throughput(run: Run) -> float:
    """Env steps per second from the end of a segment's first update to the end of its last, so without compilation.

    NaN for a run without two updates in a segment.
    """
    frame = read_rows(run["folder"], "metrics", ["segment", "env_steps", "wall_seconds"])
    segments = frame.groupby("segment")[["env_steps", "wall_seconds"]]
    spent = (segments.last() - segments.first()).sum()
    return spent["env_steps"] / spent["wall_seconds"] if spent["wall_seconds"] > 0 else np.nan


def machines(run: Run) -> list[dict]:
    """What was measured at each start of the run, in the order of segments."""
    paths = sorted(run["folder"].glob("machine.*.json"), key=lambda path: int(path.name.split(".")[1]))
    return [_read_json(path) for path in paths]


def label_algorithms(frame: pd.DataFrame) -> pd.DataFrame:
    """Labels as `experiment/label`, for frames that hold several experiments."""
    return frame.assign(algorithm=frame["experiment"] + "/" + frame["algorithm"])


def product_of_levels(cells: pd.DataFrame) -> pd.DataFrame:
    """CELL of every combination of what each experiment's `cells` vary: what it would hold if nothing were missing."""
    products = [
        pd.MultiIndex.from_product([sorted(part[key].unique()) for key in CELL], names=CELL).to_frame(index=False)
        for _, part in cells.groupby("experiment")
    ]
    return pd.concat([cells.iloc[:0], *products], ignore_index=True)


def differences(runs: pd.DataFrame) -> list[str]:
    """Sentences that say in which games runs are not comparable: other protocols or other budgets."""
    sentences = []
    for env_id, part in runs.groupby("env_id"):
        for column, words in (("protocol", "protocols"), ("total_env_steps", "budgets in env steps")):
            values = sorted(part[column].unique())
            if len(values) > 1:
                sentences.append(f"{env_id} has runs of different {words}: {', '.join(str(v) for v in values)}")
    return sentences


def _experiment_rows(results: Path, experiment: str) -> Iterator[dict]:
    root = results / "runs" / experiment
    specs = sorted(root.glob("*/spec.json"))
    if not specs:
        known = sorted({path.parts[-3] for path in (results / "runs").glob("*/*/spec.json")})
        raise ValueError(f"{root}: no run records; allowed: {', '.join(known) or 'none yet, run an experiment first'}")
    yield from (_run_row(path.parent) for path in specs)


def _run_row(folder: Path) -> dict:
    spec, status = read_spec(folder), read_status(folder)
    state, reason, reached = (status.state, status.reason, status.env_steps) if status else ("running", "no status", 0)
    if state == "complete" and reached < spec.planned_env_steps:
        state, reason = "short", f"complete at {reached:,} of {spec.planned_env_steps:,} planned env steps"
    return {
        "experiment": spec.experiment,
        "algorithm": spec.algorithm,
        "env_id": spec.env_id,
        "profile": spec.profile.name,
        "seed": spec.seed,
        "run_id": spec.run_id,
        "state": state,
        "reason": reason,
        "algo": spec.algo,
        "layout": spec.profile.layout,
        "platform": spec.profile.platform,
        **{key: spec.settings[key] for key in SETTINGS},
        "planned_env_steps": spec.planned_env_steps,
        "reached_env_steps": reached,
        "question": spec.question,
        "settings": dict(spec.settings),
        "inexact_resume": bool(status and status.inexact_resume),
        "folder": folder,
    }


def _read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as JSON ({error}); allowed: the file that the run wrote") from None
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema is {content.get('schema')!r}; allowed: {SCHEMA}")
    return content


def _refuse_duplicates(runs: pd.DataFrame) -> None:
    twice = runs.loc[runs.duplicated(CELL, keep=False)]
    if len(twice):
        first, *others = twice.to_dict("records")
        folders = [first["folder"], *(run["folder"] for run in others if all(run[key] == first[key] for key in CELL))]
        raise ValueError(
            f"{first['algorithm']} on {first['env_id']}, {first['profile']}, seed {first['seed']} has {len(folders)} "
            f"records of different settings: {', '.join(map(str, folders))}; allowed: one (move the others away)"
        )


def _refuse_other_settings(runs: pd.DataFrame) -> None:
    """An algorithm is its settings: seeds or games that were run before and after an edit are of two algorithms."""
    for (experiment, algorithm), part in groups(runs, ["experiment", "algorithm"]):
        first, *others = ((run, {"algo": run["algo"]} | run["settings"]) for run in part.to_dict("records"))
        other = next((pair for pair in others if pair[1] != first[1]), None)
        if other is None:
            continue
        values = {
            name: (first[1].get(name, "not stated"), other[1].get(name, "not stated")) for name in first[1] | other[1]
        }
        name, (a, b) = next((name, pair) for name, pair in values.items() if pair[0] != pair[1])
        a_run, b_run = (f"{run['env_id']}, seed {run['seed']}, run {run['run_id']}" for run in (first[0], other[0]))
        raise ValueError(
            f"experiment {experiment}: {algorithm} has runs of different settings: {name} is {a} ({a_run}) and {b} "
            f"({b_run}); allowed: one value (move the others away, or give them a label of their own)"
        )


def _finite(values: list, *, where: str) -> np.ndarray:
    numbers = np.asarray(pd.to_numeric(np.array(values, dtype=object), errors="coerce"), dtype=float)
    finite = np.isfinite(numbers)
    if not finite.all():
        row = int(finite.argmin())
        raise ValueError(f"{where}: row {row + 1} is {values[row]!r}; allowed: a finite number")
    return numbers
