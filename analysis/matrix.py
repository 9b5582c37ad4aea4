"""Score matrices with named axes: one system's score per game and seed, checked when they are stated."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

UNITS = ("hns", "raw")

# What no normalised Atari score has reached. Median over games: MuZero's 20.4 (Schrittwieser et al. 2020) is the
# field's order of magnitude, while random play in raw points already has a median of 173 over 57 games. One game:
# VideoPinball's 999,999 points are 697 under a table that puts random play at 16,256.9 and humans at 17,667.9.
LARGEST_MEDIAN_HNS = 50.0  # asked of 5 games and more (the smallest named subset): PPO plays Atlantis at 65
FEWEST_FOR_MEDIAN = 5
LARGEST_HNS = 1000.0


@dataclass(frozen=True, eq=False)
class ScoreMatrix:
    """Scores of one system: env_id -> one score per seed. Games may have different numbers of seeds; they are sorted.

    `seeds` names each score's seed where known, which pairing needs. `unit` is `hns` (human-normalised, 1.0 = human) or
    `raw` (points). Scores stated as `hns` that are too large for it are refused, unless `allow_large`.
    """

    system: str
    scores: Mapping[str, np.ndarray]
    seeds: Mapping[str, tuple] | None = None
    unit: str = "hns"
    allow_large: bool = False

    def __post_init__(self):
        if not isinstance(self.system, str) or not self.system:
            raise ValueError(f"score matrix: system is {self.system!r}; allowed: a name")
        if self.unit not in UNITS:
            raise ValueError(f"{self.system}: unit is {self.unit!r}; allowed: {', '.join(UNITS)}")
        if not self.scores:
            raise ValueError(f"{self.system}: the score matrix has no game; at least one is needed")
        scores = {str(env_id): _checked(self.system, env_id, self.scores[env_id]) for env_id in _sorted(self.scores)}
        object.__setattr__(self, "scores", scores)
        if self.seeds is not None:
            object.__setattr__(self, "seeds", _checked_seeds(self.system, self.seeds, scores))
        if self.unit == "hns" and not self.allow_large:
            _refuse_raw_as_normalised(self)

    @property
    def env_ids(self) -> tuple[str, ...]:
        return tuple(self.scores)

    @property
    def num_games(self) -> int:
        return len(self.scores)

    @property
    def num_runs(self) -> int:
        return sum(len(scores) for scores in self.scores.values())

    @property
    def num_seeds(self) -> tuple[int, int]:
        """Fewest and most seeds of a game."""
        sizes = [len(scores) for scores in self.scores.values()]
        return min(sizes), max(sizes)

    def describe(self) -> str:
        """Such as `57 games x 3 seeds`, for captions."""
        fewest, most = self.num_seeds
        seeds = str(most) if fewest == most else f"{fewest} to {most}"
        return f"{self.num_games} game{'s' * (self.num_games > 1)} x {seeds} seed{'s' * (most > 1)}"

    def subset(self, env_ids: Iterable[str]) -> "ScoreMatrix":
        """The named games only. Raises ValueError that names those missing."""
        wanted = list(env_ids)
        missing = [env_id for env_id in wanted if env_id not in self.scores]
        if missing:
            raise ValueError(f"{self.system}: no scores of {', '.join(missing)}; it has {', '.join(self.env_ids)}")
        seeds = None if self.seeds is None else {env_id: self.seeds[env_id] for env_id in wanted}
        scores = {env_id: self.scores[env_id] for env_id in wanted}
        return ScoreMatrix(self.system, scores, seeds, self.unit, self.allow_large)


def from_frame(
    frame: pd.DataFrame, system: str, *, value: str = "hns", unit: str | None = None, allow_large: bool = False
) -> ScoreMatrix:
    """Tidy rows env_id, seed, `value` -> ScoreMatrix. `unit` is `hns` for a column of that name, else `raw`."""
    missing = [column for column in ("env_id", "seed", value) if column not in frame.columns]
    if missing:
        found = ", ".join(map(str, frame.columns))
        raise ValueError(
            f"{system}: column {', '.join(missing)} is missing; found {found}; needed: one row per game and seed with "
            f"env_id, seed, {value} (a table of games by seeds is melted first)"
        )
    _refuse_mixtures(frame, system)
    repeated = frame[frame.duplicated(["env_id", "seed"])]
    if len(repeated):
        first = repeated.iloc[0]
        raise ValueError(
            f"{system}: {first['env_id']} seed {first['seed']} has more than one score; allowed: one per game and seed"
        )
    games = {str(env_id): rows.sort_values("seed") for env_id, rows in frame.groupby("env_id", sort=True)}
    return ScoreMatrix(
        system,
        {env_id: rows[value].to_numpy() for env_id, rows in games.items()},
        {env_id: tuple(rows["seed"].tolist()) for env_id, rows in games.items()},
        unit or ("hns" if value == "hns" else "raw"),
        allow_large,
    )


def from_array(
    array: np.ndarray, system: str, *, env_ids: Iterable[str], seeds: Iterable, unit: str = "hns", allow_large=False
) -> ScoreMatrix:
    """A full array [runs, games] (rliable's shape) with both axes named -> ScoreMatrix."""
    array, games, runs = np.asarray(array), list(env_ids), list(seeds)
    if any(not isinstance(env_id, str) for env_id in games):
        raise ValueError(f"{system}: env_ids are {games[:3]} ...; allowed: names of games (are the axes swapped?)")
    if array.shape != (len(runs), len(games)):
        swapped = array.shape == (len(games), len(runs))
        raise ValueError(
            f"{system}: the array is {' x '.join(map(str, array.shape))}; allowed: {len(runs)} seeds x {len(games)} "
            f"games{' (it is transposed)' if swapped else ''}"
        )
    if len(set(games)) != len(games):
        raise ValueError(f"{system}: env_ids name a game twice; name each once")
    scores = {env_id: array[:, column] for column, env_id in enumerate(games)}
    return ScoreMatrix(system, scores, {env_id: tuple(runs) for env_id in games}, unit, allow_large)


def same_games(matrices: Sequence[ScoreMatrix]) -> None:
    """Raise ValueError unless all have the same games and the same unit, and different names."""
    if not matrices:
        raise ValueError("no score matrix was given; at least one is needed")
    first, *others = matrices
    names = [first.system] + [other.system for other in others]
    if len(set(names)) != len(names):
        raise ValueError(f"systems {', '.join(names)}: a name occurs twice; name each system once")
    for other in others:
        if other.unit != first.unit:
            raise ValueError(f"{first.system} is in {first.unit}, {other.system} in {other.unit}; allowed: one unit")
        differing = sorted(set(first.env_ids) ^ set(other.env_ids))
        if differing:
            raise ValueError(
                f"{first.system} and {other.system} do not have the same games: only one has {', '.join(differing)}; "
                "choose the games by `subset`"
            )


def _sorted(scores: Mapping) -> list[str]:
    wrong = [env_id for env_id in scores if not isinstance(env_id, str)]
    if wrong:
        raise ValueError(f"score matrix: {wrong[0]!r} stands where a game's name belongs (are the axes swapped?)")
    return sorted(scores)


def _checked(system: str, env_id: str, scores) -> np.ndarray:
    found = np.asarray(scores)
    if found.ndim != 1 or not found.size:
        raise ValueError(
            f"{system}: {env_id} has scores of shape {found.shape}; allowed: one score per seed, at least 1"
        )
    for score in found if found.dtype.kind not in "iuf" else ():
        if isinstance(score, bool) or not isinstance(score, int | float | np.number):
            raise ValueError(f"{system}: {env_id} has the score {score!r}, a {type(score).__name__}; allowed: numbers")
    values = found.astype(np.float64)
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise ValueError(f"{system}: {env_id} has the score {bad}; allowed: finite numbers (leave a missing run out)")
    values.setflags(write=False)
    return values


def _checked_seeds(system: str, seeds: Mapping, scores: Mapping[str, np.ndarray]) -> dict[str, tuple]:
    for env_id, values in scores.items():
        names = tuple(seeds.get(env_id, ()))
        if len(names) != len(values):
            raise ValueError(
                f"{system}: {env_id} has {len(values)} scores and {len(names)} seeds; name each score's seed"
            )
        if len(set(names)) != len(names):
            raise ValueError(f"{system}: {env_id} has a seed twice among {list(names)}; allowed: one score per seed")
    return {env_id: tuple(seeds[env_id]) for env_id in scores}


def _refuse_mixtures(frame: pd.DataFrame, system: str) -> None:
    for column in ("algorithm", "experiment", "profile", "protocol", "unit"):
        found = frame[column].unique() if column in frame.columns else ()
        if len(found) > 1:
            raise ValueError(
                f"{system}: the rows mix {column} {', '.join(map(str, found))}; allowed: one system's rows"
            )


def _refuse_raw_as_normalised(matrix: ScoreMatrix) -> None:
    means = np.array([scores.mean() for scores in matrix.scores.values()])
    middle, largest = np.median(np.abs(means)), max(np.abs(scores).max() for scores in matrix.scores.values())
    if largest > LARGEST_HNS or (middle > LARGEST_MEDIAN_HNS and len(means) >= FEWEST_FOR_MEDIAN):
        raise ValueError(
            f"{matrix.system}: scores stated as human-normalised reach {largest:g} (median over games {middle:g}), as "
            f"raw points do; allowed: at most {LARGEST_HNS:g} and {LARGEST_MEDIAN_HNS:g}; normalise them, or "
            "state unit='raw', or allow_large=True"
        )
