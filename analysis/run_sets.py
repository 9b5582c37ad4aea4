"""One side of a comparison: the runs of one system in one form, whether they are our own, of others, or an accepted
reference.

A set is named `EXPERIMENT[:ALGORITHM][@PROFILE]`: the records under results/runs/EXPERIMENT, narrowed until they are of
one algorithm on one hardware profile. Records of others have no profile.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import curves, ingest, records, summary
from runners.record import read_spec

BUDGET_TOLERANCE = 0.01  # logs of others end within a row or an update of what was planned, whatever that was
UNKNOWN = "unknown"

Key = tuple[str, int]  # (env_id, seed)


@dataclass(frozen=True, kw_only=True, eq=False)
class RunSet:
    """The runs of one system that count.

    runs          env_id, seed, run_id, budget (env steps), final_score (NaN without one), rows (logged ones that have a
                  return); sorted
    points        of each run: env_steps, return_sum and episodes of what ended there, in the order of env_steps
    fingerprints  of each run that has any: update, stage, shard, digest
    identity      what must be equal for fingerprints to be of the same things; None where there are none
    """

    name: str
    kind: str  # own, foreign or accepted
    algorithm: str
    profile: str
    protocol: str
    unit: str  # of the steps that were logged: env_steps or frames
    runs: pd.DataFrame
    points: Mapping[Key, pd.DataFrame]
    fingerprints: Mapping[Key, pd.DataFrame] = field(default_factory=dict)
    identity: Mapping[str, Any] | None = None
    margin: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def env_ids(self) -> list[str]:
        return sorted(self.runs["env_id"].unique())

    def budget(self, env_id: str) -> int:
        """Env steps of the runs of a game: the most of them."""
        return int(self.of(env_id)["budget"].max())

    def of(self, env_id: str) -> pd.DataFrame:
        return self.runs.loc[self.runs["env_id"] == env_id]

    def seeds(self, env_id: str) -> list[int]:
        return self.of(env_id)["seed"].tolist()

    def fewest_rows(self, env_id: str) -> int:
        """Rows with a return of the run that has the fewest: what decides how fine its curve may be."""
        return int(self.of(env_id)["rows"].min())

    def curves(self, env_id: str, budget: int, num_bins: int) -> pd.DataFrame:
        """seed, env_steps, episodes, episode_return: one row per run and bin of the grid over `budget`."""
        parts = [self._curve(env_id, seed, budget, num_bins).assign(seed=seed) for seed in self.seeds(env_id)]
        return pd.concat(parts, ignore_index=True)

    def final_scores(self, env_id: str, budget: int) -> np.ndarray:
        """Those that there are: the runs' own final scores, or those of the last 10 % of a smaller `budget`."""
        scores = self.of(env_id)["final_score"].to_numpy()
        if budget < (1 - BUDGET_TOLERANCE) * self.budget(env_id):
            scores = np.array([final_score(self.points[env_id, seed], budget) for seed in self.seeds(env_id)])
        return scores[~np.isnan(scores)]

    def _curve(self, env_id: str, seed: int, budget: int, num_bins: int) -> pd.DataFrame:
        points = self.points[env_id, seed]
        columns = (points[name].to_numpy() for name in ("env_steps", "return_sum", "episodes"))
        env_steps, sums, episodes = columns
        return curves.run_curve(curves.bin_episodes(env_steps, sums, budget, episodes), budget, num_bins)


def find(stated: str, results: Path) -> RunSet:
    """The set that `EXPERIMENT[:ALGORITHM][@PROFILE]` names. Raises ValueError that says what it could be."""
    rest, at, profile = stated.rpartition("@") if "@" in stated else (stated, "", "")
    experiment, colon, algorithm = rest.partition(":")
    if not experiment or (at and not profile) or (colon and not algorithm):
        raise ValueError(f"{stated!r} names no run set; allowed: EXPERIMENT[:ALGORITHM][@PROFILE]")
    folder = results / "runs" / experiment
    if next(folder.glob("*/curve.parquet"), None):
        if profile:
            raise ValueError(f"{stated}: curves of others have no profile; allowed: {rest}")
        return _foreign(stated, folder, algorithm)
    return own(results, experiment, algorithm=algorithm, profile=profile, name=stated)


def own(results: Path, experiment: str, *, algorithm: str, profile: str, name: str) -> RunSet:
    """The complete runs of our own of one system; empty `algorithm` or `profile`: there is only one.

    `experiment` is a name or the path of an experiment file, which says which runs are its own.
    """
    declared = summary.find_declared(experiment)
    found = summary.load(results, [declared])
    runs = found.runs
    systems = sorted({(a, p) for a, p in runs[records.SYSTEM].to_numpy()})
    chosen = [s for s in systems if algorithm in ("", s[0]) and profile in ("", s[1])]
    _one(chosen, name, [f"{declared.name}:{a}@{p}" for a, p in (chosen or systems)])
    (algorithm, profile) = chosen[0]
    runs = of_system(runs, algorithm, profile).reset_index(drop=True)
    read = records.map_runs(runs, _read_own)
    keys = [(run["env_id"], run["seed"]) for run in runs.to_dict("records")]
    left_out = of_system(found.left_out, algorithm, profile)
    return RunSet(
        name=name,
        kind="own",
        algorithm=algorithm,
        profile=profile,
        protocol=_only(runs["protocol"], name, "protocol"),
        unit="env_steps",
        runs=runs[["env_id", "seed", "run_id", "folder"]].assign(
            budget=runs["total_env_steps"],
            final_score=[score for score, _, _ in read],
            rows=[len(points) for _, points, _ in read],
        ),
        points={key: points for key, (_, points, _) in zip(keys, read, strict=True)},
        fingerprints={key: prints for key, (_, _, prints) in zip(keys, read, strict=True) if len(prints)},
        identity=fingerprint_identity(read_spec(runs["folder"].iloc[0]).to_json()),
        margin=declared.margin,
        notes=tuple(
            f"{name}: {run['env_id']} seed {run['seed']} is {run['state']} and does not count ({run['reason']})"
            for run in left_out.to_dict("records")
        ),
    )


def fingerprint_identity(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Algorithm and shapes of a stored spec: with others, no two digests are of the same thing."""
    from analysis.diverge import SHAPES

    return {"algo": spec["algo"], **{name: spec["settings"][name] for name in SHAPES}}


def choose_games(a: RunSet, b: RunSet, games: Sequence[str]) -> list[str]:
    """The games to compare: those named, a named subset, `shared`, or by default those that both must have.

    Raises ValueError for a game that one of them lacks, and for one that stands twice.
    """
    from analysis.scores import SUBSETS, check_once

    both = sorted(set(a.env_ids) & set(b.env_ids))
    if not both:
        raise ValueError(f"{a.name} and {b.name} have no game in common; found {a.env_ids[0]} and {b.env_ids[0]}")
    if list(games) == ["shared"]:
        return both
    check_once(games, where="--games")
    wanted = list(SUBSETS[games[0]]) if len(games) == 1 and games[0] in SUBSETS else list(games)
    for one in (a, b):
        expected = wanted or sorted({*a.env_ids, *b.env_ids})
        if lacking := [env_id for env_id in expected if env_id not in one.env_ids]:
            raise ValueError(
                f"{one.name} has no {', '.join(lacking)}; allowed: --games shared ({len(both)} games), or games of both"
            )
    return wanted or both


def differences(a: RunSet, b: RunSet, env_ids: Sequence[str]) -> list[str]:
    """Sentences that say what makes the sets incomparable: another or an unknown protocol, another unit or budget."""
    said = []
    if a.protocol != b.protocol or UNKNOWN in (a.protocol, b.protocol):
        said.append(f"protocols differ or are unknown: {a.protocol} in {a.name}, {b.protocol} in {b.name}")
    if a.unit != b.unit:
        said.append(f"units of the logged steps differ: {a.unit} in {a.name}, {b.unit} in {b.name}")
    tolerance = BUDGET_TOLERANCE if "foreign" in (a.kind, b.kind) else 0.0
    for env_id in env_ids:
        budgets = a.budget(env_id), b.budget(env_id)
        if max(budgets) - min(budgets) > tolerance * max(budgets):
            said.append(f"budgets of {env_id} differ: {budgets[0]:,} env steps in {a.name}, {budgets[1]:,} in {b.name}")
    return said


def final_score(points: pd.DataFrame, budget: int) -> float:
    """Mean return of the episodes in the last 10 % of `budget` env steps; NaN without any."""
    last = points.loc[(10 * points["env_steps"] > 9 * budget) & (points["env_steps"] <= budget)]
    return float(last["return_sum"].sum() / last["episodes"].sum()) if len(last) else np.nan


def _read_own(run: records.Run) -> tuple[float, pd.DataFrame, pd.DataFrame]:
    episodes = records.episodes(run)
    score, _ = records.final_score(episodes, run["planned_env_steps"])
    points = episodes.rename(columns={"episode_return": "return_sum"}).assign(episodes=1.0)
    prints = records.read_rows(run["folder"], "fingerprints", ["update", "stage", "shard", "digest"])
    return score, points, prints.iloc[:0] if run["inexact_resume"] else prints


def _foreign(stated: str, folder: Path, algorithm: str) -> RunSet:
    """A set of ingested curves. A mean over an unknown number of episodes counts as one episode, and that is said."""
    specs, rows = ingest.specs(folder), ingest.curves(folder)
    algorithms = sorted({spec["algorithm"] for spec in specs})
    chosen = [name for name in algorithms if algorithm in ("", name)]
    _one(chosen, stated, [f"{folder.name}:{name}" for name in (chosen or algorithms)])
    specs = [spec for spec in specs if spec["algorithm"] == chosen[0]]
    rows = rows.loc[(rows["algorithm"] == chosen[0]) & rows["episode_return"].notna()]
    unweighted = bool(rows["num_episodes"].isna().any())
    episodes = rows["num_episodes"].fillna(1.0)
    rows = rows.assign(episodes=episodes, return_sum=rows["episode_return"] * episodes)
    columns = ["env_steps", "return_sum", "episodes"]
    points = {(str(key[0]), int(key[1])): part[columns] for key, part in rows.groupby(["env_id", "seed"])}
    silent = [spec for spec in specs if (spec["env_id"], spec["seed"]) not in points]
    runs = _foreign_runs([spec for spec in specs if spec not in silent], points)
    weights = f"{stated}: numbers of episodes are unknown: every logged return has the same weight"
    return RunSet(
        name=stated,
        kind="foreign",
        algorithm=chosen[0],
        profile="",
        protocol=_only([spec["protocol"] or UNKNOWN for spec in specs], stated, "protocol"),
        unit=_only([spec["unit"] for spec in specs], stated, "unit"),
        runs=runs,
        points=points,
        notes=(
            *([weights] if unweighted else []),
            *(f"{stated}: {spec['env_id']} seed {spec['seed']} has no return and does not count" for spec in silent),
        ),
    )


def _foreign_runs(specs: Sequence[Mapping], points: Mapping[Key, pd.DataFrame]) -> pd.DataFrame:
    """A log does not say what was planned: the budget of a game is how far its longest run went."""
    frame = pd.DataFrame([{key: spec[key] for key in ("env_id", "seed", "run_id")} for spec in specs])
    reached = pd.Series([spec["reached_env_steps"] for spec in specs]).groupby(frame["env_id"]).transform("max")
    rows = [len(points[run["env_id"], run["seed"]]) for run in frame.to_dict("records")]
    frame = frame.assign(budget=np.ceil(reached).astype(int), rows=rows)
    scores = [final_score(points[run["env_id"], run["seed"]], run["budget"]) for run in frame.to_dict("records")]
    return frame.assign(final_score=scores).sort_values(["env_id", "seed"], ignore_index=True)


def of_system(frame: pd.DataFrame, algorithm: str, profile: str) -> pd.DataFrame:
    return frame.loc[(frame["algorithm"] == algorithm) & (frame["profile"] == profile)]


def _one(chosen: Sequence, stated: str, allowed: Sequence[str]) -> None:
    if len(chosen) != 1:
        found = f"holds {len(chosen)} systems" if chosen else "names no system there is"
        raise ValueError(f"{stated}: {found}; allowed: one of {', '.join(allowed)}")


def _only(values: Iterable[str], name: str, what: str) -> str:
    found = sorted(set(values))
    if len(found) > 1:
        raise ValueError(f"{name}: runs of {what} {', '.join(found)}; allowed: one")
    return found[0]
