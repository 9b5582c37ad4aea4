"""Parsers of tables of curves: one file, many runs. Formats: docs/compare.md."""

import gzip
import json
from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.foreign import Declared, ForeignRun, count_restarts, find_files, increments, latest_rows, resolve_unit
from analysis.foreign_text import read_parquet, read_text

KEYS = ("algorithm", "env_id", "seed")
NUMBERS = ("steps", "episode_return", "num_episodes", "episodes_done", "wall_seconds")
CURVE = ["steps", "episode_return", "num_episodes", "wall_seconds"]
FRAMES_PER_ITERATION = 1_000_000  # Dopamine's Atari configurations train 250,000 agent steps per iteration


def csv(path: Path, declared: Declared) -> list[ForeignRun]:
    """A CSV file, gzipped or not, with declared columns; tabs instead of commas where its name ends in .tsv."""
    unit, keys, numbers = _declared_columns("csv", declared)
    notes: list[str] = []
    separator = "\t" if path.name.removesuffix(".gz").endswith(".tsv") else ","
    found = read_text(_one_file(path), numbers, keys=keys, separator=separator, notes=notes)
    return [_table_run(path, key, frame, keys, unit, declared, notes) for key, frame in found.items()]


def parquet(path: Path, declared: Declared) -> list[ForeignRun]:
    """A Parquet file with declared columns."""
    unit, keys, numbers = _declared_columns("parquet", declared)
    found = read_parquet(_one_file(path), numbers, keys)
    return [_table_run(path, key, frame, keys, unit, declared, []) for key, frame in found.items()]


def dopamine(path: Path, declared: Declared) -> list[ForeignRun]:
    """Dopamine's scores of a game: a list of {Agent, Iteration, Value}, run after run; the file is named by the game.

    A value stands at the end of its iteration. Seeds are not stored.
    """
    unit = resolve_unit("dopamine", "frames", declared.unit)
    return [run for file in find_files(path, "*.json") for run in _dopamine_runs(file, unit, declared)]


def dreamerv3(path: Path, declared: Declared) -> list[ForeignRun]:
    """DreamerV3's score files: a list of {task, method, seed, xs, ys}, gzipped or not; xs in frames for Atari."""
    unit = resolve_unit("dreamerv3", "frames", declared.unit)
    return [run for file in find_files(path, "*.json.gz") for run in _dreamerv3_runs(file, unit, declared)]


def _declared_columns(source: str, declared: Declared) -> tuple[str, dict[str, str], dict[str, str]]:
    """(unit, columns that tell runs apart, columns of numbers). Raises ValueError for what is missing or unknown."""
    columns = declared.columns
    for name in columns:
        if name not in (*KEYS, *NUMBERS):
            raise ValueError(f"--columns: {name!r} is unknown; allowed: {', '.join((*KEYS, *NUMBERS))}")
    for name in ("steps", "episode_return"):
        if name not in columns:
            raise ValueError(f"{source} needs --columns {name}=COLUMN; allowed: {', '.join((*KEYS, *NUMBERS))}")
    if "num_episodes" in columns and "episodes_done" in columns:
        raise ValueError("--columns has num_episodes and episodes_done (a running total); allowed: one of them")
    if not (declared.env_id or "env_id" in columns):
        raise ValueError(f"{source} needs --columns env_id=COLUMN or --env-id; found neither")
    unit = resolve_unit(source, None, declared.unit)
    keys = {name: columns[name] for name in KEYS if name in columns}
    return unit, keys, {name: columns[name] for name in NUMBERS if name in columns}


def _table_run(
    path: Path, key: tuple[str, ...], frame: pd.DataFrame, keys: Mapping[str, str], unit: str, declared: Declared,
    notes: list[str],
) -> ForeignRun:  # fmt: skip
    values = dict(zip(keys, key))
    where = ", ".join(f"{keys[name]} {value}" for name, value in values.items()) or "its rows"
    steps = frame["steps"].to_numpy()
    restarts = [f"{where}: steps go back {count_restarts(steps)} times; later rows count"]
    frame = frame.loc[latest_rows(steps)]
    if "episodes_done" in frame:
        frame = frame.assign(num_episodes=increments(frame["episodes_done"].to_numpy()))
    return ForeignRun(
        algorithm=declared.algorithm or values.get("algorithm") or path.name.partition(".")[0],
        env_id=declared.env_id or values["env_id"],
        seed=_seed(values.get("seed"), f"{path}, {where}") if declared.seed is None else declared.seed,
        unit=unit,
        curve=frame.reindex(columns=CURVE).reset_index(drop=True),
        files=(path,),
        notes=(*notes, *(restarts if count_restarts(steps) else [])),
    )


def _dopamine_runs(file: Path, unit: str, declared: Declared) -> Iterator[ForeignRun]:
    points = _json_list(file, {"Agent": str, "Iteration": int, "Value": float})
    for agent, rows in groupby(points, key=lambda point: point["Agent"]):
        for run in _by_iteration(file, list(rows)):
            yield ForeignRun(
                algorithm=declared.algorithm or agent,
                env_id=declared.env_id or file.stem.partition("_")[0],
                seed=declared.seed,
                unit=unit,
                curve=_curve([(row["Iteration"] + 1) * FRAMES_PER_ITERATION for row in run], [r["Value"] for r in run]),
                files=(file,),
                producer={"name": "dopamine"},
                notes=("a value is placed at the end of its iteration of 1,000,000 frames",),
            )


def _by_iteration(file: Path, rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows of an agent cut where the iteration goes back: there the next run begins."""
    iterations = np.array([row["Iteration"] for row in rows])
    if (same := np.flatnonzero(np.diff(iterations) == 0)).size:
        raise ValueError(
            f"{file}: {rows[0]['Agent']} has iteration {iterations[same[0]]} twice in a row; allowed: run after run"
        )
    cuts = [0, *(np.flatnonzero(np.diff(iterations) < 0) + 1), len(rows)]
    return [rows[start:end] for start, end in pairwise(cuts)]


def _dreamerv3_runs(file: Path, unit: str, declared: Declared) -> Iterator[ForeignRun]:
    for index, run in enumerate(_json_list(file, {"task": str, "method": str, "xs": list, "ys": list}), 1):
        where = f"{file}, run {index} ({run['task']})"
        if not run["task"].startswith("atari_"):
            raise ValueError(f"{where}: frames per env step are unknown outside Atari; allowed: tasks atari_*")
        if len(run["xs"]) != len(run["ys"]):
            raise ValueError(f"{where}: {len(run['xs'])} xs and {len(run['ys'])} ys; allowed: as many of both")
        yield ForeignRun(
            algorithm=declared.algorithm or run["method"],
            env_id=declared.env_id or run["task"],
            seed=_seed(run.get("seed"), where) if declared.seed is None else declared.seed,
            unit=unit,
            curve=_curve(run["xs"], run["ys"], where),
            files=(file,),
            producer={"name": "dreamerv3"},
        )


def _curve(steps: list, returns: list, where: str = "") -> pd.DataFrame:
    """null among the returns is none. Raises ValueError for steps that go back and for what is no finite number."""
    try:
        frame = pd.DataFrame({"steps": np.array(steps, dtype=float), "episode_return": np.array(returns, dtype=float)})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}; allowed: numbers, and null for no return") from None
    good = frame["steps"].between(0, np.inf, inclusive="left") & ~np.isinf(frame["episode_return"])
    good &= frame["steps"].diff().fillna(0) >= 0
    if not good.all():
        row = int(good.argmin())
        found = f"steps {frame['steps'][row]}, return {frame['episode_return'][row]}"
        raise ValueError(f"{where}, point {row + 1}: {found}; allowed: finite numbers, steps from 0 that never go back")
    return frame.reindex(columns=CURVE)


def _json_list(file: Path, needed: Mapping[str, type]) -> list[dict[str, Any]]:
    """A list of objects that have the needed keys, whose values are of the needed types."""
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as text:
            content = json.load(text)
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{file}: cannot be read as JSON ({error}); allowed: the file as it was published") from None
    if not isinstance(content, list) or not content:
        raise ValueError(f"{file}: holds no list of objects; allowed: objects with {', '.join(needed)}")
    for number, row in enumerate(content, 1):
        for name, kind in needed.items():
            value = row.get(name) if isinstance(row, dict) else None
            if not isinstance(value, (int, float) if kind is float else kind):
                raise ValueError(f"{file}, object {number}: {name} is {value!r}; allowed: a {kind.__name__}")
    return content


def _seed(value: Any, where: str) -> int | None:
    if value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: the seed is {value!r}; allowed: a whole number") from None


def _one_file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"{path}: is no file; allowed: one file")
    return path
