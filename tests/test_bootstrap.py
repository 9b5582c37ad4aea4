"""Intervals: the resamples, the kernels against the point estimates, rliable's intervals, and independence of order.

Ends of intervals are compared by rank: with R repetitions the q-quantile lies within k Monte Carlo standard errors when
it lies between the quantiles q +- k sqrt(q (1 - q) / R) of the same distribution, smooth or made of few steps.
"""

import hashlib

import curves_of_others
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from curves_of_others import array
from rliable import library, metrics
from rliable.library import average_score_distributions, score_distributions

from analysis import bootstrap, kernels, statistics
from analysis.bootstrap import Cells, Resampling, aggregates, bootstrap_draw, for_each_chunk, profiles, replicates
from analysis.comparison import improvement
from analysis.matrix import ScoreMatrix

NAMES = tuple(statistics.AGGREGATES)
THRESHOLDS = np.linspace(0.0, 4.0, 9)
FEW = Resampling(repetitions=500, seed=7)
SIGMAS = 3.0  # Monte Carlo standard errors; all streams are seeded, so what passes once passes always


def made_up(system, seed, sizes=(3,) * 12):
    rng = np.random.default_rng(seed)
    return ScoreMatrix(system, {f"game{i:02}": rng.lognormal(size=size) for i, size in enumerate(sizes)})


def ragged(system, seed, games=12):
    return made_up(system, seed, np.random.default_rng(seed).integers(1, 7, games))


def all_weights(matrix, resampling):
    """The weights of every repetition [repetitions, N]."""
    cells, found = Cells.of(matrix.scores), {}

    def use(first, last, weights):
        found[first] = np.moveaxis(weights, 1, 2).reshape(-1, weights.shape[1])[: last - first]

    for_each_chunk(cells.scores.shape[1], bootstrap_draw(matrix.system, cells, resampling), use, resampling)
    return np.concatenate([found[first] for first in sorted(found)])


# The resamples


def test_every_resample_takes_as_many_runs_of_each_game_as_it_has():
    matrix = ragged("a", 0)
    weights, starts = all_weights(matrix, FEW), Cells.of(matrix.scores).starts
    assert (np.add.reduceat(weights, starts[:-1], axis=1) == np.diff(starts)).all()


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_runs_are_drawn_uniformly_and_independently(size):
    """A run's weight is binomial (size, 1 / size); games' weights are uncorrelated. 20,000 repetitions, 4 sigma."""
    repetitions = 20_000
    weights = all_weights(made_up("a", 0, (size, size)), Resampling(repetitions=repetitions))
    counts = np.bincount(weights[:, 0].astype(int), minlength=size + 1)
    expected = scipy.stats.binom.pmf(np.arange(size + 1), size, 1 / size)
    assert (np.abs(counts / repetitions - expected) < 4 * np.sqrt(expected * (1 - expected) / repetitions)).all()
    correlation = np.corrcoef(weights.T)[:size, size:]
    assert np.abs(correlation).max() < 4 / np.sqrt(repetitions)


def test_relabelings_are_uniform():
    """Algorithm S gives each of the 10 choices of 2 from 5 the same chance."""
    repetitions = 20_000
    weights = np.empty((repetitions // kernels.LANES, 5, kernels.LANES))
    keys = bootstrap.stream_keys("permutation", "a", ["game"], FEW)
    kernels.draw_labels(keys, np.array([0, 5]), np.array([2]), 0, weights)
    patterns = np.unique(np.moveaxis(weights, 1, 2).reshape(-1, 5), axis=0, return_counts=True)
    assert (patterns[0].sum(axis=1) == 2).all()
    assert len(patterns[1]) == 10
    assert np.abs(patterns[1] - repetitions / 10).max() < 4 * np.sqrt(repetitions * 0.1 * 0.9)


# The kernels


@pytest.mark.parametrize("matrix", [made_up("a", 1), ragged("a", 2), ragged("a", 3, 13), ragged("a", 4, 1)])
def test_every_replicate_is_the_point_estimate_of_its_resample(matrix):
    cells, weights = Cells.of(matrix.scores), all_weights(matrix, FEW)
    found = replicates(cells, NAMES, draw=bootstrap_draw("a", cells, FEW), resampling=FEW)
    games = [slice(*cells.starts[i : i + 2]) for i in range(matrix.num_games)]
    for repetition in range(FEW.repetitions):
        times = weights[repetition].astype(int)
        resample = {str(i): np.repeat(cells.scores[0, cut], times[cut]) for i, cut in enumerate(games)}
        for name in NAMES:
            expected = statistics.AGGREGATES[name](resample)
            assert found[name][0, repetition] == pytest.approx(expected, abs=1e-12), name


@pytest.mark.parametrize("size", [*range(1, 20), 56, 57])
def test_the_median_network_puts_the_middle_in_place(size):
    rng = np.random.default_rng(size)
    for _ in range(50):
        values = rng.integers(0, size, size)
        sorted_up_to_middle = values.copy()
        for i, j in kernels.median_network(size):
            sorted_up_to_middle[[i, j]] = np.sort(sorted_up_to_middle[[i, j]])
        middle = [(size - 1) // 2, size // 2]
        assert (sorted_up_to_middle[middle] == np.sort(values)[middle]).all()


@pytest.mark.parametrize(("kind", "point"), [("score", score_distributions), ("average", average_score_distributions)])
def test_a_profile_band_is_the_quantiles_of_the_resamples_profiles(kind, point):
    matrix = made_up("a", 5, (3,) * 11)
    weights = all_weights(matrix, FEW).astype(int)
    runs = Cells.of(matrix.scores).scores[0].reshape(11, 3)
    resamples = [np.stack([np.repeat(runs[g], w[3 * g : 3 * g + 3]) for g in range(11)], axis=1) for w in weights]
    low, high = np.quantile([point(resample, THRESHOLDS) for resample in resamples], FEW.quantiles, axis=0)
    frame = profiles([matrix], THRESHOLDS, kind=kind, resampling=FEW)
    np.testing.assert_allclose(frame["low"], low, atol=1e-12)
    np.testing.assert_allclose(frame["high"], high, atol=1e-12)


def test_quantiles_of_a_histogram_are_numpys():
    values = np.random.default_rng(0).integers(0, 9, (4, 101))
    histogram = np.stack([np.bincount(row, minlength=9) for row in values])
    for quantile in (0.0, 0.025, 0.5, 0.975, 1.0):
        np.testing.assert_allclose(
            bootstrap.histogram_quantile(histogram, quantile), np.quantile(values, quantile, axis=1), atol=1e-12
        )


def test_two_runs_of_one_game_by_hand():
    """Resamples of (0, 1) have the means 0, 1/2, 1 with chances 1/4, 1/2, 1/4: the 95 % interval is [0, 1]."""
    matrix = ScoreMatrix("a", {"game": np.array([0.0, 1.0])})
    row = aggregates([matrix], names=["mean"]).iloc[0]
    assert (row["estimate"], row["low"], row["high"]) == (0.5, 0.0, 1.0)
    narrow = aggregates([matrix], names=["mean"], resampling=Resampling(confidence=0.4)).iloc[0]
    assert (narrow["low"], narrow["high"]) == (0.5, 0.5)


# One seed


def test_one_seed_gives_no_interval_and_says_so():
    matrix = made_up("a", 0, (1,) * 5)
    for frame in (aggregates([matrix]), profiles([matrix], THRESHOLDS)):
        assert frame[["low", "high"]].isna().all(axis=None)
        assert frame["estimate"].notna().all()
        assert (frame["note"] == "one seed per game: no interval").all()


def test_some_games_with_one_seed_are_said():
    note = aggregates([made_up("a", 0, (1, 3, 1))])["note"].iloc[0]
    assert note.startswith("2 of 3 games have one seed")
    assert (aggregates([made_up("a", 0)], resampling=FEW)["note"] == "").all()


def test_raw_scores_of_several_games_are_not_aggregated():
    raw = ScoreMatrix("a", {"Alien-v5": np.array([900.0, 1000.0]), "Pong-v5": np.array([20.0, 21.0])}, unit="raw")
    with pytest.raises(ValueError, match="needs human-normalised scores; found raw"):
        aggregates([raw])
    assert aggregates([raw.subset(["Pong-v5"])], names=["mean"], resampling=FEW)["estimate"].item() == 20.5


# Independence of everything but (seed, system, game, repetition)


def intervals(matrices, resampling=FEW):
    frame = aggregates(matrices, resampling=resampling)
    return {(row.system, row.statistic): (row.low, row.high) for row in frame.itertuples()}


def intervals_consuming_a_generator(matrices, resampling=FEW):
    """The usual way, and rliable's: one generator, used up system by system and game by game."""
    rng, found = np.random.default_rng(resampling.seed), {}
    for matrix in matrices:
        means = [rng.choice(values, (resampling.repetitions, len(values))).mean(1) for values in matrix.scores.values()]
        found[matrix.system, "mean"] = tuple(np.quantile(np.mean(means, axis=0), resampling.quantiles))
    return found


def assert_order_does_not_matter(compute):
    a, b = made_up("a", 1), made_up("b", 2)
    together = compute([a, b])
    assert compute([b, a]) == together
    alone = compute([b])
    assert alone == {key: together[key] for key in alone}


def test_intervals_do_not_depend_on_the_order_or_the_presence_of_systems():
    assert_order_does_not_matter(intervals)
    with pytest.raises(AssertionError):
        assert_order_does_not_matter(intervals_consuming_a_generator)


def test_intervals_do_not_depend_on_the_order_of_games_or_seeds():
    matrix = ragged("a", 3)
    rng = np.random.default_rng(0)
    shuffled = {game: rng.permutation(matrix.scores[game]) for game in rng.permutation(matrix.env_ids)}
    assert intervals([ScoreMatrix("a", shuffled)]) == intervals([matrix])
    unsorted = {game: matrix.scores[game] for game in reversed(matrix.env_ids)}
    assert Cells.of(unsorted).env_ids == matrix.env_ids


def assert_chunks_and_threads_do_not_matter(monkeypatch):
    matrix, found = ragged("a", 4), []
    for chunk_cells, threads in ((2**18, 1), (2**18, 2), (1, 1), (1, 3), (5000, 2)):
        monkeypatch.setattr(bootstrap, "_CHUNK_CELLS", chunk_cells)
        resampling = Resampling(repetitions=777, seed=7, threads=threads)
        bands = [profiles([matrix], THRESHOLDS, kind=kind, resampling=resampling) for kind in ("score", "average")]
        improved = improvement([(matrix, made_up("b", 5))], resampling=resampling)
        columns = [frame[["low", "high"]].to_numpy().tolist() for frame in (*bands, improved)]
        found.append((intervals([matrix], resampling), columns))
    assert all(one == found[0] for one in found)


def test_intervals_do_not_depend_on_threads_or_chunks(monkeypatch):
    assert_chunks_and_threads_do_not_matter(monkeypatch)


def test_streams_addressed_by_the_chunk_would_be_noticed(monkeypatch):
    draw = kernels.draw_bootstrap
    monkeypatch.setattr(kernels, "draw_bootstrap", lambda keys, starts, first, weights: draw(keys, starts, 0, weights))
    with pytest.raises(AssertionError):
        assert_chunks_and_threads_do_not_matter(monkeypatch)


def test_seeds_systems_and_games_have_their_own_streams():
    addresses = [("a", 7, "g"), ("b", 7, "g"), ("a", 8, "g"), ("a", 7, "h"), ("a 7", 7, "g")]
    keys = {
        int(bootstrap.stream_keys("bootstrap", name, [game], Resampling(seed=seed))[0])
        for name, seed, game in addresses
    }
    assert len(keys) == len(addresses)
    assert intervals([made_up("a", 1)], Resampling(repetitions=500, seed=8)) != intervals([made_up("a", 1)])


def test_a_subset_of_games_keeps_their_resamples():
    matrix = ragged("a", 6)
    some = matrix.subset(["game03", "game07"])
    starts = Cells.of(matrix.scores).starts
    cells = np.r_[starts[3] : starts[4], starts[7] : starts[8]]
    assert (all_weights(some, FEW) == all_weights(matrix, FEW)[:, cells]).all()


def test_the_streams_stay_what_they_are():
    """Intervals of earlier versions can be made again. Frozen as first drawn, and SplitMix64 in whole numbers."""
    matrix = ScoreMatrix("a", {"Alien-v5": np.arange(3.0), "Pong-v5": np.arange(5.0)})
    weights = all_weights(matrix, Resampling(repetitions=3, seed=1)).astype(int).tolist()
    assert weights == [[0, 0, 3, 2, 1, 0, 1, 1], [2, 1, 0, 1, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1, 2, 0]]
    key = int.from_bytes(hashlib.sha256(b'["bootstrap", 1, "a", "Pong-v5"]').digest()[:8], "little")
    second = [((split_mix(key + (1 * 5 + draw) * 0x9E3779B97F4A7C15) >> 32) * 5) >> 32 for draw in range(5)]
    assert np.bincount(second, minlength=5).tolist() == weights[1][3:]


def split_mix(z):
    z %= 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


# Against rliable


def rliable_function(scores):
    return np.array([reference(scores) for reference in RLIABLE.values()])


RLIABLE = {
    "median": metrics.aggregate_median,
    "iqm": metrics.aggregate_iqm,
    "mean": metrics.aggregate_mean,
    "optimality_gap": metrics.aggregate_optimality_gap,
}


def assert_same_quantiles(ours, theirs, repetitions):
    """ours: replicates; theirs: (low, high) made of `repetitions`."""
    errors = np.sqrt(0.025 * 0.975 * (1 / repetitions + 1 / len(ours)))
    for quantile, end in zip((0.025, 0.975), theirs, strict=True):
        low, high = np.quantile(ours, [max(quantile - SIGMAS * errors, 0), min(quantile + SIGMAS * errors, 1)])
        assert low - 1e-12 <= end <= high + 1e-12


def compare_with_rliable(matrix, repetitions):
    np.random.seed(1)  # noqa: NPY002 -- rliable takes a random_state, ignores it and uses the global generator
    _, theirs = library.get_interval_estimates({"a": array(matrix)}, rliable_function, reps=repetitions)
    cells = Cells.of(matrix.scores)
    ours = replicates(cells, NAMES, draw=bootstrap_draw(matrix.system, cells, Resampling()), resampling=Resampling())
    for i, name in enumerate(RLIABLE):
        assert_same_quantiles(ours[name][0], theirs["a"][:, i], repetitions)


REAL = [curves_of_others.ppo, curves_of_others.moolib]


@curves_of_others.needed
@pytest.mark.parametrize("load", REAL)
def test_intervals_are_rliables_on_real_curves(load):
    compare_with_rliable(load(), 1000)


@pytest.mark.slow
@curves_of_others.needed
@pytest.mark.parametrize("load", REAL)
def test_intervals_are_rliables_on_real_curves_at_50_000_repetitions(load):
    compare_with_rliable(load(), 50_000)


def compare_ragged_with_rliable(repetitions):
    """rliable takes ragged seeds as one sample [seeds, 1] per game, each resampled on its own."""
    matrix = ragged("a", 8)
    np.random.seed(2)  # noqa: NPY002 -- as above

    def function(*games):
        runs, means = np.concatenate(games), np.array([game.mean() for game in games])
        figures = np.median(means), scipy.stats.trim_mean(runs, 0.25, axis=None), means.mean()
        return np.array([*figures, metrics.aggregate_optimality_gap(runs)])

    games = [values[:, None] for values in matrix.scores.values()]
    points, theirs = library.get_interval_estimates({"a": games}, function, reps=repetitions)
    frame = aggregates([matrix])
    np.testing.assert_allclose(frame["estimate"], points["a"], atol=1e-12)
    cells = Cells.of(matrix.scores)
    ours = replicates(cells, NAMES, draw=bootstrap_draw("a", cells, Resampling()), resampling=Resampling())
    for i, name in enumerate(NAMES):
        assert_same_quantiles(ours[name][0], theirs["a"][:, i], repetitions)


def test_intervals_are_rliables_on_ragged_matrices():
    compare_ragged_with_rliable(1000)


@pytest.mark.slow
def test_intervals_are_rliables_on_ragged_matrices_at_50_000_repetitions():
    compare_ragged_with_rliable(50_000)


def test_a_biased_resampling_would_be_noticed():
    """The comparison by rank can fail: a bootstrap of one run too few is too wide."""
    matrix = made_up("a", 9)
    runs = array(matrix)
    rng = np.random.default_rng(0)
    taken = rng.integers(0, 3, (50_000, 2, 12))
    too_wide = runs[taken, np.arange(12)].mean(axis=(1, 2))
    np.random.seed(1)  # noqa: NPY002 -- as above
    _, theirs = library.get_interval_estimates(
        {"a": runs}, lambda scores: np.array([metrics.aggregate_mean(scores)]), reps=1000
    )
    with pytest.raises(AssertionError):
        assert_same_quantiles(too_wide, theirs["a"][:, 0], 1000)


def test_rliables_own_intervals_depend_on_the_order_of_its_dict():
    """Why it is the reference of the tests and not the engine."""
    scores = {"a": array(made_up("a", 1)), "b": array(made_up("b", 2))}

    def of_b(ordered):
        np.random.seed(1)  # noqa: NPY002 -- as above
        return library.get_interval_estimates(ordered, rliable_function, reps=50)[1]["b"]

    assert not np.array_equal(of_b(scores), of_b(dict(reversed(scores.items()))))


# Refusals


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"repetitions": 0}, "repetitions is 0"),
        ({"confidence": 95}, "confidence is 95"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_impossible_resampling_is_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        Resampling(**setting)


@pytest.mark.parametrize("thresholds", [[], [1.0, 1.0], [2.0, 1.0], [0.0, np.nan]])
def test_thresholds_must_increase(thresholds):
    with pytest.raises(ValueError, match="thresholds of a performance profile"):
        profiles([made_up("a", 0)], thresholds)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="statistic is 'average'; allowed: median, iqm, mean, optimality_gap"):
        aggregates([made_up("a", 0)], names=["average"])
    with pytest.raises(ValueError, match="kind of profile is 'runs'; allowed: score, average"):
        profiles([made_up("a", 0)], THRESHOLDS, kind="runs")


def test_the_counts_beside_every_figure():
    frame = aggregates([ragged("a", 3)], resampling=FEW)
    row = frame.iloc[0]
    assert (row["num_games"], row["repetitions"], row["confidence"]) == (12, 500, 0.95)
    sizes = [len(values) for values in ragged("a", 3).scores.values()]
    assert (row["num_runs"], row["fewest_seeds"], row["most_seeds"]) == (sum(sizes), min(sizes), max(sizes))
    assert isinstance(frame, pd.DataFrame)
