"""Point estimates of a score matrix, as rliable 1.2.0 defines them (Agarwal et al. 2021, arXiv 2108.13264).

`scores` maps env_id to that game's scores [seeds]. Where games have the same number of seeds, the figures are
rliable's; where not, what rliable takes over games' means stays so, and what it takes over all runs does too.
"""

from collections.abc import Mapping

import numpy as np

Scores = Mapping[str, np.ndarray]

TRIMMED = 0.25  # of the runs at either end: the interquartile mean
GAP_TARGET = 1.0  # human level


def game_means(scores: Scores) -> np.ndarray:
    """Mean over seeds of each game [games]."""
    return np.array([np.mean(values) for values in scores.values()])


def all_runs(scores: Scores) -> np.ndarray:
    """The scores of all games in one row [runs]."""
    return np.concatenate(list(scores.values()))


def median(scores: Scores) -> float:
    """Median over games of the game's mean."""
    return float(np.median(game_means(scores)))


def mean(scores: Scores) -> float:
    """Mean over games of the game's mean."""
    return float(np.mean(game_means(scores)))


def iqm(scores: Scores) -> float:
    """Mean of the middle half of all runs: a quarter of them, rounded down, is cut off at either end."""
    runs = np.sort(all_runs(scores))
    cut = int(TRIMMED * runs.size)
    return float(np.mean(runs[cut : runs.size - cut]))


def optimality_gap(scores: Scores) -> float:
    """How far all runs fall short of human level on average, what exceeds it not counting."""
    return float(GAP_TARGET - np.mean(np.minimum(all_runs(scores), GAP_TARGET)))


AGGREGATES = {"median": median, "iqm": iqm, "mean": mean, "optimality_gap": optimality_gap}


def wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """1 where the run of x scores more than the run of y, 1/2 where the same, else 0. [X], [Y] -> [X, Y]."""
    return (x[:, None] > y[None, :]) + 0.5 * (x[:, None] == y[None, :])


def probability_of_improvement(x: Scores, y: Scores) -> float:
    """Probability that a run of x scores more than a run of y on the same game, ties half, mean over games."""
    return float(np.mean([np.mean(wins(x[env_id], y[env_id])) for env_id in x]))


def score_profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
    """Share of all runs that score above each threshold (run-score distribution) [thresholds]."""
    return np.mean(all_runs(scores)[None, :] > np.asarray(thresholds)[:, None], axis=1)


def average_score_profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
    """Share of games whose mean lies above each threshold (average-score distribution) [thresholds]."""
    return np.mean(game_means(scores)[None, :] > np.asarray(thresholds)[:, None], axis=1)
