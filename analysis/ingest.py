"""`cleanba ingest`: logs of others become records of kind `foreign`, kept apart from runs of our own.

results/runs/<name>/<run_id>/ has `spec.json` (what is known, and by name what is not) and `curve.parquet`, the curve as
the log gives it. There are no episodes: a mean over episodes cannot be taken apart again. Only who asks for the name
gets these records: `cleanba status` and `cleanba report` are about runs of our own.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import foreign_events, foreign_logs, foreign_scores, foreign_wandb
from analysis.foreign import FRAMES_PER_ENV_STEP, Declared, ForeignRun, game
from runners.spec import SCHEMA, check_name

KIND = "foreign"
PARSERS = {
    "moolib": foreign_logs.moolib,
    "monobeast": foreign_logs.monobeast,
    "polybeast": foreign_logs.monobeast,  # the same writer
    "tensorboard": foreign_events.tensorboard,
    "sb3": foreign_logs.stable_baselines3,
    "rllib": foreign_logs.rllib,
    "csv": foreign_scores.csv,
    "parquet": foreign_scores.parquet,
    "dopamine": foreign_scores.dopamine,
    "dreamerv3": foreign_scores.dreamerv3,
    "wandb": foreign_wandb.wandb,
    "openrlbenchmark": foreign_wandb.openrlbenchmark,
}
CURVE = ["env_steps", "frames", "episode_return", "num_episodes", "wall_seconds"]
KEYS = ["experiment", "algorithm", "env_id", "seed"]
SAME_SOURCE = ("parser", "unit", "protocol")  # what all records of one name share
CONTENT = ("digests", "unit", "protocol", "columns")  # what makes two records of one id the same


@dataclass(frozen=True, kw_only=True)
class Record:
    spec: Mapping[str, Any]
    curve: pd.DataFrame


def main(source: str, path: Path, name: str, declared: Declared, results: Path) -> list[str]:
    """Read all runs of a source, then write those that have no record yet. Returns the sentences to print.

    Raises ValueError before anything is written: for logs that cannot be read, for a name that holds other records,
    and for a run whose record has another content.
    """
    if source not in PARSERS:
        raise ValueError(f"source is {source!r}; allowed: {', '.join(PARSERS)}")
    check_name(name, where="--as")
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder; allowed: logs of {source}")
    folder = results / "runs" / name
    records = _records(PARSERS[source](path, declared), source, path, name, declared)
    _check_same_source(folder, records[0].spec)
    new = [record for record in records if not _is_there(folder, record.spec)]
    for record in new:
        _write(folder, record)
    notes = dict.fromkeys(note for record in new for note in record.spec["notes"])  # each once
    return [*_summary(folder, records, len(new)), *notes]


def parse_columns(stated: Sequence[str]) -> dict[str, str]:
    """What it is -> the name of its column, of words such as steps=frames."""
    for word in stated:
        if "=" not in word:
            raise ValueError(f"--columns has {word!r}; allowed: WHAT=COLUMN, such as steps=frames")
    pairs = [(what, column) for what, _, column in (word.partition("=") for word in stated)]
    if twice := [what for what, times in Counter(what for what, _ in pairs).items() if times > 1]:
        raise ValueError(f"--columns states {twice[0]} twice; allowed: once")
    return dict(pairs)


def specs(folder: Path) -> list[dict[str, Any]]:
    """The specs of the foreign records under results/runs/<name>. Raises ValueError for a record of another kind."""
    found = [_read_spec(path) for path in _spec_paths(folder)]
    if not found:
        raise ValueError(f"{folder}: no records; allowed: a name that `cleanba ingest` was given")
    return sorted(found, key=lambda spec: (spec["algorithm"], spec["env_id"], spec["seed"]))


def curves(folder: Path) -> pd.DataFrame:
    """The curves of the foreign records under results/runs/<name>, one row a logged point.

    Returns experiment, algorithm, env_id, seed, env_steps, frames, episode_return (NaN: no episode ended),
    num_episodes, wall_seconds (NaN: unknown), ordered by run and env_steps.
    """
    parts = []
    for spec in specs(folder):
        curve = pd.read_parquet(folder / spec["run_id"] / "curve.parquet")
        parts.append(curve.assign(**{key: spec[key] for key in KEYS})[[*KEYS, *CURVE]])
    return pd.concat(parts, ignore_index=True)


def _records(runs: Sequence[ForeignRun], source: str, path: Path, name: str, declared: Declared) -> list[Record]:
    """Seeds that are unknown are numbered per algorithm and game in the order in which the runs were found."""
    if not runs:
        raise ValueError(f"{path}: has no runs; allowed: at least one row")
    digests = {file: _digest(file) for file in {file for run in runs for file in run.files}}
    numbered: Counter = Counter()
    records: dict[str, Record] = {}
    for run in runs:
        seed = run.seed
        if seed is None:
            seed = numbered[run.algorithm, run.env_id]
            numbered[run.algorithm, run.env_id] += 1
        record = _record(run, seed, source, name, declared, digests)
        if record.spec["run_id"] in records:
            where = f"{run.files[0]}: {run.algorithm} on {run.env_id}, seed {seed}"
            raise ValueError(f"{where} stands twice; allowed: one run per algorithm, game and seed")
        records[record.spec["run_id"]] = record
    return list(records.values())


def _record(
    run: ForeignRun, seed: int, source: str, name: str, declared: Declared, digests: Mapping[Path, str]
) -> Record:
    curve, atari = _our_units(run), game(run.env_id)
    known = {
        "protocol": declared.protocol,
        "seed": run.seed,
        "producer": declared.producer or run.producer.get("name"),
        **{column: None if bool(curve[column].isna().all()) else True for column in ("num_episodes", "wall_seconds")},
    }
    identity = {"algorithm": run.algorithm, "env_id": atari or run.env_id, "seed": seed}
    spec = {
        "schema": SCHEMA,
        "kind": KIND,
        "run_id": hashlib.sha256(json.dumps([source, identity], sort_keys=True).encode()).hexdigest()[:12],
        "experiment": name,
        **identity,
        "env_id_as_logged": run.env_id,
        "parser": source,
        "unit": run.unit,
        "protocol": declared.protocol,
        "producer": {**run.producer, **({"name": declared.producer} if declared.producer else {})},
        "columns": dict(declared.columns),
        "unknown": [key for key, value in known.items() if value is None],
        "files": [str(file) for file in run.files],
        "digests": [digests[file] for file in run.files],  # SHA-256
        "rows": len(curve),
        "reached_env_steps": float(curve["env_steps"].max()),
        "notes": list(run.notes),
        "ingested_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return Record(spec=spec, curve=curve)


def _our_units(run: ForeignRun) -> pd.DataFrame:
    """The curve in env steps and frames. Outside Atari frames are unknown: the column is missing (NaN)."""
    if not len(run.curve):
        raise ValueError(f"{run.files[0]}: {run.env_id} has no rows; allowed: at least one")
    atari = game(run.env_id) is not None
    if run.unit == "frames" and not atari:
        raise ValueError(
            f"{run.files[0]}: {run.env_id} is no Atari game, so its frames per env step are unknown; allowed: "
            "--unit env_steps"
        )
    env_steps = run.curve["steps"] / (FRAMES_PER_ENV_STEP if run.unit == "frames" else 1)
    frames = env_steps * FRAMES_PER_ENV_STEP if atari else np.nan
    return run.curve.assign(env_steps=env_steps, frames=frames).loc[:, CURVE].astype(float)


def _check_same_source(folder: Path, spec: Mapping[str, Any]) -> None:
    """A name is new, or holds records of the same parser, unit and protocol."""
    for found in map(_read_spec, _spec_paths(folder)):
        for key in SAME_SOURCE:
            if found[key] != spec[key]:
                there = f"its records have {key} {found[key]}, not {spec[key]}"
                raise ValueError(f"{folder}: {there}; allowed: the same, or another --as")


def _spec_paths(folder: Path) -> list[Path]:
    """Sorted; without what an interrupted ingest left behind."""
    return sorted(path for path in folder.glob("*/spec.json") if not path.parent.name.startswith("."))


def _is_there(folder: Path, spec: Mapping[str, Any]) -> bool:
    path = folder / spec["run_id"] / "spec.json"
    if not path.is_file():
        return False
    found = _read_spec(path)
    for key in CONTENT:
        if found[key] != spec[key]:
            run = f"{spec['algorithm']} on {spec['env_id']}, seed {spec['seed']}"
            there, here = (", ".join(value) if key == "digests" else value for value in (found[key], spec[key]))
            raise ValueError(
                f"{path}: holds {run} with {key} {there}; {spec['files'][0]} has {here}; "
                "allowed: the same content, another --as, or another --seed"
            )
    return True


def _read_spec(path: Path) -> dict[str, Any]:
    try:
        spec = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read as JSON ({error}); allowed: a foreign record") from None
    if spec.get("kind") != KIND or spec.get("schema") != SCHEMA:
        found = f"kind {spec.get('kind', 'of our own')}, schema {spec.get('schema')}"
        raise ValueError(f"{path}: is a record of {found}; allowed: kind {KIND}, schema {SCHEMA}")
    return spec


def _write(folder: Path, record: Record) -> None:
    """The record appears whole or not at all."""
    final = folder / record.spec["run_id"]
    temporary = folder / f".{record.spec['run_id']}.{os.getpid()}"
    temporary.mkdir(parents=True)
    try:
        record.curve.to_parquet(temporary / "curve.parquet", index=False)
        (temporary / "spec.json").write_text(json.dumps(record.spec, indent=1) + "\n")
        os.replace(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _summary(folder: Path, records: Sequence[Record], num_new: int) -> list[str]:
    spec = records[0].spec
    games, rows = {record.spec["env_id"] for record in records}, sum(record.spec["rows"] for record in records)
    unknown = sorted({key for record in records for key in record.spec["unknown"]})
    lines = [
        f"{folder}: {num_new} runs of {len(games)} games written, {rows:,} rows read",
        f"unit {spec['unit']}; protocol {spec['protocol'] or 'unknown'}; unknown: {', '.join(unknown) or 'nothing'}",
    ]
    if skipped := len(records) - num_new:
        lines.insert(1, f"{skipped} runs have a record of the same content already: skipped")
    return lines


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
