"""Aggregates of per-game means, and the only intervals that such means allow.

Where the seeds are not published there is nothing to resample within a game. What can be resampled is the games: the
interval then says how far an aggregate depends on which games were picked, each game carrying whatever noise its seeds
had. It is not an interval over seeds and is named accordingly wherever it is printed. Over seeds, a published standard
deviation gives an interval for the mean alone, which is linear in the games, and that for a declared number of seeds.

Scores: float arrays [..., G], one mean HNS per game (a fraction), the games in one fixed (sorted) order.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy import stats

REPETITIONS = 50_000
LEVEL = 0.95

Statistic = Callable[..., np.ndarray]


def median(scores: np.ndarray) -> np.ndarray:
    return np.median(scores, axis=-1)


def iqm(scores: np.ndarray) -> np.ndarray:
    """Mean of the games left when floor(G / 4) are cut at either end (scipy's trim_mean at 0.25)."""
    num_games = scores.shape[-1]
    cut = num_games // 4
    return np.sort(scores, axis=-1)[..., cut : num_games - cut].mean(axis=-1)


def mean(scores: np.ndarray) -> np.ndarray:
    return np.mean(scores, axis=-1)


def optimality_gap(scores: np.ndarray) -> np.ndarray:
    """Mean distance below human (HNS 1); a game above human counts as 0."""
    return np.mean(np.maximum(1.0 - scores, 0.0), axis=-1)


AGGREGATES: dict[str, Statistic] = {"median": median, "iqm": iqm, "mean": mean, "optimality_gap": optimality_gap}


def interval(statistic: Statistic, *scores: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """Percentile bootstrap over games. Several arrays [G] are resampled together: game by game, they are pairs.

    The draws depend on the number of games alone, so the result does not depend on what else is computed or in which
    order. Raises ValueError for fewer than two games and for arrays of different length.
    """
    num_games = {len(values) for values in scores}
    if len(num_games) != 1 or min(num_games) < 2:
        raise ValueError(f"an interval over games has {sorted(num_games)} games; allowed: one number of at least 2")
    draws = _draws(num_games.pop())
    low, high = np.quantile(statistic(*(values[draws] for values in scores)), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def mean_over_seeds(
    scores: np.ndarray, std_ddof0: np.ndarray, num_seeds: int, level: float = LEVEL
) -> tuple[float, float]:
    """Interval of the mean over these games (fixed), over seeds, from published stds [G] in HNS.

    The stds are of the population form; their squares times n / (n - 1) are unbiased variances of a seed, and divided
    by n the variances of a game's mean. Games are independent, so the variance of the mean over games is their sum over
    G^2; Student's t with Satterthwaite's degrees of freedom, n - 1 a game. Raises ValueError for fewer than two seeds.
    """
    if num_seeds < 2:
        raise ValueError(f"num_seeds is {num_seeds}; allowed: at least 2, one seed has no spread")
    variances = std_ddof0**2 * num_seeds / (num_seeds - 1) / num_seeds
    centre, total = float(np.mean(scores)), float(variances.sum())
    if total == 0:
        return centre, centre
    dof = total**2 / float((variances**2).sum() / (num_seeds - 1))
    half = float(stats.t.ppf((1 + level) / 2, dof)) * total**0.5 / len(scores)
    return centre - half, centre + half


@lru_cache(maxsize=4)
def _draws(num_games: int) -> np.ndarray:
    """Indices of games [REPETITIONS, G], uniform with replacement. Stream = f(number of games)."""
    generator = np.random.Generator(np.random.Philox(key=num_games))
    return generator.integers(num_games, size=(REPETITIONS, num_games))
