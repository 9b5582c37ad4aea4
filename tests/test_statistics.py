"""Point estimates: by hand, against rliable 1.2.0, and on ragged matrices against their definition."""

import curves_of_others
import numpy as np
import pytest
import scipy.stats
from curves_of_others import array
from rliable import metrics
from rliable.library import average_score_distributions, score_distributions

from analysis import statistics

RLIABLE = {
    "median": metrics.aggregate_median,
    "iqm": metrics.aggregate_iqm,
    "mean": metrics.aggregate_mean,
    "optimality_gap": metrics.aggregate_optimality_gap,
}
THRESHOLDS = np.linspace(0.0, 8.0, 81)


def as_scores(runs_by_games):
    return {f"game{i:02}": column for i, column in enumerate(np.asarray(runs_by_games).T)}


def test_by_hand():
    scores = {"a": np.array([0.0, 0.5]), "b": np.array([1.0, 2.0]), "c": np.array([4.0, 6.0])}
    assert statistics.median(scores) == 1.5
    assert statistics.mean(scores) == pytest.approx((0.25 + 1.5 + 5.0) / 3, abs=1e-15)
    assert statistics.iqm(scores) == (0.5 + 1.0 + 2.0 + 4.0) / 4  # one of six is cut at either end
    assert statistics.optimality_gap(scores) == pytest.approx(1 - (0.0 + 0.5 + 4 * 1.0) / 6, abs=1e-15)
    assert statistics.score_profile(scores, [0.0, 1.0, 5.0]).tolist() == [5 / 6, 3 / 6, 1 / 6]
    assert statistics.average_score_profile(scores, [0.0, 1.5, 5.0]).tolist() == [1.0, 1 / 3, 0.0]


def test_probability_of_improvement_by_hand():
    x = {"a": np.array([1.0, 3.0]), "b": np.array([2.0])}
    y = {"a": np.array([1.0, 2.0]), "b": np.array([5.0, 1.0])}
    assert statistics.probability_of_improvement(x, y) == ((0.5 + 0 + 1 + 1) / 4 + 1 / 2) / 2
    assert statistics.probability_of_improvement(x, x) == 0.5


@pytest.mark.parametrize("shape", [(3, 57), (5, 56), (1, 4), (2, 1), (7, 10)])
def test_equal_to_rliable_on_random_matrices(shape):
    rng = np.random.default_rng(shape)
    x, y = rng.lognormal(size=shape), rng.lognormal(0.3, size=shape).round(1)  # rounded for ties
    _assert_equal_to_rliable(x, y)


@curves_of_others.needed
@pytest.mark.parametrize("load", [curves_of_others.ppo, curves_of_others.moolib])
def test_equal_to_rliable_on_real_curves(load):
    scores = array(load())
    _assert_equal_to_rliable(scores, scores[:, ::-1])


def _assert_equal_to_rliable(x, y):
    for name, reference in RLIABLE.items():
        assert statistics.AGGREGATES[name](as_scores(x)) == pytest.approx(reference(x), rel=1e-12, abs=1e-12), name
    improved = statistics.probability_of_improvement(as_scores(x), as_scores(y))
    assert improved == pytest.approx(metrics.probability_of_improvement(x, y), abs=1e-12)
    profile = statistics.score_profile(as_scores(x), THRESHOLDS)
    np.testing.assert_allclose(profile, score_distributions(x, THRESHOLDS), atol=1e-12)
    profile = statistics.average_score_profile(as_scores(x), THRESHOLDS)
    np.testing.assert_allclose(profile, average_score_distributions(x, THRESHOLDS), atol=1e-12)


def test_ragged_seeds_follow_the_definitions():
    rng = np.random.default_rng(0)
    scores = {f"game{i}": rng.lognormal(size=rng.integers(1, 8)) for i in range(20)}
    runs = np.concatenate(list(scores.values()))
    means = [np.mean(values) for values in scores.values()]
    assert statistics.iqm(scores) == pytest.approx(scipy.stats.trim_mean(runs, 0.25), abs=1e-12)
    assert statistics.median(scores) == pytest.approx(np.median(means), abs=1e-12)
    assert statistics.mean(scores) == pytest.approx(np.mean(means), abs=1e-12)
    assert statistics.optimality_gap(scores) == pytest.approx(1 - np.minimum(runs, 1).mean(), abs=1e-12)
