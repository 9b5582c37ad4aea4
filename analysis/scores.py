"""Human-normalised scores (HNS): which random and human scores a return is measured against, and on which games.

The tables in circulation differ in cells that move aggregates (VideoPinball's random score alone moves the mean HNS of
IMPALA from 1592.5 % to 957.3 %), so a table has a name, a version and a hash, and every product prints them. Imports
the standard library only, so that a launcher can check the names of games with it.
"""

import csv
import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PUBLISHED = Path(__file__).resolve().parents[1] / "baselines" / "published"
SCORE_COLUMNS = ("random_score", "human_score")


class Cell(NamedTuple):
    """One cell in which a table differs from its reference."""

    env_id: str
    column: str
    value: float
    reference: float

    def __str__(self) -> str:
        return f"{self.env_id} {self.column}: {self.value:g}, reference {self.reference:g}"


@dataclass(frozen=True)
class ScoreTable:
    """Random and human score of the 57 games, in each game's own points.

    Raises ValueError for an unknown game, a missing game, a score that is not finite, and human <= random.
    """

    name: str
    version: str
    scores: Mapping[str, tuple[float, float]]

    def __post_init__(self):
        check_games(self.scores, where=f"score table {self.name}")
        if missing := [game for game in ATARI57 if game not in self.scores]:
            raise ValueError(f"score table {self.name} lacks {len(missing)} of the 57 games: {', '.join(missing)}")
        for env_id, (random, human) in self.scores.items():
            if not (math.isfinite(random) and math.isfinite(human) and human > random):
                raise ValueError(
                    f"score table {self.name}, {env_id}: human score {human:g} and random score {random:g}; "
                    "allowed: finite numbers, human above random"
                )

    @property
    def hash(self) -> str:
        """First 12 hex digits of the SHA-256 over the games and their scores; name and version have no part in it."""
        canonical = json.dumps(sorted((game, float(r), float(h)) for game, (r, h) in self.scores.items()))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        return f"{self.name} {self.version} ({self.hash})"

    def hns(self, env_id: str, score):
        """(score - random) / (human - random), a fraction: 1 is human. `score` is a number or an array of any shape."""
        check_games([env_id], where="HNS")
        random, human = self.scores[env_id]
        return (score - random) / (human - random)


def check_games(env_ids: Iterable[str], *, where: str, known: Sequence[str] | None = None) -> None:
    """Raises ValueError naming the first game that is not among `known` (default: the 57), with the nearest names."""
    known = ATARI57 if known is None else known
    for env_id in env_ids:
        if env_id not in known:
            near = difflib.get_close_matches(env_id, known, n=3, cutoff=0.5)
            hint = f"nearest: {', '.join(near)}" if near else f"allowed: {', '.join(known)}"
            raise ValueError(f"{where}: unknown game {env_id!r}; {hint}")


def subset(games: str | Sequence[str]) -> tuple[str, ...]:
    """The games of a named subset or of a list, sorted. Raises ValueError for an unknown name, game or a duplicate."""
    if isinstance(games, str):
        if games not in SUBSETS:
            raise ValueError(f"unknown subset {games!r}; allowed: {', '.join(SUBSETS)} or a list of games")
        return SUBSETS[games]
    check_games(games, where="subset")
    check_once(games, where="subset")
    return tuple(sorted(games))


def check_once(games: Sequence[str], *, where: str) -> None:
    """Raises ValueError naming the games that stand more than once: their runs would count as often."""
    if twice := sorted({game for game in games if list(games).count(game) > 1}):
        raise ValueError(f"{where} names {', '.join(twice)} more than once; allowed: each game once")


def diff(table: ScoreTable, reference: ScoreTable) -> list[Cell]:
    """Every cell in which `table` differs from `reference`, by game; finds the sign errors human > random lets pass."""
    cells = [
        Cell(env_id, column, table.scores[env_id][i], reference.scores[env_id][i])
        for env_id in ATARI57
        for i, column in enumerate(SCORE_COLUMNS)
    ]
    return [cell for cell in cells if cell.value != cell.reference]


def read_table(path: Path, *, name: str | None = None, version: str = "user") -> ScoreTable:
    """A user's own table: CSV with the columns env_id, random_score, human_score. Raises ValueError naming the file."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    needed = ("env_id", *SCORE_COLUMNS)
    found = tuple(rows[0]) if rows else ()
    if missing := [column for column in needed if column not in found]:
        raise ValueError(f"{path}: no column {', '.join(missing)}; needed: {', '.join(needed)}")
    return _table(rows, name=name or path.stem, version=version, where=str(path))


def resolve(table: str) -> ScoreTable:
    """A named table, or a user's own by the path of its CSV. Raises ValueError when it is neither."""
    if table in TABLES:
        return TABLES[table]
    if not Path(table).is_file():
        raise ValueError(f"unknown score table {table!r}; allowed: {', '.join(TABLES)} or the path of a CSV file")
    return read_table(Path(table))


def _table(rows: Iterable[Mapping[str, str]], *, name: str, version: str, where: str) -> ScoreTable:
    scores: dict[str, tuple[float, float]] = {}
    for row in rows:
        env_id = row["env_id"]
        if env_id in scores:
            raise ValueError(f"{where}: {env_id} stands twice; allowed: one row a game")
        scores[env_id] = (_number(row, "random_score", where), _number(row, "human_score", where))
    try:
        return ScoreTable(name, version, scores)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _number(row: Mapping[str, str], column: str, where: str) -> float:
    try:
        return float(row[column])
    except (TypeError, ValueError):
        raise ValueError(f"{where}, {row['env_id']}: {column} is {row[column]!r}; allowed: a number") from None


def _published_rows(table: str, path: Path = PUBLISHED / "atari57_scores.csv") -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["table"] == table]


DEFAULT = "atari57_dqn_zoo"
ATARI57 = tuple(row["env_id"] for row in _published_rows(DEFAULT))
SUBSETS: dict[str, tuple[str, ...]] = {
    "atari57": ATARI57,
    # The 55 of Gym's original list that have human scores (rliable's and Dopamine's set): no Defender, no Surround.
    "atari55": tuple(game for game in ATARI57 if game not in ("Defender-v5", "Surround-v5")),
    # Aitchison et al. 2023, "Atari-5": five games that predict the median over 57.
    "atari5": ("BattleZone-v5", "DoubleDunk-v5", "NameThisGame-v5", "Phoenix-v5", "Qbert-v5"),
}
# Sources of each table: baselines/published/PROVENANCE.md
TABLES: dict[str, ScoreTable] = {
    name: _table(_published_rows(name), name=name, version=version, where="atari57_scores.csv")
    for name, version in (("atari57_dqn_zoo", "v1"), ("atari57_pinball_zero", "v1"))
}
