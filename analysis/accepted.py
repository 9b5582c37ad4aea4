"""`cleanba accept`: the reference of an experiment, what later runs of it are judged against.

baselines/accepted/<experiment>/ holds `reference.json` (why it was accepted, each time; margin, specs, machines),
`runs.csv` (scores and speed), `curves.parquet` (sums of returns and numbers of episodes on the finest grid) and
`fingerprints.parquet`. Nothing in it depends on the records being kept.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import curves, records, run_sets, summary
from analysis.run_sets import RunSet
from runners.record import now, read_spec
from runners.spec import SCHEMA

FOLDER = Path("baselines") / "accepted"
CELL = ["algorithm", "env_id", "profile", "seed"]  # what matches a run with its reference; never the run_id alone
PRINTS = ["update", "stage", "shard", "digest"]
# The facts that make two machines one kind, of whose speeds a ratio means something.
MACHINE_KIND = ("cpu_model", "usable_cpus", "devices", "cpus_shared")

System = tuple[str, str]  # (algorithm, profile)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """`runs`: CELL, run_id, budget, final_score, rows, env_steps_per_second, machine (index into `machines`)."""

    experiment: str
    history: list[dict[str, Any]]  # why, accepted_at, commits (`commit` in older ones); the last is in force
    margin: float | None
    specs: dict[tuple, dict[str, Any]]  # CELL -> stored spec
    machines: list[dict[str, Any]]
    runs: pd.DataFrame
    sets: dict[System, RunSet]


def accept(experiment: str, why: str, results: Path, folder: Path = FOLDER, *, replace: bool = False) -> Path:
    """Store the complete runs of an experiment as its reference; returns the reference's folder.

    Raises ValueError without a reason, where a declared run is not complete, and where there is a reference already,
    unless `replace`: it then takes the old one's place and keeps its reasons.
    """
    if not why.strip():
        raise ValueError("--why is empty; allowed: a sentence that says why these runs are the reference")
    declared = summary.find_declared(experiment)
    final, history = folder / declared.name, []
    if (final / "reference.json").exists():
        if not replace:
            raise ValueError(f"{final}: there is a reference already; allowed: --replace, which keeps its reasons")
        history = _read(final / "reference.json")["history"]
    sets = own_sets(results, experiment)
    runs = pd.concat([_run_rows(one) for one in sets.values()], ignore_index=True)
    _refuse_missing(declared, runs)
    machines: list[dict[str, Any]] = []
    starts = [records.machines({"folder": path}) for path in runs["folder"]]
    indices = [_index_of(machines, first) for first, *_ in starts]
    commits = sorted({commit(facts) for of_run in starts for facts in of_run})
    folders = {tuple(run[key] for key in CELL): run["folder"] for run in runs.to_dict("records")}
    content = {
        "schema": SCHEMA,
        "experiment": declared.name,
        "history": [*history, {"why": why, "accepted_at": now(), "commits": commits}],
        "margin": declared.margin,
        "machines": machines,
        "specs": [read_spec(path).to_json() for path in folders.values()],
    }
    temporary = folder / f".{declared.name}.{os.getpid()}"
    temporary.mkdir(parents=True)
    try:
        (temporary / "reference.json").write_text(json.dumps(content, indent=1) + "\n")
        runs.assign(machine=indices).drop(columns="folder").to_csv(temporary / "runs.csv", index=False)
        for name, rows in (("curves", _curve_rows), ("fingerprints", _print_rows)):
            frame = pd.concat([rows(one) for one in sets.values()], ignore_index=True)
            frame.to_parquet(temporary / f"{name}.parquet", index=False, compression="zstd")
        _swap(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def own_sets(results: Path, experiment: str) -> dict[System, RunSet]:
    """The complete runs of our own by system. Raises ValueError where there is none."""
    declared = summary.find_declared(experiment)
    runs = summary.load(results, [declared]).runs
    return {
        (a, p): run_sets.own(results, experiment, algorithm=a, profile=p, name=f"{declared.name}:{a}@{p}")
        for a, p in runs[records.SYSTEM].drop_duplicates().to_numpy()
    }


def load(experiment: str, folder: Path = FOLDER) -> Reference:
    """Raises ValueError where there is no reference, or one of another schema."""
    path = folder / experiment
    if not (path / "reference.json").exists():
        known = sorted(found.parent.name for found in folder.glob("*/reference.json"))
        raise ValueError(
            f"{path}: no reference of {experiment}; allowed: {', '.join(known) or 'none yet'}, or accept one"
        )
    content = _read(path / "reference.json")
    if content["schema"] != SCHEMA:
        raise ValueError(f"{path / 'reference.json'}: schema is {content['schema']!r}; allowed: {SCHEMA}")
    text = dict.fromkeys((*CELL[:3], "run_id"), str)  # a label or an id may look like a number
    runs = pd.read_csv(path / "runs.csv", dtype=text, float_precision="round_trip")  # type: ignore[call-overload]
    bins, prints = (pd.read_parquet(path / f"{name}.parquet") for name in ("curves", "fingerprints"))
    specs = {
        (spec["algorithm"], spec["env_id"], spec["profile"]["name"], spec["seed"]): spec for spec in content["specs"]
    }
    systems = [(a, p) for a, p in runs[records.SYSTEM].drop_duplicates().to_numpy()]
    of = {system: [run_sets.of_system(frame, *system) for frame in (runs, bins, prints)] for system in systems}
    return Reference(
        experiment=experiment,
        history=content["history"],
        margin=content["margin"],
        specs=specs,
        machines=content["machines"],
        runs=runs,
        sets={system: _set(experiment, system, content["margin"], specs, *frames) for system, frames in of.items()},
    )


def commit(facts: Mapping[str, Any]) -> str:
    """The source that a start of a run was of, with `-dirty` where files differed from the commit."""
    git = facts.get("git") or {}
    return f"{git.get('commit') or 'unknown'}{'-dirty' if git.get('dirty') else ''}"


def machine_kind(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts.get(name) for name in MACHINE_KIND}


def _set(
    experiment: str, system: System, margin: float | None, specs: Mapping[tuple, Mapping], runs: pd.DataFrame,
    bins: pd.DataFrame, prints: pd.DataFrame,
) -> RunSet:  # fmt: skip
    spec = next(spec for cell, spec in specs.items() if (cell[0], cell[2]) == system)
    columns, keys = ["env_steps", "return_sum", "episodes"], ["env_id", "seed"]
    points = dict.fromkeys(map(tuple, runs[keys].to_numpy()), bins[columns].iloc[:0])
    return RunSet(
        name=f"accepted {experiment}:{system[0]}@{system[1]}",
        kind="accepted",
        algorithm=system[0],
        profile=system[1],
        protocol=spec["settings"]["protocol"],
        unit="env_steps",
        runs=runs.sort_values(keys, ignore_index=True),
        points=points | {key: rows.reindex(columns=columns) for key, rows in records.groups(bins, keys)},
        fingerprints={key: rows.reindex(columns=PRINTS) for key, rows in records.groups(prints, keys)},
        identity=run_sets.fingerprint_identity(spec),
        margin=margin,
    )  # fmt: skip


def _run_rows(one: RunSet) -> pd.DataFrame:
    speeds = [records.throughput(run) for run in one.runs.to_dict("records")]
    named = one.runs.assign(algorithm=one.algorithm, profile=one.profile, env_steps_per_second=speeds)
    columns = [*CELL, "run_id", "budget", "final_score", "rows", "env_steps_per_second", "folder"]
    return named.loc[:, columns]


def _curve_rows(one: RunSet) -> pd.DataFrame:
    """Bins with episodes, at their right edge in whole env steps, which is inside the bin."""
    parts = []
    for run in one.runs.to_dict("records"):
        points = one.points[run["env_id"], run["seed"]]
        env_steps, returns, episodes = (points[name].to_numpy() for name in ("env_steps", "return_sum", "episodes"))
        sums, counts = curves.bin_episodes(env_steps, returns, run["budget"], episodes)
        edges = (np.arange(1, len(counts) + 1) * run["budget"]) // len(counts)
        frame = pd.DataFrame({"env_steps": edges, "return_sum": sums, "episodes": counts}).loc[counts > 0]
        parts.append(frame.assign(algorithm=one.algorithm, env_id=run["env_id"], profile=one.profile, seed=run["seed"]))
    return pd.concat(parts, ignore_index=True)


def _print_rows(one: RunSet) -> pd.DataFrame:
    parts = [
        rows.assign(algorithm=one.algorithm, env_id=env_id, profile=one.profile, seed=seed)
        for (env_id, seed), rows in one.fingerprints.items()
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({name: [] for name in (*PRINTS, *CELL)})


def _refuse_missing(declared: summary.Declared, runs: pd.DataFrame) -> None:
    if declared.cells is None:
        return
    there = set(map(tuple, runs[CELL].to_numpy()))
    if lacking := [cell for cell in map(tuple, declared.cells[CELL].to_numpy()) if cell not in there]:
        raise ValueError(f"{declared.path}: {missing(lacking)}; allowed: all runs complete before they are accepted")


def missing(cells: Sequence[tuple]) -> str:
    """CELLs as a sentence: how many, and the first."""
    algorithm, env_id, profile, seed = cells[0]
    first = f"{algorithm} on {env_id}, {profile}, seed {seed}"
    return f"{len(cells)} runs are missing or not complete, the first is {first}"


def _index_of(machines: list[dict[str, Any]], facts: dict[str, Any]) -> int:
    """The facts that say how fast or how exact a machine is, once for all runs that share them."""
    kept = {key: value for key, value in facts.items() if key not in ("schema", "segment", "cpu_ids", "git")}
    if kept not in machines:
        machines.append(kept)
    return machines.index(kept)


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read as JSON ({error}); allowed: what `cleanba accept` wrote") from None


def _swap(temporary: Path, final: Path) -> None:
    """The new reference takes the old one's place; an interruption leaves one of them whole."""
    old = final.with_name(f".{final.name}.old.{os.getpid()}")
    if final.exists():
        os.replace(final, old)
    os.replace(temporary, final)
    shutil.rmtree(old, ignore_errors=True)
