"""Scores along training: missing past a run's end, each run on its own clock, and the same figures as the matrices'."""

import curves_of_others
import numpy as np
import pandas as pd
import pytest

from analysis.bootstrap import Resampling, aggregates
from analysis.efficiency import efficiency, even_grid, on_grid
from analysis.matrix import ScoreMatrix, from_frame

FEW = Resampling(repetitions=500, seed=3)
COUNTS = ["num_games", "num_runs", "fewest_seeds", "most_seeds"]


def run(env_id, seed, env_steps, hns, **columns):
    return pd.DataFrame({"env_id": env_id, "seed": seed, "env_steps": env_steps, "hns": hns, **columns})


def saturating(env_steps):
    return 1 - np.exp(-env_steps / 5e6)


def ragged_runs():
    """Three runs of the same curve, of 50M, 50M and 10M env steps, a row every 100,000."""
    lengths = [50e6, 50e6, 10e6]
    axes = [np.linspace(1e5, length, round(length / 1e5)) for length in lengths]
    return pd.concat([run("Pong-v5", seed, axis, saturating(axis)) for seed, axis in enumerate(axes)])


def made_up(system, seed, games=6, sizes=(3, 2, 4, 3, 5, 1)):
    rng, grid = np.random.default_rng(seed), np.arange(1.0, 11.0)
    runs = [
        run(f"game{game}", i, grid, np.cumsum(rng.lognormal(-2, size=10)), wall_seconds=60 * grid)
        for game in range(games)
        for i in range(sizes[game])
    ]
    return pd.concat(runs, ignore_index=True)


# Ragged runs (FINDINGS: .901 where stretching to the mean length gives .797, cut to three places)


def test_a_short_run_neither_bends_nor_shortens_the_others():
    at = np.array([9.9e6, 11.6e6, 50e6])
    frame = efficiency([on_grid(ragged_runs(), "a", at)], names=["mean"], resampling=FEW)
    assert frame["estimate"].round(3).tolist() == [0.862, 0.902, 1.0]
    assert frame["estimate"].iloc[1] == pytest.approx(saturating(11.6e6), abs=1e-4)  # .9017: rows every 100,000
    assert frame["num_runs"].tolist() == [3, 2, 2]


def test_stretching_runs_to_their_mean_length_would_be_noticed():
    """openrlbenchmark's way: each run's own axis stretched to [0, mean length]."""
    runs = [rows for _, rows in ragged_runs().groupby("seed")]
    mean_length = np.mean([rows["env_steps"].max() for rows in runs])
    fraction = 11.6e6 / mean_length
    values = [
        np.interp(rows["env_steps"].min() + fraction * np.ptp(rows["env_steps"]), rows["env_steps"], rows["hns"])
        for rows in runs
    ]
    assert int(1000 * np.mean(values)) == 797
    assert int(1000 * saturating(11.6e6)) == 901
    assert abs(np.mean(values) - saturating(11.6e6)) > 0.1


def test_a_value_outside_a_run_is_missing():
    curves = on_grid(run("Pong-v5", 1, [2.0, 4.0], [1.0, 3.0]), "a", [1.0, 2.0, 3.0, 4.0, 5.0])
    np.testing.assert_array_equal(curves.scores["Pong-v5"], [[np.nan, 1.0, 2.0, 3.0, np.nan]])


def test_there_is_no_figure_where_a_game_has_no_run_left():
    frame = pd.concat([run("Alien-v5", 1, [1.0, 4.0], [0.1, 0.4]), run("Pong-v5", 1, [1.0, 2.0], [1.0, 1.1])])
    table = efficiency([on_grid(frame, "a", [1.0, 2.0, 3.0, 4.0])], names=["mean"], resampling=FEW)
    assert table["estimate"].tolist()[:2] == pytest.approx([0.55, 0.65])
    assert table["estimate"].isna().tolist() == [False, False, True, True]
    assert table["num_games"].tolist() == [2, 2, 1, 1]
    assert table["note"].tolist()[1:3] == ["one seed per game: no interval", "1 of 2 games have no run here: no figure"]


# Wall-clock


def test_each_run_is_on_its_own_clock():
    """Two runs of the same curve, one twice as fast: at minute 2 they are at 2 and at 4 (and not both at 3)."""
    rows = np.arange(1.0, 9.0)
    slow = run("Pong-v5", 1, rows, rows / 10, wall_seconds=60 * rows)
    fast = run("Pong-v5", 2, rows, rows / 10, wall_seconds=30 * rows)
    curves = on_grid(pd.concat([slow, fast]), "a", [2.0, 4.0, 6.0], axis="minutes")
    np.testing.assert_allclose(curves.scores["Pong-v5"], [[0.2, 0.4, 0.6], [0.4, 0.8, np.nan]])
    table = efficiency([curves], names=["mean"], resampling=FEW)
    assert table["minutes"].tolist() == [2.0, 4.0, 6.0]
    assert table["estimate"].tolist() == pytest.approx([0.3, 0.6, 0.6])


# The same figures as the score matrices'


def assert_points_are_the_matrices(curves, table):
    for point, at in enumerate(curves.grid):
        scores = {game: runs[np.isfinite(runs[:, point]), point] for game, runs in curves.scores.items()}
        expected = aggregates([ScoreMatrix(curves.system, scores)], names=["iqm", "median"], resampling=FEW)
        rows = table[table[curves.axis] == at].sort_values("statistic")
        for column in ("estimate", "low", "high", "note", *COUNTS):
            assert rows[column].tolist() == expected.sort_values("statistic")[column].tolist(), (at, column)


@pytest.mark.parametrize("dropped", [[], [3, 10, 40, 41, 60, 110]])
def test_every_point_has_the_figures_of_its_score_matrix(dropped):
    """To the bit, also where runs are missing (rows dropped at the ends of some)."""
    frame = made_up("a", 1)
    ends = frame[frame["env_steps"].isin([1.0, 9.0, 10.0]) & frame.index.isin(np.add.outer(dropped, range(10)).ravel())]
    curves = on_grid(frame.drop(ends.index), "a", np.arange(1.0, 11.0))
    assert_points_are_the_matrices(curves, efficiency([curves], names=["iqm", "median"], resampling=FEW))


@curves_of_others.needed
def test_the_last_point_of_a_real_curve_has_the_figures_of_the_final_scores():
    frame = curves_of_others.ppo_curves()
    curves = on_grid(frame, "ppo", even_grid(200e6, 10), axis="frames")
    last = efficiency([curves], names=["iqm"], resampling=FEW).iloc[-1]
    final = aggregates([curves_of_others.ppo()], names=["iqm"], resampling=FEW).iloc[0]
    assert (last["estimate"], last["low"], last["high"]) == (final["estimate"], final["low"], final["high"])


def test_curves_do_not_depend_on_order_or_on_other_systems():
    a, b = made_up("a", 1), made_up("b", 2)
    grid = even_grid(10.0, 20)
    both = efficiency([on_grid(a, "a", grid), on_grid(b, "b", grid)], resampling=FEW)
    alone = efficiency([on_grid(a.sample(frac=1, random_state=0).sort_values("env_steps"), "a", grid)], resampling=FEW)
    pd.testing.assert_frame_equal(both[both["system"] == "a"], alone, check_exact=True)


# Refusals


@pytest.mark.parametrize("bad", [np.nan, np.inf, "NaN"])
def test_entries_that_are_no_numbers_are_refused(bad):
    frame = run("Pong-v5", 1, [1.0, 2.0, 3.0], pd.Series([0.1, bad, 0.3]))
    with pytest.raises(ValueError, match="a: Pong-v5 seed 1: hns has an entry that is no finite number"):
        on_grid(frame, "a", [1.0])


def test_rows_out_of_order_and_duplicates_are_refused():
    for env_steps in ([1.0, 3.0, 2.0], [1.0, 2.0, 2.0]):
        with pytest.raises(ValueError, match="Pong-v5 seed 1: env_steps does not increase"):
            on_grid(run("Pong-v5", 1, env_steps, [0.1, 0.2, 0.3]), "a", [1.0])


def test_unknown_axes_and_missing_columns_are_named():
    frame = run("Pong-v5", 1, [1.0, 2.0], [0.1, 0.2])
    with pytest.raises(ValueError, match="axis is 'seconds'; allowed: env_steps, frames, minutes"):
        on_grid(frame, "a", [1.0], axis="seconds")
    with pytest.raises(ValueError, match="column wall_seconds is missing; found env_id, seed, env_steps, hns"):
        on_grid(frame, "a", [1.0], axis="minutes")
    with pytest.raises(ValueError, match="must be finite numbers that increase"):
        on_grid(frame, "a", [2.0, 1.0])
    with pytest.raises(ValueError, match="allowed: at least 1 point"):
        even_grid(0.0)


def test_different_grids_units_and_games_are_refused():
    frame = pd.concat([run("Alien-v5", 1, [1.0, 2.0], [0.1, 0.2]), run("Pong-v5", 1, [1.0, 2.0], [0.1, 0.2])])
    one = on_grid(frame, "a", [1.0, 2.0])
    with pytest.raises(ValueError, match="different grids"):
        efficiency([one, on_grid(frame, "b", [1.0])])
    with pytest.raises(ValueError, match="different grids"):
        efficiency([one, on_grid(frame.assign(frames=frame["env_steps"]), "b", [1.0, 2.0], axis="frames")])
    with pytest.raises(ValueError, match="only one has Alien-v5"):
        efficiency([one, on_grid(frame[frame["env_id"] == "Pong-v5"], "b", [1.0, 2.0])])
    with pytest.raises(ValueError, match="a name occurs twice"):
        efficiency([one, one])
    with pytest.raises(ValueError, match="at least one"):
        efficiency([])
    raw = on_grid(frame.rename(columns={"hns": "episode_return"}), "a", [1.0], value="episode_return")
    with pytest.raises(ValueError, match="needs human-normalised scores; found raw"):
        efficiency([raw])


def test_the_tables_last_rows_make_a_matrix():
    """A curve's last point is a final score: the two ways in agree on units and names."""
    frame = made_up("a", 4)
    final = from_frame(frame[frame["env_steps"] == 10.0], "a")
    curves = on_grid(frame, "a", [10.0])
    assert {game: runs[:, 0].tolist() for game, runs in curves.scores.items()} == {
        game: scores.tolist() for game, scores in final.scores.items()
    }
