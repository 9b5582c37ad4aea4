"""All numbers of a report as tidy frames: scores, curves, throughput, divergence, machines, what is missing.

`report` turns them into tables, figures and a page; nothing is written here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import curves, divergence, records
from analysis.scores import DEFAULT, ScoreTable, resolve
from runners.spec import Experiment, load_experiment

_LAG = re.compile(r"stats/policy_lag_(\d+)")


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What an experiment's file states and its records do not; `path` and `file` are None where there is no file."""

    name: str
    path: Path | None = None
    file: Experiment | None = None

    @property
    def margin(self) -> float | None:
        """Within which two learning curves count as equivalent, in HNS (see runners.spec)."""
        return self.file.margin if self.file else None

    @cached_property
    def cells(self) -> pd.DataFrame | None:
        """records.CELL of every declared run, in the order of the file."""
        if self.file is None:
            return None
        rows = [(run.experiment, run.algorithm, run.env_id, run.profile.name, run.seed) for run in self.file.cells]
        return pd.MultiIndex.from_tuples(rows, names=records.CELL).to_frame(index=False)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Games, algorithms and profiles are in the order in which the experiment declares them.

    runs: those of `records` with episodes, final_score, final_episodes, hns, env_steps_per_second, frames_per_env_step.
    curves: KEYS, env_steps (right edge of the bin), episodes, episode_return, hns; one row per run and bin.
    pairs: one row per algorithm, game and pair of profiles, see `compare_profiles`.
    delays: one row per profile, game and pair of algorithms that differ in their delays alone, see `compare_delays`.
    seedings: one row per profile, game and pair of algorithms that differ in `seeding` alone, see `compare_seedings`.
    lags: SYSTEM, policy_lag (updates), env_steps and their share, of the runs under `async`.
    machines: what each start of a run measured, one column per fact.
    left_out, missing: runs that do not count, cells without a record. mixed: differences that were asked for.
    """

    experiments: list[Declared]
    table: ScoreTable
    runs: pd.DataFrame
    curves: pd.DataFrame
    pairs: pd.DataFrame
    delays: pd.DataFrame
    seedings: pd.DataFrame
    lags: pd.DataFrame
    machines: pd.DataFrame
    left_out: pd.DataFrame
    missing: pd.DataFrame
    mixed: list[str]


def summarise(results: Path, experiments: Sequence[str], *, table: str = DEFAULT, allow_mixed: bool = False) -> Summary:
    """Everything about the complete runs of `experiments`, each a name or the path of an experiment file.

    `table` is a score table's name, or the path of a CSV file of one's own.

    Raises ValueError for an unknown table, where the runs of a game differ in protocol or budget, unless `allow_mixed`,
    and as `load` does.
    """
    scores = resolve(table)
    declared = [find_declared(experiment) for experiment in experiments]
    found = load(results, declared)
    mixed = records.differences(found.runs)
    if mixed and not allow_mixed:
        raise ValueError(f"{mixed[0]}; allowed: one protocol and one budget per game, or ask for mixed runs")
    runs = _declared_order(found.runs, declared)
    runs, run_curves = _read_runs(runs, scores)
    margins = {experiment.name: experiment.margin for experiment in declared}
    return Summary(
        experiments=declared,
        table=scores,
        runs=runs,
        curves=run_curves,
        pairs=compare_profiles(runs, run_curves, margins),
        delays=compare_delays(runs, run_curves, margins),
        seedings=compare_seedings(runs),
        lags=policy_lags(runs),
        machines=_machines(runs),
        left_out=found.left_out,
        missing=_missing(found, declared),
        mixed=mixed,
    )


def find_declared(experiment: str) -> Declared:
    """From the file that `experiment` is the path of, or else from experiments/<name>.yaml where there is one.

    Raises ValueError for a file that declares no experiment.
    """
    is_path = experiment.endswith((".yaml", ".yml"))
    path = Path(experiment) if is_path else Path("experiments") / f"{experiment}.yaml"
    if not is_path and not path.exists():
        return Declared(name=experiment)
    file = load_experiment(path)
    return Declared(name=file.name, path=path, file=file)


def load(results: Path, declared: Sequence[Declared]) -> records.Records:
    """The runs that count, of those that the experiments' files declare. Raises ValueError as records.load does, and
    where there is none."""
    names = [experiment.name for experiment in declared]
    files = {experiment.path: experiment.file for experiment in declared if experiment.path and experiment.file}
    found = records.load(results, names, files=files)
    if found.runs.empty:
        states = ", ".join(found.left_out["state"].value_counts().index)
        reasons = found.left_out.loc[found.left_out["state"] == records.UNDECLARED, "reason"].unique()
        said = "; ".join([f"they are {states}", *reasons])
        raise ValueError(
            f"{results}/runs: no run of {', '.join(names)} is complete ({said}); `cleanba status` says why"
        )
    return found


def frames_per_env_step(runs: pd.DataFrame, env_id: str) -> int:
    """Emulator frames of an env step of a game, which all its runs share."""
    return int(runs.loc[runs["env_id"] == env_id, "frames_per_env_step"].max())


def compare_profiles(runs: pd.DataFrame, run_curves: pd.DataFrame, margins: Mapping[str, float | None]) -> pd.DataFrame:
    """Profile B against profile A of the same algorithm and game, for every pair of profiles; `margins` by experiment.

    Columns: algorithm, env_id, profile_a, profile_b, unit (HNS, or return where a game has none), margin (in that
    unit), seeds_a, seeds_b; those of divergence.Divergence and Verdict; floor_median, floor_largest, floor_splits,
    floor_seeds_per_side; identical (None: cannot tell), run_pairs, identical_run_pairs, updates_compared (fewest of a
    pair), first_update, first_stage.
    """
    by_cell = dict(records.groups(run_curves, ["algorithm", "env_id", "profile"]))
    rows = []
    for (algorithm, env_id), part in records.groups(runs, ["algorithm", "env_id"]):
        prints = fingerprints(part)
        by_unit = _by_unit(_margin(part, margins), run_curves)
        for a, b in combinations(part["profile"].unique(), 2):
            row = {"algorithm": algorithm, "env_id": env_id, "profile_a": a, "profile_b": b}
            found = by_cell[algorithm, env_id, a], by_cell[algorithm, env_id, b]
            rows.append(row | _comparison(*found, prints[a], prints[b], by_unit))
    return pd.DataFrame(rows)


def compare_delays(runs: pd.DataFrame, run_curves: pd.DataFrame, margins: Mapping[str, float | None]) -> pd.DataFrame:
    """Algorithm B against A on the same profile and game, where they differ in their delays alone.

    Columns: profile, env_id, algorithm_a, algorithm_b, delays (what differs, as a text) and those of
    `compare_profiles` from `unit` on.
    """
    by_cell = dict(records.groups(run_curves, ["algorithm", "env_id", "profile"]))
    rows = []
    for (profile, env_id), part in records.groups(runs, ["profile", "env_id"]):
        prints = fingerprints(part, by="algorithm")
        for a, b, differing in _variants(part, records.TIMING):
            row = {"profile": profile, "env_id": env_id, "algorithm_a": a, "algorithm_b": b}
            row["delays"] = ", ".join(f"{name} {x} and {y}" for name, (x, y) in differing.items())
            found = by_cell[a, env_id, profile], by_cell[b, env_id, profile]
            by_unit = _by_unit(_margin(part.loc[part["algorithm"].isin([a, b])], margins), run_curves)
            rows.append(row | _comparison(*found, prints[a], prints[b], by_unit))
    return pd.DataFrame(rows)


def compare_seedings(runs: pd.DataFrame) -> pd.DataFrame:
    """Of two algorithms that differ in `seeding` alone, the variance of the final scores over seeds, B's over A's.

    Columns: profile, env_id, algorithm_a, algorithm_b, seeding_a, seeding_b, seeds_a, seeds_b, and those of
    divergence.VarianceRatio.
    """
    rows = []
    for (profile, env_id), part in records.groups(runs, ["profile", "env_id"]):
        for a, b, differing in _variants(part, ("seeding",)):
            scores = [part.loc[part["algorithm"] == name, "final_score"].dropna().to_numpy() for name in (a, b)]
            row = {"profile": profile, "env_id": env_id, "algorithm_a": a, "algorithm_b": b}
            row |= dict(zip(("seeding_a", "seeding_b"), differing["seeding"])) | {
                "seeds_a": len(scores[0]),
                "seeds_b": len(scores[1]),
            }
            rows.append(row | asdict(divergence.variance_ratio(*scores)))
    return pd.DataFrame(rows)


def policy_lags(runs: pd.DataFrame) -> pd.DataFrame:
    """How many updates behind the learner the env steps of the runs under `async` were made."""
    runs = runs.loc[runs["schedule"] == "async"]
    counts = []
    for metrics, run in zip(records.map_runs(runs, _lag_counts), runs.to_dict("records"), strict=True):
        counts.extend({key: run[key] for key in records.SYSTEM} | row for row in metrics)
    if not counts:
        return pd.DataFrame({name: [] for name in (*records.SYSTEM, "policy_lag", "env_steps", "share")})
    summed = pd.DataFrame(counts).groupby([*records.SYSTEM, "policy_lag"], sort=True, as_index=False)["env_steps"].sum()
    totals = summed.groupby(records.SYSTEM)["env_steps"].transform("sum")
    return summed.assign(share=summed["env_steps"] / totals)


def _lag_counts(run: records.Run) -> list[dict]:
    metrics = records.read_rows(run["folder"], "metrics")
    found = {name: _LAG.fullmatch(str(name)) for name in metrics}
    return [
        {"policy_lag": int(match[1]), "env_steps": int(metrics[name].sum())} for name, match in found.items() if match
    ]


def _variants(runs: pd.DataFrame, names: Sequence[str]) -> Iterator[tuple[str, str, dict[str, tuple]]]:
    """(A, B, what differs) of the pairs of algorithms that differ in settings among `names` and in nothing else."""
    settings = {run["algorithm"]: run["settings"] | {"algo": run["algo"]} for run in runs.to_dict("records")}
    for a, b in combinations(settings, 2):
        all_names = [*settings[a], *(name for name in settings[b] if name not in settings[a])]
        values = {name: (settings[a].get(name), settings[b].get(name)) for name in all_names}
        differing = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
        if differing and set(differing) <= set(names):
            yield a, b, differing


def _comparison(
    curves_a: pd.DataFrame,
    curves_b: pd.DataFrame,
    prints_a: Mapping[int, pd.DataFrame],
    prints_b: Mapping[int, pd.DataFrame],
    margins: Mapping[str, float | None],
) -> dict:
    row = _curve_divergence(curves_a, curves_b, margins) | agreement(prints_a, prints_b)
    return row | _word_of_identical(row)


def _word_of_identical(row: dict) -> dict:
    """Equal bits overrule the statistics of the curves, unless the curves say that something else is wrong."""
    if not row["identical"]:
        return {}
    return {"word": "cannot tell (fingerprints equal, episodes differ)" if row["area"] > 0 else "identical"}


def _read_runs(runs: pd.DataFrame, table: ScoreTable) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(runs with their results, curves of all runs, each on its game's grid), in one pass over the files."""
    # One per game, but where mixed budgets were asked for.
    budgets = {str(env_id): int(part["total_env_steps"].max()) for env_id, part in runs.groupby("env_id")}
    read = records.map_runs(runs, lambda run: _read_run(run, budgets[run["env_id"]]))
    runs = pd.concat([runs, pd.DataFrame([result for result, _ in read], index=runs.index)], axis=1)
    # One read per algorithm: its settings, so its protocol too, are those of all its runs.
    first = runs.drop_duplicates("algorithm")
    frames = dict(zip(first["algorithm"], records.map_runs(first, records.frames_per_env_step), strict=True))
    runs["frames_per_env_step"] = [frames[algorithm] for algorithm in runs["algorithm"]]
    num_bins = {
        str(env_id): curves.choose_num_bins(int(part["episodes"].min())) for env_id, part in runs.groupby("env_id")
    }
    parts = [
        curves.run_curve(binned, budgets[run["env_id"]], num_bins[run["env_id"]]).assign(
            **{key: run[key] for key in records.KEYS}
        )
        for run, (_, binned) in zip(runs.to_dict("records"), read, strict=True)
    ]
    runs["hns"] = curves.hns(runs, "final_score", table)
    run_curves = pd.concat(parts, ignore_index=True)
    run_curves["hns"] = curves.hns(run_curves, "episode_return", table)
    return runs, run_curves


def _read_run(run: records.Run, budget: int) -> tuple[dict, np.ndarray]:
    episodes = records.episodes(run)
    score, final_episodes = records.final_score(episodes, run["planned_env_steps"])
    result = {
        "episodes": len(episodes),
        "final_score": score,
        "final_episodes": final_episodes,
        "env_steps_per_second": records.throughput(run),
    }
    binned = curves.bin_episodes(episodes["env_steps"].to_numpy(), episodes["episode_return"].to_numpy(), budget)
    return result, binned


def fingerprints(runs: pd.DataFrame, *, by: str = "profile") -> dict[str, dict[int, pd.DataFrame]]:
    """Of the runs on one game, by profile or algorithm, and seed. A run that was resumed inexactly shows none."""
    columns = ["update", "stage", "shard", "digest"]
    prints = records.map_runs(runs, lambda run: records.read_rows(run["folder"], "fingerprints", columns))
    found: dict[str, dict[int, pd.DataFrame]] = {}
    for name, seed, inexact, rows in zip(runs[by], runs["seed"], runs["inexact_resume"], prints, strict=True):
        found.setdefault(name, {})[seed] = rows.iloc[:0] if inexact else rows
    return found


def agreement(a: Mapping[int, pd.DataFrame], b: Mapping[int, pd.DataFrame]) -> dict:
    """Fingerprints of two run sets, seed by seed; `identical` of all seeds, None where some cannot be compared."""
    pairs = [divergence.compare_fingerprints(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())]
    identical = [pair for pair in pairs if pair.identical]
    differ = sorted((pair.update, pair.stage) for pair in pairs if pair.update is not None)
    all_compared = a.keys() == b.keys() and all(pair.updates_compared for pair in pairs)
    return {
        "identical": False if differ else True if all_compared else None,
        "run_pairs": len(pairs),
        "identical_run_pairs": len(identical),
        "updates_compared": min((pair.updates_compared for pair in pairs), default=0),
        "first_update": differ[0][0] if differ else None,
        "first_stage": differ[0][1] if differ else None,
    }


def _curve_divergence(a: pd.DataFrame, b: pd.DataFrame, margins: Mapping[str, float | None]) -> dict:
    has_hns = bool(a["hns"].count() or b["hns"].count())
    value, unit = ("hns", "HNS") if has_hns else ("episode_return", "return")
    env_steps, values_a = curves.matrix(a, value)
    _, values_b = curves.matrix(b, value)
    found = divergence.divergence(values_a, values_b, env_steps)
    floor = divergence.noise_floor([values_a, values_b], env_steps)
    verdict = divergence.verdict(values_a, values_b, found.area, margins[unit])
    sizes = {"unit": unit, "margin": margins[unit], "seeds_a": len(values_a), "seeds_b": len(values_b)}
    return sizes | asdict(found) | {f"floor_{key}": value for key, value in asdict(floor).items()} | asdict(verdict)


def _declared_order(runs: pd.DataFrame, declared: Sequence[Declared]) -> pd.DataFrame:
    """Sorted as the files list algorithms, games and profiles; by name where there is no file."""
    cells = _declared_cells(declared)
    ranks = {key: {value: rank for rank, value in enumerate(cells[key].unique())} for key in records.CELL[:4]}

    def rank(column: pd.Series) -> pd.Series:
        known = ranks.get(str(column.name), {})
        return column.map(lambda value: (known.get(value, len(known)), value))

    return runs.sort_values(["experiment", "algorithm", "env_id", "profile", "seed"], key=rank, ignore_index=True)


def _declared_cells(declared: Sequence[Declared]) -> pd.DataFrame:
    frames = [experiment.cells for experiment in declared if experiment.cells is not None]
    cells = (
        pd.concat(frames, ignore_index=True)
        if frames
        else pd.DataFrame({key: [] for key in records.CELL}, dtype=object)
    )
    return records.label_algorithms(cells) if len(declared) > 1 else cells


def _missing(found: records.Records, declared: Sequence[Declared]) -> pd.DataFrame:
    """Cells without a record: of the declared ones, and of those that an experiment without a file seems to vary."""
    left_out = found.left_out.loc[found.left_out["state"] != records.UNDECLARED]
    recorded = pd.concat([found.runs, left_out], ignore_index=True).loc[:, records.CELL]
    without_file = [experiment.name for experiment in declared if experiment.cells is None]
    implied = records.product_of_levels(recorded.loc[[name in without_file for name in recorded["experiment"]]])
    expected = pd.concat([_declared_cells(declared), implied], ignore_index=True)
    known = pd.MultiIndex.from_frame(recorded)
    return expected.loc[~pd.MultiIndex.from_frame(expected).isin(known)].reset_index(drop=True)


def _machines(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per start of a run: KEYS and the measured facts, nested ones under `outer.inner`."""
    starts = [(run, facts) for run in runs.to_dict("records") for facts in records.machines(run)]
    facts = pd.json_normalize([facts for _, facts in starts])
    keys = pd.DataFrame([{key: run[key] for key in records.KEYS} for run, _ in starts])
    return pd.concat([keys, facts], axis=1)


def _by_unit(margin: float | None, run_curves: pd.DataFrame) -> dict[str, float | None]:
    """The margin is in HNS, or in points where no game has any."""
    return {"HNS": margin, "return": margin if run_curves["hns"].isna().to_numpy().all() else None}


def _margin(runs: pd.DataFrame, margins: Mapping[str, float | None]) -> float | None:
    """The margin of the experiments that the runs are of, if they agree on one."""
    found = {margins[name] for name in runs["experiment"].unique()}
    return found.pop() if len(found) == 1 else None
