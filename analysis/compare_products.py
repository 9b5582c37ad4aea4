"""What `cleanba compare` writes and prints: tables, figures, JSON, and the answer in sentences."""

import json
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from analysis import compare, compare_figures, figure_style, run_sets, tables
from analysis.compare import Comparison
from analysis.compare_figures import seeds
from analysis.report_tables import fingerprint_words, gap_words
from analysis.tables import MISSING, number, with_interval

MOST_LISTED = 5  # games in the printed answer, the furthest apart first; all are in the table


def main(
    a: str,
    b: str,
    results: Path,
    *,
    margin: float | None,
    table: str,
    games: tuple[str, ...],
    allow_mixed: bool,
) -> tuple[Comparison, Path]:
    """Compare two named sets and write the products; returns the comparison and the folder of its products."""
    if a == b:
        raise ValueError(f"{a} stands on both sides; allowed: two run sets")
    sets = run_sets.find(a, results), run_sets.find(b, results)
    found = compare.compare(*sets, margin=margin, table=table, games=games, allow_mixed=allow_mixed)
    folder = results / "verdicts" / f"{file_name(a)}-vs-{file_name(b)}"
    write(found, folder)
    return found, folder


def write(found: Comparison, folder: Path) -> None:
    """verdict.json, games.{csv,md,tex}, curves.csv and the figures, PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verdict.json").write_text(json.dumps(compare.as_json(found), indent=1) + "\n", encoding="utf-8")
    tables.write(
        found.games.assign(mixed="; ".join(found.mixed), hns_table=found.table.label), folder / "games",
        caption=_caption(found), notes=list(notes(found)), display=display(found),
    )  # fmt: skip
    found.curves.to_csv(folder / "curves.csv", index=False)
    for row in found.games.to_dict("records"):
        figure_style.save(compare_figures.game(found, row), folder / f"curves_{file_name(row['env_id'])}")
    figure_style.save(compare_figures.strip(found), folder / "summary")
    if found.overall is not None:
        found.overall_curves.to_csv(folder / "all_games.csv", index=False)
        figure_style.save(compare_figures.overall(found), folder / "all_games")


def sentences(found: Comparison) -> Iterator[str]:
    """The answer, line by line."""
    yield f"A: {_side(found, 'a')}"
    yield f"B: {_side(found, 'b')}"
    yield from (f"note: compared although {difference}" for difference in found.mixed)
    yield f"verdict on B: {found.verdict} (margin: {margin_words(found)})"
    if found.overall is not None:
        row = found.overall
        yield f"IQM over {row['num_games']} games: {row['word']}; {_numbers(row)}"
    furthest = found.games.sort_values(by="area", ascending=False, kind="stable").to_dict("records")
    for row in furthest[:MOST_LISTED]:
        yield f"{row['env_id']}: {row['word']}; {_numbers(row)}"
        if row["identical"] is not None:
            yield f"{row['env_id']}: fingerprints: {fingerprint_words(row)}"
    if len(furthest) > MOST_LISTED:
        words = found.games["word"].str.replace(r" \(.*", "", regex=True).value_counts()
        yield f"all {len(furthest)} games: {', '.join(f'{count} {word}' for word, count in words.items())}"
    yield from (f"note: {note}" for note in found.notes)
    yield f"curves: {compare.smoothing(found)}"


def notes(found: Comparison) -> Iterator[str]:
    """Below the table: what the numbers are."""
    yield from (f"Compared although {difference}." for difference in found.mixed)
    yield f"Verdict on B: {found.verdict}. Equivalence margin: {margin_words(found)}."
    if found.overall is not None:
        yield f"IQM over {found.overall['num_games']} games: {found.overall['word']}; {_numbers(found.overall)}."
    yield (
        f"Protocol: {found.a.protocol} in A, {found.b.protocol} in B. HNS table: {found.table.label}. "
        f"Final score: {compare.SCORE_DEFINITION}. Curves: {compare.smoothing(found)}."
    )
    yield (
        "Area: between the mean curves per unit budget, in HNS or points; relative to the mean of A's curve. A/A "
        "floor: median and largest area between two halves of one set, n: seeds of the smaller half. p: permutation of "
        "the area over seeds, and the smallest attainable. Difference: B - A, mean over the budget, 90 % Welch "
        "interval. Final difference: B - A, 95 % bootstrap over seeds."
    )
    yield from (f"{note[0].upper()}{note[1:]}." for note in found.notes)


def display(found: Comparison) -> pd.DataFrame:
    """The table for readers, the furthest apart first."""
    rows = found.games.sort_values(by="area", ascending=False, kind="stable").to_dict("records")
    return pd.DataFrame([_displayed(row) for row in rows])


def margin_words(found: Comparison) -> str:
    return "none" if found.margin is None else f"{found.margin:g} {found.margin_unit}"


def file_name(name: str) -> str:
    """A name as part of a path: `:` would not pass as an artifact of a CI, and a log may say anything."""
    return quote(name.replace(":", "+"), safe="+@")


def _displayed(row: Mapping[Hashable, Any]) -> dict[str, str]:
    decimals = 3 if row["unit"] == "HNS" else 1
    shown = {
        "game": str(row["env_id"]),
        "n (A, B)": f"{row['seeds_a']}, {row['seeds_b']}",
        "verdict on B": str(row["word"]),
        "area": number(row["area"], decimals),
        "relative": number(100 * row["relative_area"], 1) + " %" if pd.notna(row["relative_area"]) else MISSING,
        "largest gap": gap_words(row),
        "A/A floor of A": _floor(row, "a", decimals),
        "A/A floor of B": _floor(row, "b", decimals),
        "p (smallest)": f"{number(row['p_value'], 3)} ({number(row['smallest_p'], 3)})",
        "difference": with_interval(row["difference"], row["low"], row["high"], decimals),
        "final difference": with_interval(row["final_difference"], row["final_low"], row["final_high"], decimals),
    }
    return shown | ({} if row["identical"] is None else {"same bits": fingerprint_words(row)})


def _floor(row: Mapping, side: str, decimals: int) -> str:
    if not row[f"floor_{side}_splits"]:
        return MISSING
    median, largest = (number(row[f"floor_{side}_{name}"], decimals) for name in ("median", "largest"))
    return f"{median}, at most {largest} (n = {row[f'floor_{side}_seeds_per_side']})"


def _numbers(row: Mapping) -> str:
    decimals = 3 if row["unit"] == "HNS" else 1
    floors = ", ".join(
        f"{number(row[f'floor_{side}_largest'], decimals)} in {side.upper()}"
        for side in ("a", "b")
        if row[f"floor_{side}_splits"]
    )
    return (
        f"area {number(row['area'], decimals)} {row['unit']} per unit budget"
        f" ({number(100 * row['relative_area'], 1)} % of A), largest gap {gap_words(row)}; "
        f"A/A floor at most {floors or MISSING}; p = {number(row['p_value'], 4)} (smallest attainable "
        f"{number(row['smallest_p'], 4)}); difference "
        f"{with_interval(row['difference'], row['low'], row['high'], decimals)}; final score "
        f"{with_interval(row['final_difference'], row['final_low'], row['final_high'], decimals)}"
    )


def _caption(found: Comparison) -> str:
    return (
        f"B, {found.b.name}, against A, {found.a.name}: {len(found.games)} games, n = {seeds(found, 'a')} seeds of A, "
        f"{seeds(found, 'b')} of B."
    )


def _side(found: Comparison, side: str) -> str:
    one = found.a if side == "a" else found.b
    return f"{one.name} ({one.kind} runs, protocol {one.protocol}, unit {one.unit}, n = {seeds(found, side)} seeds)"
