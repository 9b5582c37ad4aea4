"""The published figures under `baselines/published/`, checked when read, and what they contradict in themselves.

Per game there is a mean over seeds, a population standard deviation (ddof 0) and the minutes of a run. The number of
seeds is declared by the paper and stored with no figure. Provenance: baselines/published/PROVENANCE.md.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.scores import ATARI57, PUBLISHED, ScoreTable, check_games

RETURN_COLUMNS = ["table", "system", "hardware", "env_id", "mean_return", "std_return", "runtime_minutes"]
CONTRADICTION_COLUMNS = ["kind", "table", "system", "hardware", "env_id", "detail"]


def cleanba_tables(folder: Path = PUBLISHED) -> pd.DataFrame:
    """The seven result tables of Cleanba: title, games and seeds declared, ddof, source. Index: table."""
    return pd.read_csv(folder / "cleanba_tables.csv").set_index("table")


def cleanba_returns(folder: Path = PUBLISHED) -> pd.DataFrame:
    """Columns: RETURN_COLUMNS. Returns in points of the game, raw; std with ddof 0 over seeds; minutes per run."""
    path = folder / "cleanba_returns.csv"
    frame = _checked(pd.read_csv(path), path, ["table", "system", "hardware", "env_id"], RETURN_COLUMNS[4:])
    if unknown := sorted(set(frame["table"]) - set(cleanba_tables(folder).index)):
        raise ValueError(f"{path}: unknown table {', '.join(unknown)}; allowed: those of cleanba_tables.csv")
    return frame


def impala_returns(folder: Path = PUBLISHED) -> pd.DataFrame:
    """IMPALA's Table C.1: columns system, env_id, mean_return. No std, no minutes, no seeds are published."""
    path = folder / "impala_returns.csv"
    return _checked(pd.read_csv(path), path, ["system", "env_id"], ["mean_return"])


def claims(folder: Path = PUBLISHED) -> pd.DataFrame:
    """The claims of the two papers with the figures that decide each; text columns are '' where they do not apply."""
    frame = pd.read_csv(folder / "claims.csv")
    text = [column for column in frame if column not in ("value", "step")]
    return frame.assign(**{column: frame[column].fillna("") for column in text})


def select(returns: pd.DataFrame, table: str, system: str, hardware: str) -> pd.DataFrame:
    """The rows of one system, by game (index: env_id, sorted). Raises ValueError where there are none."""
    wanted = (returns["table"] == table) & (returns["system"] == system) & (returns["hardware"] == hardware)
    if not wanted.any():
        known = "; ".join(f"{name} on {where}" for name, where in systems(returns, table))
        raise ValueError(f"table {table} has no {system!r} on {hardware!r}; allowed: {known}")
    return returns[wanted].set_index("env_id").sort_index()


def systems(returns: pd.DataFrame, table: str) -> list[tuple[str, str]]:
    """The (system, hardware) pairs of a table, in the order in which the table lists them."""
    rows = returns.loc[returns["table"] == table, ["system", "hardware"]].drop_duplicates()
    return list(zip(rows["system"], rows["hardware"], strict=True))


def evidence(table: ScoreTable, folder: Path = PUBLISHED) -> pd.DataFrame:
    """All returns of both papers with `hns` and `hns_std` (ddof 0), fractions. IMPALA's table is `impala_c1`."""
    impala = impala_returns(folder).assign(table="impala_c1", hardware="")
    returns = pd.concat([cleanba_returns(folder), impala], ignore_index=True)
    random, human = np.array([table.scores[game] for game in returns["env_id"]]).T
    hns = (returns["mean_return"] - random) / (human - random)
    return returns.assign(hns=hns, hns_std=returns["std_return"] / (human - random))


def contradictions(returns: pd.DataFrame, tables: pd.DataFrame) -> pd.DataFrame:
    """Where the published tables disagree with each other or with what they declare. Columns: CONTRADICTION_COLUMNS."""
    found = [
        *_two_values(returns),
        *_two_labels(returns),
        *_near_labels(returns),
        *_missing_games(returns, tables),
        *_zero_std(returns),
    ]
    return pd.DataFrame(found).reindex(columns=CONTRADICTION_COLUMNS)


def _checked(frame: pd.DataFrame, path: Path, key: list[str], numbers: list[str]) -> pd.DataFrame:
    if missing := [column for column in (*key, *numbers) if column not in frame]:
        raise ValueError(f"{path}: no column {', '.join(missing)}")
    check_games(frame["env_id"].unique(), where=str(path))
    for column in numbers:
        values = np.asarray(pd.to_numeric(frame[column], errors="coerce"), dtype=float)
        if (bad := ~np.isfinite(values)).any():
            row = frame[bad].iloc[0]
            raise ValueError(f"{path}, {' / '.join(row[key])}: {column} is {row[column]}; allowed: a finite number")
    if (twice := frame.duplicated(key)).any():
        raise ValueError(f"{path}: {' / '.join(frame[twice].iloc[0][key])} stands twice; allowed: one row each")
    return frame


def _two_values(returns: pd.DataFrame) -> Iterator[dict]:
    """The same system, hardware and game with different figures in two tables."""
    figures = ["mean_return", "std_return", "runtime_minutes"]
    key = ["system", "hardware", "env_id"]
    different = returns.drop_duplicates([*key, *figures])
    for _, rows in different.loc[different.duplicated(key, keep=False)].groupby(key, sort=False):
        distinct = rows.to_dict("records")
        values = [f"{row['table']}: {row['mean_return']:.2f} ± {row['std_return']:.2f}" for row in distinct]
        tables = ", ".join(row["table"] for row in distinct)
        yield _finding("two values", {**distinct[0], "table": tables}, "; ".join(values))


def _two_labels(returns: pd.DataFrame) -> Iterator[dict]:
    """Two labels on one hardware whose figures are the same in every game of a table."""
    named: dict[tuple, dict] = {}
    for table, system, hardware in returns[["table", "system", "hardware"]].drop_duplicates().to_numpy():
        rows = select(returns, table, system, hardware)
        figures = (hardware, *rows["mean_return"], *rows["std_return"])
        first = named.setdefault(figures, {"table": table, "system": system, "hardware": hardware})
        if first["system"] != system:
            row = {
                "table": f"{first['table']}, {table}",
                "system": f"{first['system']} / {system}",
                "hardware": hardware,
            }
            yield _finding("two labels", row, f"the same figures in {len(rows)} of {len(rows)} games")


def _near_labels(returns: pd.DataFrame) -> Iterator[dict]:
    """Labels that differ in upper and lower case alone, on one hardware, with the number of games that differ."""
    for _, rows in returns.groupby([returns["system"].str.casefold(), "hardware"], sort=False):
        labels = list(dict.fromkeys(rows["system"]))
        if len(labels) > 1:
            first, second = (rows.loc[rows["system"] == label].drop_duplicates("env_id") for label in labels[:2])
            both = first.merge(second, on="env_id", suffixes=("", "_second"))
            differ = int((both["mean_return"] != both["mean_return_second"]).sum())
            tables = f"{both['table'].iloc[0]}, {both['table_second'].iloc[0]}"
            row = {"table": tables, "system": " / ".join(labels), "hardware": both["hardware"].iloc[0]}
            yield _finding("labels differ in case", row, f"mean return differs in {differ} of {len(both)} games")


def _missing_games(returns: pd.DataFrame, tables: pd.DataFrame) -> Iterator[dict]:
    """Systems with fewer games than their table declares."""
    declared = tables["games_declared"].to_dict()
    for table, system, hardware in returns[["table", "system", "hardware"]].drop_duplicates().to_numpy():
        games = set(select(returns, table, system, hardware).index)
        if len(games) != declared[table]:
            lacking = ", ".join(game for game in ATARI57 if game not in games)
            row = {"table": table, "system": system, "hardware": hardware}
            yield _finding("missing games", row, f"{len(games)} of {declared[table]} games: no {lacking}")


def _zero_std(returns: pd.DataFrame) -> Iterator[dict]:
    """A standard deviation of exactly zero at a mean that is not zero: one seed, or seeds that agree to the cent."""
    for row in returns.query("std_return == 0 and mean_return != 0").to_dict("records"):
        yield _finding("zero std", row, f"{row['mean_return']:.2f} ± 0.00")


def _finding(kind: str, row: dict, detail: str) -> dict:
    return {column: row.get(column, "") for column in CONTRADICTION_COLUMNS} | {"kind": kind, "detail": detail}
