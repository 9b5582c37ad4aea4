"""What a report says in sentences: the answer to the experiment's question, and the definitions of what it shows."""

from collections.abc import Iterator

import pandas as pd

from analysis import curves, divergence, records, report_tables
from analysis.report_tables import Table, furthest_pair, gap_words
from analysis.summary import Summary
from analysis.tables import number

GRIDS = ", ".join(map(str, curves.NUM_BINS))
MOST_SYSTEMS = 6  # named one by one in the answer; of more, the ends of the ranking


def answer(summary: Summary, aggregates: Table | None) -> list[str]:
    """The result in a few sentences: what hardware changed, then how well the systems scored."""
    said = [*_delays(summary), *_lags(summary), *_seedings(summary)]
    return [*([] if said and summary.pairs.empty else _hardware(summary)), *said, *_scores(summary, aggregates)]


def definitions(summary: Summary) -> list[tuple[str, str]]:
    """(term, meaning) of everything the page shows, with the values that this report used."""
    runs, table = summary.runs, summary.table
    return [
        (
            "env step",
            f"one agent step of one game{report_tables.frames_words(summary, ', ')}; env steps count over all envs of "
            "a run.",
        ),
        ("system", "an algorithm on a hardware profile."),
        ("final score", f"{records.FINAL_SCORE}. A run without such an episode has none."),
        ("HNS", f"human-normalised score, (return - random) / (human - random). Table: {table.label}."),
        ("protocol", f"{', '.join(runs['protocol'].unique())}: how the games are played, see cleanba/envs.py."),
        (
            "learning curve",
            "mean raw return of the episodes that ended in each bin of env steps, drawn at the bin's right edge, no "
            f"smoothing. Bin width: {_widths(summary)} env steps; the finest of {GRIDS} "
            f"bins with {curves.EPISODES_PER_BIN} episodes a bin in the game's run with the fewest, or else the "
            "coarsest. A bin without episodes is a gap.",
        ),
        ("line and band", f"mean over seeds, every seed weighing the same; the band reaches {curves.BAND}."),
        (
            "area per unit budget",
            "the area between two systems' mean curves divided by the width of the bins where both have a value: their "
            "mean distance.",
        ),
        (
            "A/A floor",
            "the same area between halves of one profile's own seeds: what noise alone makes of it (median and "
            "largest over splits). Needs 4 seeds of a profile.",
        ),
        (
            "verdict",
            "identical: all fingerprints compared are equal. Otherwise about the second profile against the first: "
            "same (the interval of the difference lies inside the margin, and so does the area), better or worse (it "
            f"lies outside), or cannot tell. With fewer than {divergence.SEEDS_FOR_A_VERDICT} seeds a side there is no "
            "verdict: not finding a difference is not sameness.",
        ),
        ("fingerprint", "a digest of a stage of an update, such as its parameters; equal digests mean equal bits."),
    ]


def caveats(summary: Summary) -> list[str]:
    """What a reader must know before quoting a number of the page."""
    said = [f"{sentence} (compared because it was asked for)." for sentence in summary.mixed]
    not_counted = len(summary.left_out) + len(summary.missing)
    if not_counted:
        said.append(f"{not_counted} run{'s' * (not_counted > 1)} missing or not complete, named under What ran.")
    for experiment in summary.experiments:
        if experiment.path is None:
            said.append(
                f"There is no file experiments/{experiment.name}.yaml here: its margin is unknown, and missing cells "
                "are those that the records leave out of their full product."
            )
    inexact = summary.runs.loc[summary.runs["inexact_resume"]]
    if len(inexact):
        names = ", ".join(
            f"{r['algorithm']} on {r['env_id']}, {r['profile']}, seed {r['seed']}" for r in inexact.to_dict("records")
        )
        said.append(f"Resumed without segments, so that their bits are their own and were not compared: {names}.")
    without = sorted(set(summary.runs.loc[summary.runs["hns"].isna() & summary.runs["final_score"].notna(), "env_id"]))
    if without:
        said.append(f"Without HNS, hence in no aggregate over games: {', '.join(without)}.")
    unscored = summary.runs.loc[summary.runs["final_score"].isna()]
    if len(unscored):
        names = ", ".join(
            f"{r['algorithm']} on {r['env_id']}, {r['profile']}, seed {r['seed']}" for r in unscored.to_dict("records")
        )
        said.append(f"No episode ended in the last 10 % of these runs, so they have no final score: {names}.")
    return said


def figure_captions(summary: Summary) -> dict[str, str]:
    """By game: what line and band are, n and the bin width."""
    captions = {}
    for env_id, part in summary.curves.groupby("env_id"):
        seeds = part.groupby(records.SYSTEM)["seed"].nunique()
        n = f"{seeds.max()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
        n += " seed" if n == "1" else " seeds"
        width = part["env_steps"].min()
        captions[str(env_id)] = f"{env_id}: mean over n = {n}, band {curves.BAND}; bins of {width:,.0f} env steps."
    return captions


def _hardware(summary: Summary) -> Iterator[str]:
    if summary.pairs.empty:
        yield "There is one hardware profile per algorithm, so this says nothing about hardware."
        return
    for (algorithm, a, b), pairs in records.groups(summary.pairs, report_tables.PAIR):
        yield f"{algorithm}, {a} against {b}: {_hardware_sentence(pairs)}"


def _delays(summary: Summary) -> Iterator[str]:
    if summary.delays.empty:
        return
    for (profile, a, b, delays), pairs in records.groups(
        summary.delays, ["profile", "algorithm_a", "algorithm_b", "delays"]
    ):
        yield f"{a} against {b} on {profile} ({delays}): {_hardware_sentence(pairs)}"


def _lags(summary: Summary) -> Iterator[str]:
    for (algorithm, profile), lags in records.groups(summary.lags, records.SYSTEM):
        mean = float((lags["policy_lag"] * lags["share"]).sum())
        fewest, most = lags["policy_lag"].min(), lags["policy_lag"].max()
        yield (
            f"{algorithm} on {profile} learned from env steps made {fewest} to {most} updates behind the learner, "
            f"{mean:.2f} on average."
        )


def _seedings(summary: Summary) -> Iterator[str]:
    for row in summary.seedings.to_dict("records"):
        where = f"{row['algorithm_b']} (seeding {row['seeding_b']}) against {row['algorithm_a']} ({row['seeding_a']})"
        n = f"n = {row['seeds_b']} and {row['seeds_a']} seeds"
        if pd.isna(row["ratio"]):
            yield f"{where} on {row['env_id']}, {row['profile']}: no ratio of variances ({n})."
            continue
        inside = row["low"] <= 1 <= row["high"]
        verdict = "1 lies inside, so that no difference is shown" if inside else "1 lies outside"
        yield (
            f"{where} on {row['env_id']}, {row['profile']}: the variance of final scores over seeds is "
            f"{row['ratio']:.2f} times as large, 95 % interval {row['low']:.2f} to {row['high']:.2f} ({n}; {verdict})."
        )


def _hardware_sentence(pairs: pd.DataFrame) -> str:
    games, identical = len(pairs), int((pairs["word"] == "identical").sum())
    on_games = "" if games == 1 else f" on all {games} games"
    if identical == games:
        updates, runs = pairs["updates_compared"].min(), pairs["run_pairs"].sum()
        pairs_of = f"{runs} pair{'' if runs == 1 else 's'} of runs"
        return f"identical bit for bit{on_games}: {pairs_of}, at least {updates:,} updates compared in each."
    counts = pairs["word"].value_counts()
    if games == 1:
        said = f"{counts.index[0]}."
    else:
        said = "; ".join(f"{word} on {count} of {games} games" for word, count in counts.items()) + "."
    return f"{said} {_bits(pairs)}{_distance(pairs.loc[pairs['word'] != 'identical'])}"


def _bits(pairs: pd.DataFrame) -> str:
    """Where the fingerprints first differ, if they do."""
    differ = pairs.dropna(subset=["first_update"]).sort_values(by="first_update").to_dict("records")
    if not differ:
        return ""
    first = f"at update {differ[0]['first_update']:,.0f} ({differ[0]['first_stage']})"
    return f"The bits differ first {first}{'' if len(pairs) == 1 else ' on ' + differ[0]['env_id']}. "


def _distance(pairs: pd.DataFrame) -> str:
    furthest = furthest_pair(pairs)
    if not furthest:
        return "The curves have no bin in common."
    where = "" if len(pairs) == 1 else f" on {furthest['env_id']}, where they are furthest apart"
    distance = number(furthest["area"], 3) + (" HNS" if furthest["unit"] == "HNS" else " points")
    return f"The mean curves are {distance} apart per unit budget{where} (largest gap {gap_words(furthest)})."


def _scores(summary: Summary, aggregates: Table | None) -> Iterator[str]:
    if aggregates is not None and len(set(summary.runs["env_id"])) > 1:
        yield _ranking(aggregates.frame)
        return
    cells = report_tables.final_scores(summary).frame.to_dict("records")
    for row in cells[:MOST_SYSTEMS]:
        normalised = "" if pd.isna(row["hns"]) else f", HNS {row['hns']:.3f}"
        n = f"n = {row['seeds']} seed{'' if row['seeds'] == 1 else 's'}"
        score = number(row["final_score"], 1)
        yield f"{row['algorithm']} on {row['profile']}, {row['env_id']}: final score {score}{normalised} ({n})."
    if len(cells) > MOST_SYSTEMS:
        yield f"{len(cells) - MOST_SYSTEMS} further final scores are in the table."


def _ranking(aggregates: pd.DataFrame) -> str:
    medians = aggregates.loc[aggregates["statistic"] == "median"].to_dict("records")
    medians.sort(key=lambda row: row["estimate"], reverse=True)
    shown = medians if len(medians) <= MOST_SYSTEMS else [medians[0], medians[-1]]
    which = "" if len(shown) == len(medians) else f" (highest and lowest of {len(medians)} systems)"
    ranked = ", ".join(f"{row['system']} {row['estimate']:.3f}" for row in shown)
    return f"Median HNS over {medians[0]['num_games']} games{which}: {ranked}."


def _widths(summary: Summary) -> str:
    """`2,000`, or each width with its games where they differ."""
    games: dict[float, list[str]] = {}
    for env_id, part in summary.curves.groupby("env_id", sort=False):
        games.setdefault(float(part["env_steps"].min()), []).append(str(env_id))
    if len(games) == 1:
        return f"{next(iter(games)):,.0f}"
    return ", ".join(f"{width:,.0f} ({', '.join(names)})" for width, names in games.items())
