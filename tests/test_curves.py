import numpy as np
import pandas as pd
import pytest

from analysis import curves
from analysis.scores import DEFAULT, TABLES


def curve(env_steps, returns, budget, num_bins) -> pd.DataFrame:
    binned = curves.bin_episodes(np.array(env_steps), np.array(returns, float), budget)
    return curves.run_curve(binned, budget, num_bins)


def test_a_bin_is_the_mean_of_the_episodes_that_ended_in_it():
    found = curve([1, 100, 101, 1000], [2.0, 4.0, 10.0, 7.0], 1000, 10)
    assert found["env_steps"].tolist() == [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]
    assert found["episodes"].tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    np.testing.assert_array_equal(found["episode_return"], [3.0, 10.0, *[np.nan] * 7, 7.0])


def test_coarser_bins_weigh_episodes_not_finer_bins():
    found = curve([1, 2, 3, 100], [0.0, 0.0, 0.0, 8.0], 1000, 10)
    assert found["episode_return"][0] == 2.0  # 8 / 4; a mean of bin means would be 4


def test_a_budget_that_bins_do_not_divide_keeps_every_episode():
    budget = 39_680 + 1
    found = curve([1, budget], [1.0, 5.0], budget, 10)
    assert found["episodes"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(("episodes", "num_bins"), [(1000, 100), (999, 50), (200, 20), (5, 10)])
def test_the_grid_follows_the_fewest_episodes(episodes, num_bins):
    assert curves.choose_num_bins(episodes) == num_bins


def test_hns_by_game_and_none_without_a_score():
    random, human = TABLES[DEFAULT].scores["Breakout-v5"]
    frame = pd.DataFrame({"env_id": ["Breakout-v5", "CartPole-v1", "Breakout-v5"], "r": [random, 500.0, human]})
    np.testing.assert_array_equal(curves.hns(frame, "r", TABLES[DEFAULT]), [0.0, np.nan, 1.0])


def ragged() -> pd.DataFrame:
    """Three runs of 1 - exp(-s / 5e6): two over 50M env steps, one that ends at 10M."""
    env_steps = np.arange(1, 101) * 500_000.0
    runs = []
    for seed, end in ((1, 50e6), (2, 50e6), (3, 10e6)):
        values = np.where(env_steps <= end, 1 - np.exp(-env_steps / 5e6), np.nan)
        runs.append(pd.DataFrame({"env_steps": env_steps, "episode_return": values, "episodes": 1, "seed": seed}))
    return pd.concat(runs).assign(algorithm="impala", profile="p", env_id="Pong-v5")


def test_a_short_run_is_missing_past_its_end_and_shortens_nobody():
    found = curves.over_seeds(ragged()).set_index("env_steps")
    assert found.loc[11.5e6, "mean"] == pytest.approx(1 - np.exp(-2.3))  # stretched runs would give .797 here
    assert found["seeds"].tolist() == [3] * 20 + [2] * 80
    assert found.index.max() == 50e6


def test_mean_and_band_weigh_every_seed_the_same():
    frame = ragged()
    frame["episode_return"] = frame["seed"] ** 2.0
    frame["episodes"] = frame["seed"]
    first = curves.over_seeds(frame).iloc[0]
    assert (first["low"], first["mean"], first["high"]) == (1.0, pytest.approx(14 / 3), 9.0)
    assert (first["seeds"], first["episodes"]) == (3, 6)


def test_matrix_is_seeds_by_bins_whatever_the_order_of_rows():
    frame = ragged()
    env_steps, values = curves.matrix(frame, "episode_return")
    shuffled_steps, shuffled = curves.matrix(frame.sample(frac=1, random_state=0), "episode_return")
    assert values.shape == (3, 100)
    np.testing.assert_array_equal(env_steps, np.arange(1, 101) * 500_000.0)
    np.testing.assert_array_equal(values, shuffled)
    np.testing.assert_array_equal(env_steps, shuffled_steps)
    assert np.isnan(values[2, 20:]).all()


def test_mean_over_seeds_takes_who_has_a_value():
    values = np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan]])
    np.testing.assert_array_equal(curves.mean_over_seeds(values), [2.0, 5.0, np.nan])
