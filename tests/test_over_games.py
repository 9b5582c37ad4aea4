"""Aggregates of per-game means against rliable's, and intervals over games against closed forms."""

import numpy as np
import pytest

from analysis import over_games, statistics
from analysis.over_games import AGGREGATES, interval, mean_over_seeds

SCORES = np.random.default_rng(3).lognormal(size=57)


@pytest.mark.parametrize("num_games", [2, 3, 4, 5, 53, 57])
def test_aggregates_equal_rliables(num_games):
    metrics = pytest.importorskip("rliable.metrics")
    theirs = {
        "median": metrics.aggregate_median, "iqm": metrics.aggregate_iqm,
        "mean": metrics.aggregate_mean, "optimality_gap": metrics.aggregate_optimality_gap,
    }  # fmt: skip
    scores = SCORES[:num_games]
    for name, statistic in AGGREGATES.items():
        assert statistic(scores) == pytest.approx(theirs[name](scores[None]), abs=1e-12)


@pytest.mark.parametrize("num_games", [2, 53, 57])
def test_aggregates_equal_those_of_one_run_a_game(num_games):
    scores = SCORES[:num_games]
    matrix = {f"game {i:02d}": np.array([score]) for i, score in enumerate(scores)}
    for name, statistic in AGGREGATES.items():
        assert statistic(scores) == pytest.approx(statistics.AGGREGATES[name](matrix), abs=1e-12)


def test_aggregates_by_hand():
    scores = np.array([0.0, 0.5, 1.0, 9.0])
    assert {name: float(f(scores)) for name, f in AGGREGATES.items()} == {
        "median": 0.75, "iqm": 0.75, "mean": 2.625, "optimality_gap": 0.375,
    }  # fmt: skip
    stacked = np.stack([scores, scores + 1])
    assert [float(value) for value in over_games.iqm(stacked)] == [0.75, 1.75]


def test_interval_is_seeded_and_nears_the_normal_one_of_a_mean():
    normal = np.random.default_rng(0).normal(size=57)
    low, high = interval(over_games.mean, normal)
    assert (low, high) == interval(over_games.mean, normal)
    half = 1.96 * normal.std() / 57**0.5
    # 3 Monte Carlo standard errors of a 2.5 % quantile at 50,000 draws are about 0.04 standard errors of the mean.
    assert [low, high] == pytest.approx([normal.mean() - half, normal.mean() + half], abs=0.06 * half)


def test_pairs_are_resampled_together():
    low, high = interval(lambda a, b: (a - b).mean(-1), SCORES + 0.25, SCORES)
    assert [low, high] == pytest.approx([0.25, 0.25])
    with pytest.raises(
        ValueError, match=r"an interval over games has \[56, 57\] games; allowed: one number of at least 2"
    ):
        interval(lambda a, b: a.mean(-1), SCORES, SCORES[:56])
    with pytest.raises(ValueError, match=r"has \[1\] games"):
        interval(over_games.mean, SCORES[:1])


def test_mean_over_seeds_converts_the_population_form():
    """Three seeds a game, equal stds: t with 2 G degrees of freedom, standard error std0 * sqrt(3 / 2) / sqrt(3 G)."""
    from scipy.stats import t

    low, high = mean_over_seeds(np.array([1.0, 3.0]), np.array([0.4, 0.4]), 3)
    half = t.ppf(0.975, 4) * 0.4 * (3 / 2) ** 0.5 / (3 * 2) ** 0.5
    assert [low, high] == pytest.approx([2 - half, 2 + half])


def test_mean_over_seeds_equals_the_textbook_interval_of_one_game():
    from scipy.stats import t

    returns = np.array([1.0, 2.0, 6.0])
    low, high = mean_over_seeds(np.array([returns.mean()]), np.array([returns.std(ddof=0)]), 3)
    assert (low, high) == pytest.approx(t.interval(0.95, 2, returns.mean(), returns.std(ddof=1) / 3**0.5))


def test_one_seed_has_no_interval():
    with pytest.raises(ValueError, match="num_seeds is 1; allowed: at least 2"):
        mean_over_seeds(SCORES, SCORES, 1)
    assert mean_over_seeds(np.ones(3), np.zeros(3), 3) == (1.0, 1.0)
