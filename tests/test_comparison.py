"""Comparisons of two systems: permutation tests and their power, Holm, pairing, intervals and the seeds needed."""

import itertools

import numpy as np
import pytest
import scipy.stats
from rliable import library, metrics

from analysis import comparison
from analysis.bootstrap import Resampling
from analysis.comparison import Power, compare_games, compare_overall, holm, improvement, seeds_needed, smallest_p
from analysis.matrix import ScoreMatrix

FEW = Resampling(repetitions=2000, seed=3)


def made_up(system, seed, shift=0.0, sizes=(3,) * 10):
    rng = np.random.default_rng(seed)
    scores = {f"game{i:02}": rng.lognormal(size=size) + shift for i, size in enumerate(sizes)}
    return ScoreMatrix(system, scores, {game: tuple(range(1, len(runs) + 1)) for game, runs in scores.items()})


def one_game(system, *scores):
    return ScoreMatrix(system, {"game": np.array(scores)}, {"game": tuple(range(1, len(scores) + 1))})


# The smallest p attainable (FINDINGS: three seeds a side cannot get below 0.10)


@pytest.mark.parametrize(("seeds", "p"), [(3, 0.10), (4, 0.029), (5, 0.008)])
def test_the_smallest_p_is_that_of_perfectly_separated_seeds(seeds, p):
    low, high = np.arange(seeds) + 0.5, np.arange(seeds) + 100.0
    assert smallest_p(seeds, seeds) == pytest.approx(p, abs=5e-4)
    assert scipy.stats.mannwhitneyu(low, high, method="exact").pvalue == pytest.approx(smallest_p(seeds, seeds))
    row = compare_games(one_game("a", *low), one_game("b", *high), resampling=FEW).iloc[0]
    assert row["p_value"] == row["smallest_p"] == pytest.approx(smallest_p(seeds, seeds))


def test_the_smallest_paired_p_is_the_sign_tests():
    assert [smallest_p(n, n, paired=True) for n in (1, 3, 6)] == [1.0, 0.25, 2 / 64]
    assert scipy.stats.wilcoxon([1.0, 2.0, 3.0], method="exact").pvalue == 0.25


# Permutation tests


@pytest.mark.parametrize(("num_x", "num_y"), [(3, 3), (3, 5), (5, 4), (2, 4)])
def test_p_values_of_a_game_are_scipys(num_x, num_y):
    rng = np.random.default_rng(num_x)
    x, y = rng.normal(size=num_x), rng.normal(0.8, size=num_y)
    ours = compare_games(one_game("a", *x), one_game("b", *y), resampling=FEW).iloc[0]
    theirs = scipy.stats.permutation_test((x, y), lambda x, y: x.mean() - y.mean(), n_resamples=np.inf)
    assert ours["p_value"] == pytest.approx(theirs.pvalue, abs=1e-12)


def test_paired_p_values_of_a_game_are_scipys():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=6), rng.normal(0.8, size=6)
    ours = compare_games(one_game("a", *x), one_game("b", *y), paired=True, resampling=FEW).iloc[0]
    theirs = scipy.stats.permutation_test(
        (x - y,), lambda d: d.mean(), permutation_type="samples", n_resamples=np.inf, vectorized=False
    )
    assert ours["p_value"] == pytest.approx(theirs.pvalue, abs=1e-12)


def test_ties_do_not_count_as_evidence():
    row = compare_games(one_game("a", 0.1, 0.2, 0.3), one_game("b", 0.3, 0.1, 0.2), resampling=FEW).iloc[0]
    assert (row["difference"], row["p_value"]) == (pytest.approx(0.0, abs=1e-15), 1.0)
    same = compare_games(one_game("a", 0.3, 0.3, 0.3), one_game("b", 0.3, 0.3, 0.3), resampling=FEW).iloc[0]
    assert (same["p_value"], same["low"], same["high"]) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("paired", [False, True])
def test_a_sample_of_relabelings_agrees_with_all_of_them(monkeypatch, paired):
    rng = np.random.default_rng(1)
    a, b = one_game("a", *rng.normal(size=5)), one_game("b", *rng.normal(0.7, size=5))
    resampling = Resampling(repetitions=20_000)
    exact = compare_games(a, b, paired=paired, resampling=resampling)["p_value"].item()
    monkeypatch.setattr(comparison, "MOST_ENUMERATED", 0)
    sampled = compare_games(a, b, paired=paired, resampling=resampling)["p_value"].item()
    assert sampled != exact
    assert abs(sampled - exact) < 2 * 4 * np.sqrt(exact / 2 * (1 - exact / 2) / 20_000)  # twice a tail, 4 sigma


def test_the_overall_test_is_that_of_relabelings_within_games():
    """Two games x 2 seeds a side: all 36 relabelings by hand."""
    a, b = made_up("a", 1, sizes=(2, 2)), made_up("b", 2, 0.5, sizes=(2, 2))
    null = []
    for chosen in itertools.product(itertools.combinations(range(4), 2), repeat=2):
        games = [np.concatenate([a.scores[game], b.scores[game]]) for game in a.env_ids]
        differences = [
            runs[list(take)].mean() - np.delete(runs, take).mean() for runs, take in zip(games, chosen, strict=True)
        ]
        null.append(np.mean(differences))
    observed = np.mean([a.scores[game].mean() - b.scores[game].mean() for game in a.env_ids])
    tail = min((np.array(null) >= observed - 1e-9).mean(), (np.array(null) <= observed + 1e-9).mean())
    row = compare_overall(a, b, names=["mean"], resampling=Resampling(repetitions=20_000)).iloc[0]
    assert row["smallest_p"] == 2 / 36
    assert row["p_value"] == pytest.approx(2 * tail, abs=2 * 4 * np.sqrt(tail * (1 - tail) / 20_000))


@pytest.mark.parametrize("paired", [False, True])
def test_without_a_difference_p_values_are_uniform(paired):
    """40 pairs of equal systems: a twentieth falls below 0.05, at most 6 of 40 (chance of more: 0.3 %)."""
    few = Resampling(repetitions=400)
    p_values = [
        compare_overall(made_up("a", i), made_up("b", 1000 + i), names=["iqm"], paired=paired, resampling=few)[
            "p_value"
        ].item()
        for i in range(40)
    ]
    assert sum(p < 0.05 for p in p_values) <= 6
    assert 0.3 < np.mean(p_values) < 0.7


def test_a_difference_over_all_games_is_found_where_no_game_alone_shows_it():
    a, b = made_up("a", 1, 1.5), made_up("b", 2)
    games, overall = compare_games(a, b, resampling=FEW), compare_overall(a, b, resampling=FEW)
    assert (games["p_holm"] > 0.9).all()
    assert (overall.query("statistic != 'optimality_gap'")["p_value"] < 0.01).all()
    assert (overall["statistic"] == ["median", "iqm", "mean", "optimality_gap"]).all()


# Holm


def test_holm_by_hand():
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.5, 0.9])).tolist() == [1.0, 1.0]
    assert holm(np.array([0.2])).tolist() == [0.2]


# Differences and intervals


def test_swapping_the_systems_mirrors_every_figure():
    a, b = made_up("a", 1, sizes=(3, 4, 2)), made_up("b", 2, sizes=(3, 2, 5))
    for compare in (compare_games, compare_overall):
        there, back = compare(a, b, resampling=FEW), compare(b, a, resampling=FEW)
        np.testing.assert_allclose(there["difference"], -back["difference"], atol=1e-12)
        np.testing.assert_allclose(there["low"], -back["high"], atol=1e-12)
    games = compare_games(a, b, resampling=FEW), compare_games(b, a, resampling=FEW)
    np.testing.assert_allclose(games[0]["p_value"], games[1]["p_value"], atol=1e-12)


def test_pairing_takes_out_what_the_seeds_share():
    """Seeds that differ by 1 each and a system that is always 0.1 better: only the paired interval excludes 0."""
    a = one_game("a", 1.1, 2.12, 3.09, 4.1)
    b = one_game("b", 1.0, 2.0, 3.0, 4.0)
    paired = compare_games(a, b, paired=True, resampling=FEW).iloc[0]
    unpaired = compare_games(a, b, resampling=FEW).iloc[0]
    assert 0.09 < paired["low"] < paired["difference"] < paired["high"] < 0.12
    assert unpaired["low"] < -1 < 1 < unpaired["high"]
    assert paired["p_value"] == paired["smallest_p"] == 0.125
    overall = compare_overall(a, b, paired=True, resampling=FEW).iloc[1]
    assert 0.08 < overall["low"] < overall["high"] < 0.13


def test_pairs_are_matched_by_seed_not_by_position():
    b = one_game("b", 1.0, 2.0, 3.0)
    a = ScoreMatrix("a", {"game": np.array([3.1, 1.1, 2.1])}, {"game": (3, 1, 2)})
    row = compare_games(a, b, paired=True, resampling=FEW).iloc[0]
    assert (row["low"], row["high"]) == pytest.approx((0.1, 0.1))


def test_pairing_needs_the_same_seeds():
    a, b = one_game("a", 1.0, 2.0), one_game("b", 1.0, 2.0, 3.0)
    with pytest.raises(ValueError, match="on game only one has 3"):
        compare_games(a, b, paired=True)
    with pytest.raises(ValueError, match="needs the seeds of both"):
        compare_games(a, ScoreMatrix("c", dict(b.scores)), paired=True)


def test_one_seed_gives_no_interval_and_no_verdict():
    row = compare_games(one_game("a", 1.0), one_game("b", 2.0), resampling=FEW).iloc[0]
    assert np.isnan([row["low"], row["high"], row["seeds_needed"]]).all()
    assert (row["p_value"], row["note"]) == (1.0, "one seed per game: no interval")


def test_different_games_are_refused():
    with pytest.raises(ValueError, match="only one has game02"):
        compare_overall(made_up("a", 1, sizes=(3, 3, 3)), made_up("b", 1, sizes=(3, 3)))


# How many seeds


def test_seeds_needed_by_what_a_permutation_test_can_reach():
    overwhelming = {"difference": 100.0, "spread": 0.1}
    assert seeds_needed(**overwhelming, power=Power(alpha=0.05)) == 4  # 0.029; 3 seeds end at 0.10
    assert seeds_needed(**overwhelming, power=Power(alpha=0.01)) == 5  # 0.008
    assert seeds_needed(**overwhelming, power=Power(alpha=0.05 / 57)) == 7  # 0.0006
    assert seeds_needed(**overwhelming, power=Power(alpha=0.05), paired=True) == 6  # 2 / 64


def test_seeds_needed_by_the_spread():
    """The textbook's 16 a side for a difference of one standard deviation at alpha 0.05 and power 0.8."""
    assert seeds_needed(1.0, np.sqrt(2), Power()) == 16
    assert seeds_needed(0.5, np.sqrt(2), Power()) == 63
    assert np.isnan(seeds_needed(0.0, 1.0, Power()))


def test_the_seeds_needed_have_the_power_promised():
    """Two systems one standard deviation apart: 16 seeds a side find it in 80 % of trials (4 sigma of 300 trials)."""
    rng = np.random.default_rng(0)
    found = np.mean(
        [scipy.stats.ttest_ind(rng.normal(size=16), rng.normal(1.0, size=16)).pvalue < 0.05 for _ in range(300)]
    )
    assert found == pytest.approx(0.8, abs=4 * np.sqrt(0.8 * 0.2 / 300))


def test_the_spread_of_a_comparison_is_the_standard_error():
    x, y = np.random.default_rng(1).normal(size=(2, 8))
    row = comparison._compare(one_game("a", *x), one_game("b", *y), "mean", False, Resampling(repetitions=20_000))
    expected = np.sqrt(x.var(ddof=1) + y.var(ddof=1))
    assert row["spread"] == pytest.approx(expected, rel=0.02)  # 20,000 repetitions: half a per cent


# Probability of improvement


def test_intervals_of_the_probability_of_improvement_are_rliables():
    a, b = made_up("a", 1), made_up("b", 2, 0.3)
    arrays = [np.stack(list(matrix.scores.values()), axis=1) for matrix in (a, b)]
    np.random.seed(1)  # noqa: NPY002 -- rliable takes a random_state, ignores it and uses the global generator
    points, theirs = library.get_interval_estimates(
        {"pair": arrays}, lambda x, y: np.array([metrics.probability_of_improvement(x, y)]), reps=200
    )
    row = improvement([(a, b)]).iloc[0]
    assert row["estimate"] == pytest.approx(points["pair"].item(), abs=1e-12)
    replicated, _ = comparison._improvement_replicates(a, b, Resampling())
    error = 3 * np.sqrt(0.025 * 0.975 * (1 / 200 + 1 / 50_000))
    for quantile, end in zip((0.025, 0.975), theirs["pair"][:, 0], strict=True):
        low, high = np.quantile(replicated, [max(quantile - error, 0), min(quantile + error, 1)])
        assert low - 1e-12 <= end <= high + 1e-12


def test_improvement_both_ways_sums_to_one():
    a, b = made_up("a", 1, sizes=(3, 2, 4)), made_up("b", 2, sizes=(2, 5, 1))
    there, back = (improvement([pair], resampling=FEW).iloc[0] for pair in ((a, b), (b, a)))
    assert there["estimate"] + back["estimate"] == pytest.approx(1.0, abs=1e-12)
    assert there["low"] + back["high"] == pytest.approx(1.0, abs=1e-12)


def test_a_pair_does_not_depend_on_the_other_pairs():
    a, b, c = made_up("a", 1), made_up("b", 2), made_up("c", 3)
    together = improvement([(a, b), (c, b), (a, c)], resampling=FEW)
    alone = improvement([(a, c)], resampling=FEW)
    assert together.iloc[2].to_dict() == alone.iloc[0].to_dict()
