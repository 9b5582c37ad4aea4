import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import divergence
from analysis.divergence import compare_fingerprints, noise_floor, verdict

STEPS = np.array([10.0, 20.0, 30.0, 40.0])


def constant(*levels: float) -> np.ndarray:
    """One seed per level, flat over four bins."""
    return np.repeat(np.array(levels)[:, None], 4, axis=1)


def test_area_is_the_mean_distance_of_the_mean_curves():
    a = np.array([[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 5.0]])  # mean 0 1 2 4
    b = np.array([[1.0, 1.0, 0.0, 4.0]])
    found = divergence.divergence(a, b, STEPS)
    assert found.area == pytest.approx((1 + 0 + 2 + 0) / 4)
    assert (found.largest_gap, found.largest_gap_env_steps, found.compared_share) == (-2.0, 30.0, 1.0)


def test_curves_that_cross_do_not_cancel():
    a, b = np.array([[0.0, 0.0, 1.0, 1.0]]), np.array([[1.0, 1.0, 0.0, 0.0]])
    assert divergence.divergence(a, b, STEPS).area == 1.0
    assert verdict(a, b, 1.0, None).difference == 0.0


def test_gaps_are_not_compared():
    a, b = np.array([[0.0, np.nan, 0.0, 0.0]]), np.array([[1.0, 9.0, 2.0, np.nan]])
    found = divergence.divergence(a, b, STEPS)
    assert (found.area, found.compared_share) == (1.5, 0.5)
    nothing = divergence.divergence(np.full((1, 4), np.nan), b, STEPS)
    assert np.isnan(nothing.area)
    assert nothing.compared_share == 0


def test_noise_floor_over_all_splits_of_four_seeds():
    found = noise_floor([constant(0.0, 1.0, 2.0, 5.0), constant(0.0, 0.0, 0.0)], STEPS)
    # halves with seed 0: {0,1} 0.5 : 3.5, {0,2} 1 : 3, {0,5} 2.5 : 1.5; the set of three seeds has no halves of two
    assert (found.median, found.largest, found.splits, found.seeds_per_side) == (2.0, 3.0, 3, 2)


def test_no_noise_floor_with_three_seeds():
    found = noise_floor([constant(0.0, 1.0, 2.0)], STEPS)
    assert np.isnan(found.median)
    assert found.splits == 0


def test_noise_floor_is_the_same_every_time_beyond_all_splits():
    values = np.random.default_rng(0).standard_normal((12, 4))
    assert noise_floor([values], STEPS) == noise_floor([values], STEPS)
    assert noise_floor([values], STEPS).splits == divergence.MAX_SPLITS


def test_three_seeds_are_never_the_same_however_close():
    word = verdict(constant(1.0, 1.0001, 0.9999), constant(1.0, 1.0001, 0.9999), 0.0, 0.5).word
    assert word == "cannot tell (needs n >= 4 seeds)"


def test_four_close_seeds_are_the_same_within_the_margin():
    found = verdict(constant(1.0, 1.01, 0.99, 1.0), constant(1.0, 1.01, 0.99, 1.02), 0.005, 0.1)
    assert found.word == "same"
    assert -0.1 < found.low < found.difference < found.high < 0.1


def test_no_difference_found_is_not_the_same():
    noisy = constant(0.0, 1.0, 2.0, 3.0)
    found = verdict(noisy, noisy, 0.0, 0.1)
    assert found.difference == 0.0
    assert found.word.startswith("cannot tell (needs n >= ")
    needed = int(found.word.split(">= ")[1].split()[0])
    # Welch at n a side: t(.95, 2n - 2) sqrt(2 * 5/3 / n) < 0.1 from n = 903 on
    assert needed == 903


def test_as_many_seeds_as_there_are_are_never_what_is_needed():
    """A's seeds are equal, so Welch has 3 degrees of freedom, and 2.35 * 1.15 / 2 = 1.36; with the 6 of equal spreads
    4 seeds would be enough: 1.94 * 1.15 / 2 = 1.12."""
    found = verdict(constant(0.0, 0.0, 0.0, 0.0), constant(-1.0, 1.0, -1.0, 1.0), 0.0, 1.21)
    assert found.high == pytest.approx(1.359, abs=5e-4)
    assert found.word == "cannot tell (needs n >= 5 seeds)"


def test_better_and_worse_are_beyond_the_margin_in_the_direction_of_b():
    low, high = constant(0.0, 0.01, 0.0, 0.01), constant(1.0, 1.01, 1.0, 1.01)
    assert verdict(low, high, 1.0, 0.1).word == "better"
    assert verdict(high, low, 1.0, 0.1).word == "worse"
    assert verdict(low, high, 1.0, 2.0).word == "same"


def test_equal_means_of_different_curves_are_not_the_same():
    rising, falling = np.tile([0.0, 0.0, 1.0, 1.0], (4, 1)), np.tile([1.0, 1.0, 0.0, 0.0], (4, 1))
    assert verdict(rising, falling, 1.0, 0.1).word == "cannot tell (the means agree, the curves do not)"


def test_no_margin_no_verdict():
    values = constant(1.0, 1.0, 1.0, 1.0)
    assert verdict(values, values, 0.0, None).word == "cannot tell (the experiment declares no margin)"


def test_one_seed_has_a_difference_without_interval():
    found = verdict(constant(1.0), constant(3.0), 2.0, 0.1)
    assert found.difference == 2.0
    assert np.isnan(found.low)
    assert found.word == "cannot tell (needs n >= 4 seeds)"


def test_interval_is_welchs():
    a, b = np.array([0.1, 0.5, 0.9, 0.4]), np.array([0.8, 0.6, 1.4, 1.2, 0.7])
    found = verdict(constant(*a), constant(*b), 0.5, 0.1)
    low, high = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.9)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def prints(digests: dict[tuple[int, str], str]) -> pd.DataFrame:
    rows = [(update, stage, -1, digest) for (update, stage), digest in digests.items()]
    return pd.DataFrame(rows, columns=["update", "stage", "shard", "digest"])


BASE = {(1, "rollout"): "a", (1, "params"): "b", (2, "rollout"): "c", (2, "params"): "d"}


def test_equal_fingerprints_are_identical_with_the_updates_compared():
    found = compare_fingerprints(prints(BASE), prints(BASE))
    assert (found.identical, found.updates_compared, found.update) == (True, 2, None)


def test_the_first_difference_is_named():
    found = compare_fingerprints(prints(BASE), prints(BASE | {(2, "rollout"): "x", (2, "params"): "y"}))
    assert (found.identical, found.update, found.stage) == (False, 2, "rollout")


def test_a_shorter_run_is_compared_as_far_as_it_goes():
    short = prints({key: digest for key, digest in BASE.items() if key[0] == 1})
    found = compare_fingerprints(prints(BASE), short)
    assert (found.identical, found.updates_compared) == (True, 1)


def test_runs_that_recorded_other_updates_are_compared_where_both_did():
    every_second = prints({key: digest for key, digest in BASE.items() if key[0] == 2})
    found = compare_fingerprints(prints(BASE), every_second)
    assert (found.identical, found.updates_compared) == (True, 1)


def test_nothing_in_common_is_not_identical():
    found = compare_fingerprints(prints(BASE), prints({}))
    assert (found.identical, found.updates_compared, found.update) == (False, 0, None)
