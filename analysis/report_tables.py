"""The tables of a report: a frame for machines, a rounded one for readers, caption and notes that define both."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import bootstrap, matrix, records
from analysis.summary import Summary
from analysis.tables import MISSING, number, with_interval

Row = Mapping[Hashable, Any]

LONG_ROWS = 24  # a table with a row per game and system is read up to here; beyond, systems become columns
PAIR = ["algorithm", "profile_a", "profile_b"]
DESCRIBED = ("algo", "schedule", "network", "protocol", "layout", "platform")
STATISTICS = {"median": "median HNS", "iqm": "IQM HNS", "mean": "mean HNS", "optimality_gap": "optimality gap"}


@dataclass(frozen=True, kw_only=True)
class Table:
    """`frame` goes into the CSV file, `display` (text) onto the page and into Markdown and LaTeX."""

    name: str
    caption: str
    notes: tuple[str, ...] = ()
    frame: pd.DataFrame
    display: pd.DataFrame


def all_tables(summary: Summary) -> dict[str, Table]:
    """By name, in the order of the page; those that have nothing to show are not there."""
    made = [
        what_ran(summary),
        left_out(summary),
        aggregates(summary),
        final_scores(summary),
        profile_pairs(summary),
        pairs_by_profiles(summary),
        delay_pairs(summary),
        seeding_pairs(summary),
        throughput(summary),
        machine_facts(summary),
        per_run(summary),
    ]
    return {table.name: table for table in made if table is not None and len(table.frame)}


def system_name(algorithm: str, profile: str) -> str:
    return f"{algorithm} on {profile}"


def what_ran(summary: Summary) -> Table:
    """One row per system: what it is and how many of its runs count."""
    rows = []
    for (algorithm, profile), part in records.groups(summary.runs, records.SYSTEM):
        rows.append(
            {
                "algorithm": algorithm,
                "profile": profile,
                **{key: _listed(part[key]) for key in DESCRIBED},
                "runs": len(part),
                "games": part["env_id"].nunique(),
                "seeds": _listed(part["seed"]),
                "env_steps": _listed(part["total_env_steps"].map("{:,}".format)),
                "frames": _listed((part["frames_per_env_step"] * part["total_env_steps"]).map("{:,}".format)),
            }
        )
    frame = pd.DataFrame(rows)
    display = frame.drop(columns="frames").rename(columns={"env_steps": "budget (env steps)"})
    return Table(
        name="systems",
        caption="What ran. A system is an algorithm on a hardware profile.",
        frame=frame,
        notes=(
            f"The budget is per run{frames_words(summary, '; an env step is ')}. Runs: the complete ones, which alone "
            "count.",
        ),
        display=display,
    )


def frames_words(summary: Summary, before: str) -> str:
    """`before` and how many frames an env step is, and under which protocols where others have no frames; or nothing
    where none has."""
    runs = summary.runs.loc[summary.runs["frames_per_env_step"] > 1]
    if runs.empty:
        return ""
    under = "" if len(runs) == len(summary.runs) else f" under {_listed(runs['protocol'])}"
    return f"{before}{_listed(runs['frames_per_env_step'])} frames{under}"


def final_scores(summary: Summary) -> Table:
    """One row per system and game: final score over seeds, raw and HNS."""
    groups = summary.runs.groupby(["env_id", *records.SYSTEM], sort=False, observed=True)
    order = {env_id: rank for rank, env_id in enumerate(summary.runs["env_id"].unique())}
    frame = groups.agg(
        seeds=("final_score", "count"),
        final_score=("final_score", "mean"),
        lowest=("final_score", "min"),
        highest=("final_score", "max"),
        standard_deviation=("final_score", "std"),
        final_episodes=("final_episodes", "sum"),
        hns=("hns", "mean"),
    )
    frame = frame.reset_index().sort_values(
        "env_id", key=lambda games: games.map(order), kind="stable", ignore_index=True
    )
    if len(frame) <= LONG_ROWS:
        display, how = _long(frame), " Brackets: lowest and highest seed."
    else:
        display, how = _wide(frame), " Each cell: mean over seeds (HNS); the spread over seeds is in the CSV file."
    return Table(
        name="final_scores",
        caption=f"Final scores, {_seeds(frame['seeds'])} per system and game.{how}",
        notes=(f"Final score: {records.FINAL_SCORE}. HNS table: {summary.table.label}. Standard deviation: ddof 1.",),
        frame=frame.assign(hns_table=summary.table.label, score_definition=records.FINAL_SCORE),
        display=display,
    )


def aggregates(summary: Summary) -> Table | None:
    """Median, IQM, mean HNS and optimality gap with intervals, over the games that all systems share; None if none."""
    scored = summary.runs.dropna(subset=["hns"])
    by_system = {system_name(*system): part for system, part in records.groups(scored, records.SYSTEM)}
    games = shared_games(scored)
    if len(by_system) < len(list(records.groups(summary.runs, records.SYSTEM))) or not games:
        return None
    matrices = [
        matrix.from_frame(part.loc[part["env_id"].isin(games), ["env_id", "seed", "hns"]], system)
        for system, part in by_system.items()
    ]
    frame = bootstrap.aggregates(matrices).assign(hns_table=summary.table.label)
    frame["text"] = [with_interval(row["estimate"], row["low"], row["high"], 3) for row in frame.to_dict("records")]
    first = frame.iloc[0]
    left_out = sorted(set(summary.runs["env_id"]) - set(games))
    notes = [
        f"Brackets: {first['confidence']:.0%} percentile bootstrap over seeds, stratified by game, "
        f"{first['repetitions']:,} repetitions, as rliable.",
        f"HNS table: {summary.table.label}. Final score: {records.FINAL_SCORE}.",
    ]
    notes += [f"Left out, without HNS or without a score of every system: {', '.join(left_out)}."] if left_out else []
    notes += [f"{note}." for note in frame["note"].unique() if note]
    return Table(
        name="aggregates",
        caption=f"Human-normalised aggregates over {len(games)} game{_s(len(games))}, "
        f"{_seeds(frame[['fewest_seeds', 'most_seeds']].to_numpy().ravel())} each.",
        notes=tuple(notes),
        frame=frame.drop(columns="text"),
        display=_spread(frame.replace({"statistic": STATISTICS}).loc[:, ["system", "statistic", "text"]]),
    )


def shared_games(scored: pd.DataFrame) -> list[str]:
    """The games on which every system has a score."""
    games = [set(part["env_id"]) for _, part in records.groups(scored, records.SYSTEM)]
    return sorted(set.intersection(*games)) if games else []


def throughput(summary: Summary) -> Table:
    """Env steps per second of each system, over all its runs."""
    groups = summary.runs.groupby(records.SYSTEM, sort=False, observed=True)["env_steps_per_second"]
    frame = groups.agg(runs="count", median="median", lowest="min", highest="max").reset_index()
    display = frame.assign(**{key: [number(v, 0) for v in frame[key]] for key in ("median", "lowest", "highest")})
    return Table(
        name="throughput",
        caption="Throughput in env steps per second (SPS), over runs.",
        notes=(
            "From the end of a run's first update to the end of its last, so without compilation; an env step is one "
            f"agent step of one game{frames_words(summary, ', ')}. Runs that shared a machine at the time slowed each "
            "other down.",
        ),
        frame=frame,
        display=display,
    )


def profile_pairs(summary: Summary) -> Table | None:
    """Divergence of every pair of profiles, per algorithm and game; None where nothing has two profiles."""
    pairs = summary.pairs
    if pairs.empty:
        return None
    described = [
        {
            "algorithm": pair["algorithm"],
            "game": pair["env_id"],
            "profiles": f"{pair['profile_a']} → {pair['profile_b']}",
            **_described_pair(pair),
        }
        for pair in pairs.to_dict("records")
    ]
    no_floor = (pairs["floor_splits"] == 0).any()
    return Table(
        name="divergence",
        caption="Learning curves of the second profile against the first: same algorithm, same game.",
        notes=(
            f"Equivalence margin: {_margins(pairs)}. Area, gap and difference are in HNS, or in points where a game "
            "has no HNS.",
            "Difference: second minus first, mean over the budget, with the 90 % Welch interval over seeds.",
            *(["A/A floor: cannot be computed where neither profile has 4 seeds, 2 a side."] if no_floor else []),
        ),
        frame=pairs,
        display=pd.DataFrame(described),
    )


def _margins(pairs: pd.DataFrame) -> str:
    """`0.1 HNS`, or each margin with the algorithms that it was used for where experiments differ in theirs."""
    algorithms: dict[str, list[str]] = {}
    for (algorithm,), part in records.groups(pairs, ["algorithm"]):
        used = part.dropna(subset=["margin"]).to_dict("records")  # a margin in HNS is none for a game without HNS
        unit = "HNS" if used and used[0]["unit"] == "HNS" else "points"
        stated = f"{used[0]['margin']:g} {unit}" if used else "none declared"
        algorithms.setdefault(stated, []).append(algorithm)
    if len(algorithms) == 1:
        return next(iter(algorithms))
    return "; ".join(f"{stated} ({', '.join(names)})" for stated, names in algorithms.items())


def pairs_by_profiles(summary: Summary) -> Table | None:
    """One row per algorithm and pair of profiles: verdicts over games, and how far apart the curves are."""
    if summary.pairs.empty:
        return None
    rows = []
    for (algorithm, profile_a, profile_b), part in records.groups(summary.pairs, PAIR):
        furthest = furthest_pair(part.loc[part["unit"] == "HNS"])
        row = {"algorithm": algorithm, "profile_a": profile_a, "profile_b": profile_b, "games": len(part)}
        row["verdicts"] = ", ".join(f"{word}: {count}" for word, count in part["word"].value_counts().items())
        row["median_area_hns"] = part.loc[part["unit"] == "HNS", "area"].median()
        rows.append(row | {"largest_area_hns": furthest.get("area"), "on_game": furthest.get("env_id")})
    frame = pd.DataFrame(rows)
    areas = {column: [number(v, 3) for v in frame[column]] for column in ("median_area_hns", "largest_area_hns")}
    return Table(
        name="divergence_by_profiles",
        caption="Verdicts over games, and the area between mean curves per unit budget in HNS.",
        frame=frame,
        display=frame.assign(**areas).rename(columns=lambda name: name.replace("_", " ").replace("hns", "HNS")),
    )


def delay_pairs(summary: Summary) -> Table | None:
    """What a delay of actors or learner changed, per profile and game; None where no algorithm is there with another's
    settings but for its delays."""
    if summary.delays.empty:
        return None
    described = [
        {
            "algorithms": f"{pair['algorithm_a']} → {pair['algorithm_b']}",
            "delays": pair["delays"],
            "profile": pair["profile"],
            "game": pair["env_id"],
            **_described_pair(pair),
        }
        for pair in summary.delays.to_dict("records")
    ]
    return Table(
        name="delays",
        caption="Learning curves with a delay against those without: same settings else, same profile, same game.",
        notes=("Delays are slept on purpose. Under a schedule with a rule they cost time and must change no bit.",),
        frame=summary.delays,
        display=pd.DataFrame(described),
    )


def seeding_pairs(summary: Summary) -> Table | None:
    """What the streams of envs and actions do to the variance over seeds."""
    if summary.seedings.empty:
        return None
    described = [
        {
            "algorithms": f"{pair['algorithm_a']} ({pair['seeding_a']}) → {pair['algorithm_b']} ({pair['seeding_b']})",
            "profile": pair["profile"],
            "game": pair["env_id"],
            "n (seeds)": f"{pair['seeds_a']}, {pair['seeds_b']}",
            "ratio of variances": with_interval(pair["ratio"], pair["low"], pair["high"], 2),
        }
        for pair in summary.seedings.to_dict("records")
    ]
    return Table(
        name="seedings",
        caption="Variance of final scores over seeds, the second's over the first's.",
        notes=("95 % interval of an F test, which takes the scores for normal; 1 means no difference.",),
        frame=summary.seedings,
        display=pd.DataFrame(described),
    )


def per_run(summary: Summary) -> Table:
    """One row per run that counts, with its results."""
    columns = [*records.KEYS, "episodes", "final_score", "final_episodes", "hns", "env_steps_per_second"]
    frame = summary.runs[columns].assign(hns_table=summary.table.label)
    return Table(name="runs", caption="Every run that counts.", frame=frame, display=frame)


def _described_pair(pair: Row) -> dict[str, str]:
    decimals, same_bits = 3 if pair["unit"] == "HNS" else 1, pair["word"] == "identical"
    return {
        "n (seeds)": f"{pair['seeds_a']}, {pair['seeds_b']}",
        "verdict": pair["word"],
        "same bits": fingerprint_words(pair),
        "area per unit budget": number(pair["area"], decimals),
        "largest gap": gap_words(pair),
        "A/A floor": _floor(pair, decimals),
        "difference": "0" if same_bits else with_interval(pair["difference"], pair["low"], pair["high"], decimals),
    }


def left_out(summary: Summary) -> Table:
    """Runs that do not count, and cells without a record, by name."""
    missing = summary.missing.assign(run_id="", state="missing", reason="no record")
    frame = pd.concat([summary.left_out, missing], ignore_index=True).loc[:, [*records.KEYS, "state", "reason"]]
    display = frame.rename(columns={"env_id": "game", "run_id": "run"})
    return Table(name="left_out", caption="Runs that do not count here.", frame=frame, display=display)


def machine_facts(summary: Summary) -> Table:
    """One row per measured fact, one column per profile; where starts differ, every value."""
    facts = summary.machines.drop(columns=[*records.KEYS, "schema", "segment"], errors="ignore")
    by_profile = facts.groupby(summary.machines["profile"], sort=False)
    frame = pd.DataFrame({profile: part.apply(_distinct) for profile, part in by_profile})
    frame = frame.rename_axis("fact").reset_index()
    return Table(
        name="machines", caption="What each profile's runs measured at their start.", frame=frame, display=frame
    )


def fingerprint_words(pair: Row) -> str:
    """What the fingerprints of two run sets say."""
    runs = f"{pair['run_pairs']} run pair{_s(pair['run_pairs'])}"
    updates = f"{pair['updates_compared']:,} update{_s(pair['updates_compared'])}"
    if not pair["updates_compared"]:
        return "no fingerprints to compare"
    if pair["identical"] is False:
        first = f"first difference at update {pair['first_update']:,.0f}, {pair['first_stage']}"
        return f"{pair['identical_run_pairs']} of {runs} identical; {first}"
    return f"identical, {updates} of {runs}" + ("" if pair["identical"] else "; seeds without a pair")


def furthest_pair(pairs: pd.DataFrame) -> Row:
    """The row of the largest area, in HNS where any is; empty where no pair has a bin in common."""
    ranked = pairs.dropna(subset=["area"]).sort_values(by=["unit", "area"], ascending=[True, False])
    return next(iter(ranked.head(1).to_dict("records")), {})


def gap_words(pair: Row) -> str:
    """The largest gap and where it is."""
    if not pair["area"] > 0:
        return number(pair["largest_gap"], 0)
    return f"{pair['largest_gap']:+,.3g} at {pair['largest_gap_env_steps']:,.0f} env steps"


def _floor(pair: Row, decimals: int) -> str:
    if not pair["floor_splits"]:
        return MISSING
    sizes = f"{pair['floor_splits']} splits, {pair['floor_seeds_per_side']} seeds a side"
    return f"{number(pair['floor_median'], decimals)}, at most {number(pair['floor_largest'], decimals)} ({sizes})"


def _score(row: Row) -> str:
    decimals = 1 if abs(row["final_score"]) < 1000 else 0
    return with_interval(row["final_score"], row["lowest"], row["highest"], decimals)


def _long(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "game": frame["env_id"],
            "algorithm": frame["algorithm"],
            "profile": frame["profile"],
            "n (seeds)": frame["seeds"],
            "episodes": frame["final_episodes"],
            "final score": [_score(row) for row in frame.to_dict("records")],
            "HNS": [number(value, 3) for value in frame["hns"]],
        }
    )


def _wide(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per game, one column per system; a number of seeds other than most cells' is said in its cell."""
    usual = frame["seeds"].mode()[0]
    cells = [
        f"{number(row['final_score'], 1)} ({number(row['hns'], 2)})"
        + (f", n = {row['seeds']}" if row["seeds"] != usual else "")
        for row in frame.to_dict("records")
    ]
    systems = frame["algorithm"] + " on " + frame["profile"]
    return _spread(pd.DataFrame({"game": frame["env_id"], "system": systems, "cell": cells}))


def _spread(cells: pd.DataFrame) -> pd.DataFrame:
    """Texts of (row, column, cell) as a table, rows and columns in the order in which they come."""
    row, column, cell = cells.columns
    wide = cells.pivot_table(index=row, columns=column, values=cell, aggfunc="first", fill_value=MISSING, sort=False)
    return wide.reset_index().rename_axis(columns=None)


def _seeds(counts) -> str:
    fewest, most = int(np.min(counts)), int(np.max(counts))
    return f"n = {most} seed{_s(most)}" if fewest == most else f"n = {fewest} to {most} seeds"


def _listed(values: Iterable) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values))


def _distinct(column: pd.Series) -> str:
    """The values of a measured fact in the order in which they occurred; lists as text."""
    values = column.dropna().map(lambda value: ", ".join(map(str, value)) if isinstance(value, list) else str(value))
    return " or ".join(values.unique()) or MISSING


def _s(count: int) -> str:
    return "" if count == 1 else "s"
