"""Two systems against each other: differences with intervals, permutation tests, and the seeds that a verdict needs.

Every test knows its power: two-sided, three seeds a side cannot get below p = 0.10, whatever the scores.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from analysis import kernels, statistics
from analysis.bootstrap import (
    DEFAULT,
    Cells,
    Draw,
    Resampling,
    bootstrap_draw,
    for_each_chunk,
    interval,
    note_on_seeds,
    replicates,
    stream_keys,
)
from analysis.curve_tests import MOST_ENUMERATED
from analysis.matrix import ScoreMatrix, same_games

OVERALL = "all games"

_ROUNDING = 1e-9  # two relabelings whose statistics differ by less, relative to the scores, are the same


@dataclass(frozen=True, kw_only=True)
class Power:
    """What a verdict is to reach: chance `alpha` to see a difference where none is, `power` to see one that is."""

    alpha: float = 0.05
    power: float = 0.8  # the customary value (Cohen 1988)


def improvement(pairs: Sequence[tuple[ScoreMatrix, ScoreMatrix]], *, resampling: Resampling = DEFAULT) -> pd.DataFrame:
    """Probability that x's run scores more than y's on the same game, mean over games, one row per pair (x, y).

    Columns: system_x, system_y, estimate, low, high, num_games, num_runs_x, num_runs_y, note.
    """
    rows = []
    for x, y in pairs:
        same_games((x, y))
        estimate = statistics.probability_of_improvement(x.scores, y.scores)
        replicated, sizes = _improvement_replicates(x, y, resampling)
        low, high = interval(replicated, sizes, resampling)
        rows.append({"system_x": x.system, "system_y": y.system, "estimate": estimate, "low": low, "high": high})
        rows[-1] |= {"num_games": x.num_games, "num_runs_x": x.num_runs, "num_runs_y": y.num_runs}
        rows[-1] |= {"note": note_on_seeds(sizes)}
    return pd.DataFrame(rows)


def compare_games(
    x: ScoreMatrix,
    y: ScoreMatrix,
    *,
    paired: bool = False,
    power: Power = Power(),
    resampling: Resampling = DEFAULT,
) -> pd.DataFrame:
    """Difference of means, x - y, on each game, in the unit of the scores, one row per game.

    `paired` compares run with run of the same seed. Columns: env_id, mean_x, mean_y, difference, low, high, p_value,
    smallest_p (that so many seeds can reach), num_seeds_x, num_seeds_y, note, seeds_needed (a side, for a verdict on a
    difference of this size after the correction), p_holm (corrected for the number of games).
    """
    same_games((x, y))
    alpha = power.alpha / x.num_games  # Holm's first step, which a single differing game must pass
    rows = []
    for env_id in x.env_ids:
        game_x, game_y = x.subset([env_id]), y.subset([env_id])
        row: dict[str, Any] = {"env_id": env_id} | _compare(game_x, game_y, "mean", paired, resampling)
        needed = seeds_needed(row["difference"], row.pop("spread"), Power(alpha=alpha, power=power.power), paired)
        rows.append(row | {"seeds_needed": needed})
    frame = pd.DataFrame(rows).drop(columns="statistic").rename(columns={"x": "mean_x", "y": "mean_y"})
    return frame.assign(p_holm=holm(frame["p_value"].to_numpy()))


def compare_overall(
    x: ScoreMatrix,
    y: ScoreMatrix,
    *,
    names: Sequence[str] = tuple(statistics.AGGREGATES),
    paired: bool = False,
    power: Power = Power(),
    resampling: Resampling = DEFAULT,
) -> pd.DataFrame:
    """Difference of each named aggregate, x - y, over all games, one row per aggregate.

    Columns: env_id (`all games`), statistic, x, y, difference, low, high, p_value, smallest_p, num_seeds_x, num_seeds_y
    (the fewest of a game), seeds_needed, note. Runs are relabeled within their game.
    """
    same_games((x, y))
    rows = []
    for name in names:
        row: dict[str, Any] = {"env_id": OVERALL} | _compare(x, y, name, paired, resampling)
        needed = seeds_needed(row["difference"], row.pop("spread"), power, paired, x.num_games)
        rows.append(row | {"seeds_needed": needed})
    return pd.DataFrame(rows)


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm's (1979) step-down correction: p-values as they stand when all tests are made at once."""
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(factors * p_values[order]), 1.0)
    return corrected


def smallest_p(num_x: int, num_y: int, *, paired: bool = False) -> float:
    """The smallest two-sided permutation (and Mann-Whitney, or sign) p of one game with so many seeds and no ties."""
    return min(1.0, 2 / (2**num_x if paired else math.comb(num_x + num_y, num_x)))


def seeds_needed(difference: float, spread: float, power: Power, paired: bool = False, num_games: int = 1) -> float:
    """Seeds a side at which a difference of this size is found; NaN where it is 0 or its spread is not known.

    The larger of what a permutation test needs to be able to reach alpha, and of what the spread needs by the normal
    approximation. `spread` is the standard error of the difference times the root of the number of seeds.
    """
    attainable = next(n for n in itertools.count(2) if _smallest_of_all(n, num_games, paired) <= power.alpha)
    if difference == 0 or not math.isfinite(spread):
        return math.nan
    quantiles = NormalDist().inv_cdf(1 - power.alpha / 2) + NormalDist().inv_cdf(power.power)
    return float(max(attainable, math.ceil((quantiles * spread / difference) ** 2)))


def _smallest_of_all(num_seeds: int, num_games: int, paired: bool) -> float:
    return 2 * (smallest_p(num_seeds, num_seeds, paired=paired) / 2) ** num_games


def _compare(x: ScoreMatrix, y: ScoreMatrix, name: str, paired: bool, resampling: Resampling) -> dict[str, Any]:
    """One row of a comparison, with `spread` for `seeds_needed`."""
    if paired:
        x, y = _paired(x, y)
    estimate = statistics.AGGREGATES[name]
    value_x, value_y = estimate(x.scores), estimate(y.scores)
    sizes = np.minimum(_sizes(x), _sizes(y))
    differences = _bootstrap_differences(x, y, name, paired, resampling)
    low, high = interval(differences, np.maximum(_sizes(x), _sizes(y)), resampling)
    p_value, smallest = _permutation_test(x, y, name, paired, resampling)
    fewest = int(sizes.min())
    # A resample of n runs has (n - 1) / n of the variance; with one seed, there is no spread to go by.
    spread = float(np.std(differences)) * fewest / math.sqrt(fewest - 1) if fewest > 1 else math.nan
    return {
        "statistic": name,
        "x": value_x,
        "y": value_y,
        "difference": value_x - value_y,
        "low": low,
        "high": high,
        "p_value": p_value,
        "smallest_p": smallest,
        "num_seeds_x": x.num_seeds[0],
        "num_seeds_y": y.num_seeds[0],
        "spread": spread,
        "note": note_on_seeds(sizes),
    }


def _sizes(matrix: ScoreMatrix) -> np.ndarray:
    return np.array([len(scores) for scores in matrix.scores.values()])


def _paired(x: ScoreMatrix, y: ScoreMatrix) -> tuple[ScoreMatrix, ScoreMatrix]:
    """Both with each game's runs in the order of their seeds, which must be the same."""
    if x.seeds is None or y.seeds is None:
        raise ValueError(f"{x.system} and {y.system}: a paired comparison needs the seeds of both; found scores alone")
    for env_id in x.env_ids:
        alone = sorted(set(x.seeds[env_id]) ^ set(y.seeds[env_id]))
        if alone:
            raise ValueError(
                f"{x.system} and {y.system}: a paired comparison needs the same seeds of both; on {env_id} only one "
                f"has {', '.join(map(str, alone))}"
            )
    return _by_seed(x), _by_seed(y)


def _by_seed(matrix: ScoreMatrix) -> ScoreMatrix:
    assert matrix.seeds is not None
    orders = {env_id: np.argsort(seeds) for env_id, seeds in matrix.seeds.items()}
    scores = {env_id: matrix.scores[env_id][order] for env_id, order in orders.items()}
    seeds = {env_id: tuple(matrix.seeds[env_id][i] for i in order) for env_id, order in orders.items()}
    return ScoreMatrix(matrix.system, scores, seeds, matrix.unit, matrix.allow_large)


def _bootstrap_differences(
    x: ScoreMatrix, y: ScoreMatrix, name: str, paired: bool, resampling: Resampling
) -> np.ndarray:
    """Replicates of the difference [repetitions]: both resampled on their own, or pair by pair."""
    both = " and ".join(sorted((x.system, y.system)))
    replicated = []
    for matrix in (x, y):
        cells = Cells.of(matrix.scores, keep_order=paired)
        draw = bootstrap_draw(both if paired else matrix.system, cells, resampling)
        replicated.append(replicates(cells, [name], draw=draw, resampling=resampling)[name][0])
    return replicated[0] - replicated[1]


def _permutation_test(
    x: ScoreMatrix, y: ScoreMatrix, name: str, paired: bool, resampling: Resampling
) -> tuple[float, float]:
    """Two-sided p-value of the difference (twice the smaller one-sided one) and the smallest one attainable."""
    runs_x, runs_y = statistics.all_runs(x.scores), statistics.all_runs(y.scores)
    observed = statistics.AGGREGATES[name](x.scores) - statistics.AGGREGATES[name](y.scores)
    tolerance = _ROUNDING * max(np.abs(runs_x).max(), np.abs(runs_y).max())
    relabelings = math.prod(_relabelings(n, m, paired) for n, m in zip(_sizes(x), _sizes(y), strict=True))
    if x.num_games == 1 and name == "mean" and relabelings <= MOST_ENUMERATED:
        null, itself = _enumerated(runs_x, runs_y, paired), 0
    else:
        null, itself = _relabeled(x, y, name, paired, resampling), 1  # what was observed is a relabeling too
    tail = min((null >= observed - tolerance).sum(), (null <= observed + tolerance).sum()) + itself
    smallest = min(1.0, max(2 / relabelings, 2 * itself / (len(null) + itself)))
    return float(np.clip(2 * tail / (len(null) + itself), smallest, 1.0)), smallest


def _relabelings(num_x: int, num_y: int, paired: bool) -> int:
    return 2 ** int(num_x) if paired else math.comb(int(num_x + num_y), int(num_x))


def _enumerated(x: np.ndarray, y: np.ndarray, paired: bool) -> np.ndarray:
    """The difference of means under every relabeling of one game's runs [relabelings]."""
    if paired:
        signs = np.array(list(itertools.product((1, -1), repeat=len(x))))
        return signs @ (x - y) / len(x)
    runs = np.concatenate([x, y])
    chosen = np.array(list(itertools.combinations(range(len(runs)), len(x))))
    sums = runs[chosen].sum(axis=1)
    return sums / len(x) - (runs.sum() - sums) / len(y)


def _relabeled(x: ScoreMatrix, y: ScoreMatrix, name: str, paired: bool, resampling: Resampling) -> np.ndarray:
    """The difference under random relabelings within each game (or pair) [repetitions]."""
    pooled = {env_id: _pooled(x.scores[env_id], y.scores[env_id], paired) for env_id in x.env_ids}
    cells = Cells.of(pooled, keep_order=paired)
    groups, taken = _pairs(x) if paired else ({env_id: len(pooled[env_id]) for env_id in x.env_ids}, _sizes(x))
    draw = _label_draw(" and ".join(sorted((x.system, y.system))), groups, np.asarray(taken, np.int64), resampling)
    relabeled_x = replicates(cells, [name], draw=draw, resampling=resampling, sizes=_sizes(x))[name][0]
    relabeled_y = replicates(cells, [name], draw=_others(draw), resampling=resampling, sizes=_sizes(y))[name][0]
    return relabeled_x - relabeled_y


def _pooled(x: np.ndarray, y: np.ndarray, paired: bool) -> np.ndarray:
    """Both systems' runs of a game in one row; pairs side by side, where paired."""
    return np.stack([x, y], axis=1).ravel() if paired else np.concatenate([x, y])


def _pairs(x: ScoreMatrix) -> tuple[dict[str, int], np.ndarray]:
    """Every pair is a group of two, of which one is x's."""
    assert x.seeds is not None
    names = [f"{env_id} seed {seed}" for env_id in x.env_ids for seed in x.seeds[env_id]]
    return dict.fromkeys(names, 2), np.ones(len(names))


def _label_draw(name: str, groups: Mapping[str, int], taken: np.ndarray, resampling: Resampling) -> Draw:
    keys = stream_keys("permutation", name, tuple(groups), resampling)
    starts = np.cumsum([0, *groups.values()])
    return lambda first, weights: kernels.draw_labels(keys, starts, taken, first, weights)


def _others(draw: Draw) -> Draw:
    """The runs that `draw` leaves."""

    def fill(first: int, weights: np.ndarray) -> None:
        draw(first, weights)
        np.subtract(1.0, weights, out=weights)

    return fill


def _improvement_replicates(x: ScoreMatrix, y: ScoreMatrix, resampling: Resampling) -> tuple[np.ndarray, np.ndarray]:
    """The probability in every resample [repetitions], and the number of runs of each game and system [2 G]."""
    cells_x, cells_y = Cells.of(x.scores), Cells.of(y.scores)
    keys = np.concatenate([stream_keys("bootstrap", m.system, m.env_ids, resampling) for m in (x, y)])
    starts = np.concatenate([cells_x.starts, cells_x.starts[-1] + cells_y.starts[1:]])
    wins = statistics.wins(cells_x.scores[0], cells_y.scores[0])
    out = np.empty(resampling.repetitions)

    def use(first: int, last: int, weights: np.ndarray) -> None:
        part = np.empty((len(weights), kernels.LANES))
        kernels.improvement(weights, starts, wins, part)
        out[first:last] = part.ravel()[: last - first]

    def draw(first: int, weights: np.ndarray) -> None:
        kernels.draw_bootstrap(keys, starts, first, weights)

    for_each_chunk(int(starts[-1]), draw, use, resampling)
    return out, np.diff(starts)
