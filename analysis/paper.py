"""`cleanba paper`: every table, figure and claim of the paper, from published figures alone.

Writes results/tables/paper/ (CSV, Markdown, LaTeX) and results/figures/paper/ (PNG, SVG), and prints the contradictions
inside the published tables, the claims ledger, and where everything lies. docs/paper.md explains how to read it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import claims, figures, over_games, paper_tables, published, scores, tables
from analysis.figure_style import save
from analysis.scores import ScoreTable

INTERVALS = (
    f"95 % percentile intervals over games ({over_games.REPETITIONS:,} resamples of the games, the same for every "
    "system). They are not intervals over seeds: the scores of the seeds are not published."
)
GAMES_NOTE = f"[low, high]: {INTERVALS}"
SPEED_NOTE = (
    "Minutes: mean over games of the published minutes of a run. Speed-up: ratio of mean minutes on the games of the "
    "row, to the monobeast and moolib of the base setting for 1 A100 and 10 CPU, of the workstation setting otherwise."
)
STD_NOTE = "± is the published standard deviation over seeds, in the population form (ddof 0)."
PERCENT = {
    "median": "median HNS (%)",
    "iqm": "IQM HNS (%)",
    "mean": "mean HNS (%)",
    "optimality_gap": "optimality gap (%)",
}

About = Mapping[str, Any]  # a row of cleanba_tables.csv


def main(output: Path = Path("results"), score_table: str = scores.DEFAULT) -> list[Path]:
    """Writes everything below `output` and returns the paths. `score_table`: a name or the path of a user's own CSV."""
    table = scores.resolve(score_table)
    evidence = published.evidence(table)
    ledger = claims.ledger(published.claims(), evidence)
    contradictions = published.contradictions(published.cleanba_returns(), published.cleanba_tables())
    paths = [
        *write_all_tables(output / "tables" / "paper", output / "figures" / "paper", table, evidence),
        *write_impala(output / "tables" / "paper", table),
        *write_checks(output / "tables" / "paper", table, contradictions, ledger),
    ]
    show(table, contradictions, ledger, paths)
    return paths


def write_all_tables(folder: Path, figure_folder: Path, table: ScoreTable, evidence: pd.DataFrame) -> Iterator[Path]:
    """What each table of the paper gives: per game, in aggregate, as figures; and the gaps across hardware."""
    for key, about in published.cleanba_tables().to_dict("index").items():
        name = str(key)
        rows = paper_tables.aggregate(evidence, name, about["seeds_declared"])
        yield from write_aggregate(folder / f"{name}_aggregate", rows, about, table)
        yield from write_per_game(folder / f"{name}_per_game", paper_tables.per_game(evidence, name), about, table)
        for kind, figure in draw(name, rows, about, table, evidence):
            yield from save(figure, figure_folder / f"{name}_{kind}")
        if name == "across_hardware":
            yield from write_hardware_gaps(folder / "hardware_gaps", about, table, evidence)


def write_aggregate(stem: Path, rows: pd.DataFrame, about: About, table: ScoreTable) -> list[Path]:
    notes = [sources(about, table), GAMES_NOTE, seeds_note(about), SPEED_NOTE]
    return tables.write(
        rows, stem, caption=f"{about['title']}: aggregates over games", notes=notes, display=readable(rows)
    )


def write_per_game(stem: Path, games: pd.DataFrame, about: About, table: ScoreTable) -> list[Path]:
    notes, caption = [sources(about, table), STD_NOTE], f"{about['title']}: final return per game"
    return tables.write(games, stem, caption=caption, notes=notes, display=readable_games(games))


def write_hardware_gaps(stem: Path, about: About, table: ScoreTable, evidence: pd.DataFrame) -> list[Path]:
    rows = paper_tables.hardware_gaps(evidence, "across_hardware", about["seeds_declared"])
    notes = [
        sources(about, table),
        GAMES_NOTE,
        "In standard errors: the gap over the standard error that the published stds give, converted from ddof 0 with "
        f"n / (n - 1), n = {about['seeds_declared']} as declared, on the games where they are not zero; were there no "
        f"effect of hardware, the median would be {rows['expected_median'].iloc[0]:.2f} (Student's t).",
    ]
    shown = rows[["system", "games"]].assign(hardware=rows["first"] + " | " + rows["second"])
    shown["IQM of the gap (HNS)"] = intervals(rows, "iqm_gap", 1.0, 3)
    shown["median gap (HNS)"] = rows["median_gap"].map("{:.3f}".format)
    shown["median gap in standard errors"] = rows["median_gap_in_standard_errors"].map("{:.2f}".format)
    caption = "Gap between the final scores of one system on two hardware settings"
    return tables.write(rows, stem, caption=caption, notes=notes, display=shown)


def write_impala(folder: Path, table: ScoreTable) -> list[Path]:
    """IMPALA's variants under every HNS table, and the cells in which those tables differ."""
    circulating = [table, *(other for other in scores.TABLES.values() if other.hash != table.hash)]
    rows = paper_tables.impala(circulating, published.claims())
    shown = pd.DataFrame({name: rows[name] for name in ("system", "hns_table", "games")})
    for key, text in PERCENT.items():
        shown[text] = intervals(rows, key, 100, 1)
    shown["published median (%)"] = (100 * rows["published_median"]).map("{:.1f}".format)
    notes = [
        "IMPALA (Espeholt et al. 2018), Table C.1. Up to 30 no-ops, no sticky actions, per-game action sets; n of "
        "seeds and stds are not published. Not comparable with the tables of Cleanba: another protocol.",
        GAMES_NOTE,
    ]
    caption = "IMPALA's three variants under each HNS table in circulation"
    differing = score_table_cells(table)
    cells = f"Cells in which named HNS tables differ from {table.label}"
    return [
        *tables.write(rows, folder / "impala_hns_tables", caption=caption, notes=notes, display=shown),
        *tables.write(differing, folder / "score_tables", caption=cells, display=differing.map(str)),
    ]


def write_checks(folder: Path, table: ScoreTable, contradictions: pd.DataFrame, ledger: pd.DataFrame) -> Iterator[Path]:
    """The contradictions and the ledger."""
    caption = "What the published tables of Cleanba contradict in themselves"
    notes = ["zero std: exactly 0 at a mean that is not 0. There is one seed, or the seeds agree to the last digit."]
    yield from tables.write(contradictions, folder / "contradictions", caption=caption, notes=notes)
    caption = "The claims of the two papers against their own published figures"
    notes = [f"HNS table {table.label}.", GAMES_NOTE, "What the verdicts mean: docs/paper.md."]
    yield from tables.write(ledger, folder / "ledger", caption=caption, notes=notes, display=readable_ledger(ledger))


def draw(name: str, rows: pd.DataFrame, about: About, table: ScoreTable, evidence: pd.DataFrame) -> Iterator:
    """(kind, figure) of one table of the paper: all that per-game means allow."""
    names = list(paper_tables.labels(evidence, name).values())
    title, end = f"{about['title']}. ", f"{rows['games'].max()} games; lines: {INTERVALS} {sources(about, table)}"
    points = paper_tables.aggregate_points(rows, names)
    yield "aggregate", figures.aggregate_intervals(points, caption=title + end, labels=PERCENT)
    bands = "bands: pointwise 95 % bootstrap intervals over games, in closed form; they are not intervals over seeds"
    caption = (
        f"{title}Distribution of the per-game means of {rows['games'].max()} games; {bands}. {sources(about, table)}"
    )
    yield "profile", figures.performance_profiles(paper_tables.profiles(evidence, name), of="games", caption=caption)
    caption = f"{title}Mean over seeds. {STD_NOTE} {sources(about, table)}"
    yield "games", figures.game_dots(paper_tables.game_points(evidence, name), caption=caption)
    caption = f"{title}Share of games in which the mean return of X exceeds that of Y. {end}"
    yield "improvement", figures.improvement_probability(paper_tables.improvement(evidence, name), caption=caption)
    bars = paper_tables.speedup_bars(rows, names)
    yield "speedup", figures.speedups(bars, caption=f"{title}{SPEED_NOTE} {end}")


def sources(about: About, table: ScoreTable) -> str:
    return (
        f"Per-game means over seeds as published ({about['source']}, {about['source_table']}.csv); seeds: "
        f"{about['seeds_declared']} declared, no n stored; final raw return, {about['frames'] / 1e6:.0f}M frames, "
        f"sticky actions. HNS table {table.label}."
    )


def seeds_note(about: About) -> str:
    n = about["seeds_declared"]
    return (
        "Over seeds: 95 % interval of the mean on these games from the published stds, converted from ddof 0 with "
        f"n / (n - 1), n = {n} as declared, Student's t; a std of 0 adds nothing. For median, IQM and optimality gap "
        "the stds give no interval over seeds."
    )


def intervals(rows: pd.DataFrame, key: str, factor: float, decimals: int) -> list[str]:
    """`value [low, high]` of each row, times `factor`."""
    columns = (factor * rows[column] for column in (key, f"{key}_low", f"{key}_high"))
    return [tables.with_interval(value, low, high, decimals) for value, low, high in zip(*columns, strict=True)]


def readable(rows: pd.DataFrame) -> pd.DataFrame:
    """`paper_tables.aggregate` in percent, minutes and times, intervals in brackets."""
    shown = pd.DataFrame({name: rows[name] for name in ("system", "hardware", "games")})
    for key, text in PERCENT.items():
        shown[text] = intervals(rows, key, 100, 1)
    shown["mean HNS over seeds (%)"] = intervals(rows.assign(mean_over_seeds=rows["mean"]), "mean_over_seeds", 100, 1)
    shown["minutes"] = rows["minutes"].map("{:.1f}".format)
    for name in paper_tables.REFERENCES:
        shown[f"times {name}"] = intervals(rows, f"speedup_{name}", 1, 2)
    return shown


def readable_games(games: pd.DataFrame) -> pd.DataFrame:
    """`paper_tables.per_game` with one column per system: mean ± std."""
    shown = {"game": games["env_id"].str.removesuffix("-v5")}
    for column in games.filter(like=": mean return"):
        name = column.removesuffix(": mean return")
        pairs = zip(games[column], games[f"{name}: std return (ddof 0)"], strict=True)
        shown[name] = pd.Series([f"{mean:,.1f} ± {std:,.1f}" for mean, std in pairs])
    return pd.DataFrame(shown)


def readable_ledger(ledger: pd.DataFrame) -> pd.DataFrame:
    rows = ledger.to_dict("records")
    shown = ledger[["id", "claim", "setting"]].assign(
        claimed=["" if pd.isna(row["claimed"]) else f"{row['claimed']:,g}" for row in rows],
        recomputed=[tables.with_interval(row["recomputed"], row["low"], row["high"], _decimals(row)) for row in rows],
    )
    return shown.join(ledger[["unit", "games", "verdict", "why", "experiment"]])


def score_table_cells(table: ScoreTable) -> pd.DataFrame:
    """Every cell in which a named table differs from the one used: table, env_id, column, value, used."""
    rows = [
        (other.label, cell.env_id, cell.column, cell.value, cell.reference)
        for other in scores.TABLES.values()
        for cell in scores.diff(other, table)
    ]
    return pd.DataFrame(rows, columns=pd.Index(["table", "env_id", "column", "value", "used"]))


def show(table: ScoreTable, contradictions: pd.DataFrame, ledger: pd.DataFrame, paths: list[Path]) -> None:
    print(f"HNS table {table.label}")
    for cell in scores.diff(table, scores.TABLES[scores.DEFAULT]):
        print(f"  differs from {scores.DEFAULT}: {cell}")
    print(f"\nContradictions inside the published tables ({len(contradictions)}):")
    for line in contradiction_lines(contradictions):
        print(f"  {line}")
    print("\nClaims:")
    for row in readable_ledger(ledger).to_dict("records"):
        found = f"recomputed {row['recomputed']} {row['unit']}" if row["games"] else f"could: {row['experiment']}"
        print(f"  {row['id']:<4} {row['verdict']}: {row['claim']} ({row['setting']})")
        print(f"       claimed {row['claimed'] or 'no number'}; {found}; {row['why']}")
    print(f"\n{GAMES_NOTE}\n")
    for folder in dict.fromkeys(path.parent for path in paths):
        print(f"{folder}: {sum(path.parent == folder for path in paths)} files")
    print(*(path for path in paths if path.name in ("ledger.md", "contradictions.md")), sep="\n")


def contradiction_lines(contradictions: pd.DataFrame) -> Iterator[str]:
    """One line each, the games with a zero std counted per system."""
    zero = contradictions["kind"] == "zero std"
    for row in contradictions.loc[~zero].to_dict("records"):
        where = ", ".join(filter(None, (row["system"], row["hardware"], row["env_id"])))
        yield f"{row['kind']} ({row['table']}): {where}: {row['detail']}"
    for place, rows in contradictions.loc[zero].groupby(["table", "system", "hardware"], sort=False):
        games = "game" if len(rows) == 1 else "games"
        yield f"zero std at a mean that is not zero: {', '.join(map(str, place))}: {len(rows)} {games}"


def _decimals(row: dict) -> int:
    return 2 if abs(row["recomputed"]) < 50 else 1


if __name__ == "__main__":
    main()
