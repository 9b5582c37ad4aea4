"""The frames behind the paper's tables and figures, from per-game means. HNS is a fraction; intervals are over games.

`evidence` is `published.evidence`. A table's systems are (system, hardware) pairs in the order in which it lists them.
"""

import numpy as np
import pandas as pd
from scipy import stats

from analysis import over_games, published
from analysis.claims import hardware_gap, mean_ratio
from analysis.scores import ScoreTable

THRESHOLDS = np.linspace(0.0, 8.0, 81)
REFERENCES = {"monobeast": "Monobeast IMPALA", "moolib": "Moolib IMPALA"}
BASE_HARDWARE = "1 A100, 10 CPU"
IMPALA_VARIANTS = ("impala_shallow", "impala_deep", "impala_deep_multitask")


def labels(evidence: pd.DataFrame, table: str) -> dict[tuple[str, str], str]:
    """Name of each (system, hardware) pair of a table: the system, with its hardware where the table has several."""
    pairs = published.systems(evidence, table)
    several = len({hardware for _, hardware in pairs}) > 1
    return {pair: ", ".join(pair) if several else pair[0] for pair in pairs}


def per_game(evidence: pd.DataFrame, table: str) -> pd.DataFrame:
    """One row per game; per system the mean and std (ddof 0) of the return, its HNS and the minutes of a run."""
    columns = {
        "mean_return": "mean return",
        "std_return": "std return (ddof 0)",
        "hns": "HNS",
        "runtime_minutes": "minutes",
    }
    parts = []
    for pair, name in labels(evidence, table).items():
        rows = published.select(evidence, table, *pair)
        parts.append(pd.DataFrame({f"{name}: {text}": rows[column] for column, text in columns.items()}))
    return pd.concat(parts, axis=1).rename_axis("env_id").reset_index()


def aggregate(evidence: pd.DataFrame, table: str, num_seeds: int) -> pd.DataFrame:
    """One row per system: the four aggregates, the mean's interval over seeds, minutes, speed-ups, and intervals."""
    rows = []
    for system, hardware in published.systems(evidence, table):
        part = published.select(evidence, table, system, hardware)
        low, high = over_games.mean_over_seeds(part["hns"].to_numpy(), part["hns_std"].to_numpy(), num_seeds)
        row = {"system": system, "hardware": hardware, "games": len(part), **aggregates(part["hns"].to_numpy())}
        row |= {"mean_over_seeds_low": low, "mean_over_seeds_high": high, "minutes": part["runtime_minutes"].mean()}
        rows.append(row | speedups(evidence, part))
    return pd.DataFrame(rows)


def aggregates(scores: np.ndarray) -> dict[str, float]:
    """The four aggregates of per-game HNS [G], each with `_low` and `_high` over games."""
    found = {}
    for name, statistic in over_games.AGGREGATES.items():
        low, high = over_games.interval(statistic, scores)
        found |= {name: float(statistic(scores)), f"{name}_low": low, f"{name}_high": high}
    return found


def speedups(evidence: pd.DataFrame, part: pd.DataFrame) -> dict[str, float]:
    """Mean minutes of monobeast and of moolib over those of `part`, on the games of `part`.

    The references are those of the base setting for its hardware and those of the workstation for every other.
    """
    where = "base" if part["hardware"].iloc[0] == BASE_HARDWARE else "workstation"
    found = {}
    for short, reference in REFERENCES.items():
        (hardware,) = (place for name, place in published.systems(evidence, where) if name == reference)
        theirs = published.select(evidence, where, reference, hardware).loc[part.index, "runtime_minutes"].to_numpy()
        ours = part["runtime_minutes"].to_numpy()
        low, high = over_games.interval(mean_ratio, theirs, ours)
        name = f"speedup_{short}"
        found |= {name: float(mean_ratio(theirs, ours)), f"{name}_low": low, f"{name}_high": high}
    return found


def aggregate_points(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """`aggregate` in long form for figures: system (as in `names`), statistic, value, low, high; percent."""
    points = [
        {"system": name, "statistic": key, "value": 100 * row[key]}
        | {end: 100 * row[f"{key}_{end}"] for end in ("low", "high")}
        for key in over_games.AGGREGATES
        for name, row in zip(names, rows.to_dict("records"), strict=True)
    ]
    return pd.DataFrame(points)


def speedup_bars(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """`aggregate` in long form for figures: system, reference, speedup, low, high; times. NaN against itself."""
    parts = []
    for short, reference in REFERENCES.items():
        keys = {"speedup": f"speedup_{short}", "low": f"speedup_{short}_low", "high": f"speedup_{short}_high"}
        part = pd.DataFrame({name: rows[key] for name, key in keys.items()})
        itself = part["speedup"] == 1.0
        parts.append(part.mask(itself).assign(system=names, reference=reference))
    return pd.concat(parts, ignore_index=True)


def profiles(evidence: pd.DataFrame, table: str) -> pd.DataFrame:
    """Share of games whose mean HNS lies above each threshold, per system, with pointwise intervals over games."""
    parts = []
    for pair, name in labels(evidence, table).items():
        scores = published.select(evidence, table, *pair)["hns"].to_numpy()
        above = (scores[None, :] > THRESHOLDS[:, None]).astype(float)  # [thresholds, G]
        # The number of resampled games above a threshold is binomial: the bootstrap's quantiles need no drawing.
        share = above.mean(axis=1)
        low, high = (stats.binom.ppf(q, len(scores), share) / len(scores) for q in (0.025, 0.975))
        columns = {"system": name, "threshold": THRESHOLDS, "fraction": share, "low": low, "high": high}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def improvement(evidence: pd.DataFrame, table: str) -> pd.DataFrame:
    """Share of games in which the mean return of x exceeds that of y (ties half), for every pair, with interval."""
    names = labels(evidence, table)
    pairs = list(names)
    rows = []
    for i, x in enumerate(pairs):
        for y in pairs[i + 1 :]:
            ours, theirs = (published.select(evidence, table, *pair)["mean_return"].to_numpy() for pair in (x, y))
            wins = (ours > theirs) + 0.5 * (ours == theirs)
            low, high = over_games.interval(over_games.mean, wins)
            rows.append({"x": names[x], "y": names[y], "probability": wins.mean(), "low": low, "high": high})
    return pd.DataFrame(rows)


def game_points(evidence: pd.DataFrame, table: str) -> pd.DataFrame:
    """HNS per game and system with one published std (ddof 0) to either side: env_id, system, value, low, high."""
    rows = evidence.loc[evidence["table"] == table]
    names = labels(evidence, table)
    systems = [names[pair] for pair in zip(rows["system"], rows["hardware"], strict=True)]
    spread = {"low": rows["hns"] - rows["hns_std"], "high": rows["hns"] + rows["hns_std"]}
    return rows[["env_id"]].assign(system=systems, value=rows["hns"], **spread)


def hardware_gaps(evidence: pd.DataFrame, table: str, num_seeds: int) -> pd.DataFrame:
    """Per system of a table with two hardware settings: the gap |HNS difference| between them, over games.

    `iqm_gap` with its interval over games, `median_gap`, and `median_gap_in_standard_errors` over the games whose
    published stds (converted from ddof 0) are not both zero; Student's t with 2 (n - 1) degrees of freedom has
    `expected_median` there when hardware has no effect.
    """
    rows = []
    for system in dict.fromkeys(name for name, _ in published.systems(evidence, table)):
        first, second = (hardware for name, hardware in published.systems(evidence, table) if name == system)
        gap = hardware_gap(evidence, table, system, first, second)
        stds = np.stack([published.select(evidence, table, system, where)["hns_std"] for where in (first, second)])
        errors = np.sqrt((stds**2).sum(axis=0) / (num_seeds - 1))  # std0^2 n / (n - 1) / n, summed over both settings
        low, high = over_games.interval(over_games.iqm, gap)
        row = {"system": system, "first": first, "second": second, "games": len(gap)}
        row |= {"iqm_gap": float(over_games.iqm(gap)), "iqm_gap_low": low, "iqm_gap_high": high}
        row |= {"median_gap": float(np.median(gap)), "games_with_errors": int((errors > 0).sum())}
        row["median_gap_in_standard_errors"] = float(np.median(gap[errors > 0] / errors[errors > 0]))
        rows.append(row | {"expected_median": float(stats.t.ppf(0.75, 2 * (num_seeds - 1)))})
    return pd.DataFrame(rows)


def impala(tables: list[ScoreTable], claims: pd.DataFrame) -> pd.DataFrame:
    """IMPALA's three variants under each HNS table: the four aggregates with intervals, beside the published median."""
    published_median = claims.loc[claims["table"] == "impala_c1"].set_index("system")["value"].to_dict()
    return pd.DataFrame([
        {"system": system, "hns_table": table.label, "games": len(scores), **aggregates(scores),
         "published_median": published_median[system] / 100}
        for table in tables
        for system in IMPALA_VARIANTS
        for scores in (published.select(published.evidence(table), "impala_c1", system, "")["hns"].to_numpy(),)
    ])  # fmt: skip
