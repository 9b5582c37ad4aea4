"""How often `compare` errs, on real seeds: finding what is not there, and missing what is."""

from functools import cache

import numpy as np
import pytest
from curves_of_others import needed, ppo_curves

from analysis import curve_tests
from analysis.bootstrap import Resampling

NUM_BINS = 10
LEVEL = 0.05


@cache
def games():
    """env_id -> HNS (5 seeds, bins) of the PPO curves."""
    frame = ppo_curves()
    bins = ((frame["frames"] - 1) * NUM_BINS // frame["frames"].max()).astype(int)
    means = frame.assign(bin=bins).groupby(["env_id", "seed", "bin"])["hns"].mean()
    return {str(env_id): part.to_numpy().reshape(-1, NUM_BINS) for env_id, part in means.groupby("env_id", sort=True)}


def chosen(rng, num_games):
    return rng.choice(sorted(games()), num_games, replace=False)


def p_of_iqm(a, b, seed):
    return curve_tests.iqm_area_test(a, b, "A and B", Resampling(repetitions=199, seed=seed)).p_value


def type_1_error(num_splits, num_games=8):
    """Share of splits of each game's five seeds, 3 and 2, that are called different."""
    rng, found = np.random.default_rng(0), 0
    for split in range(num_splits):
        parts = {env_id: games()[env_id][rng.permutation(5)] for env_id in chosen(rng, num_games)}
        a = {env_id: values[:3] for env_id, values in parts.items()}
        b = {env_id: values[3:] for env_id, values in parts.items()}
        found += p_of_iqm(a, b, split) <= LEVEL
    return found / num_splits


def power_of_iqm(num_seeds, num_trials, shift=1.1):
    """Share of trials in which B, `shift` times A in HNS, is found different over all games; seeds drawn with
    replacement."""
    rng, found = np.random.default_rng(num_seeds), 0
    for trial in range(num_trials):
        sides = [
            {env_id: values[rng.integers(5, size=num_seeds)] for env_id, values in games().items()} for _ in range(2)
        ]
        b = {env_id: shift * values for env_id, values in sides[1].items()}
        found += p_of_iqm(sides[0], b, trial) <= LEVEL
    return found / num_trials


def power_on_a_game(num_seeds, num_trials, shift=1.1):
    """The same on one game, mean over games."""
    rng, found = np.random.default_rng(num_seeds), 0
    for values in games().values():
        for _ in range(num_trials):
            a, b = (values[rng.integers(5, size=num_seeds)] for _ in range(2))
            found += curve_tests.area_test(a, shift * b).p_value <= LEVEL
    return found / num_trials / len(games())


@needed
def test_splits_of_real_seeds_are_rarely_called_different():
    """A quick look: 200 splits, five standard errors about 5 %."""
    assert type_1_error(200) < 0.05 + 5 * np.sqrt(0.05 * 0.95 / 200)


@needed
@pytest.mark.slow
def test_type_1_error_on_2000_splits():
    assert 0.03 <= type_1_error(2000) <= 0.07


@needed
@pytest.mark.slow
def test_power_grows_with_seeds_and_three_on_one_game_have_none():
    """What docs/is-my-curve-different.md prints."""
    assert power_on_a_game(3, 4) == 0.0
    assert power_on_a_game(5, 4) < power_on_a_game(5, 4, shift=2.0)
    assert power_of_iqm(2, 40) < power_of_iqm(10, 40)
