"""Permutation tests and resamples of whole learning curves: on one game, and of the IQM over games.

A run is relabeled or resampled with its whole curve, within its game; games are fixed. A bin that a run has no value in
stays without one: the run counts in its other bins.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb, sqrt

import numpy as np

from analysis import kernels, statistics
from analysis.bootstrap import Resampling, stream_keys
from analysis.divergence import SPLIT_SEED, NoiseFloor

MOST_ENUMERATED = 20_000  # relabelings of one game: all of them up to 8 seeds a side (12,870), a sample beyond
SAMPLED = 9_999  # relabelings drawn where not all are enumerated; with the observed one 10,000
ROUNDING = 1e-9  # two areas that differ by less, relative to the values, are the same
CURVE_RESAMPLING = Resampling(repetitions=1_999)  # of whole curves; with the observed relabeling 2,000
FLOOR_RESAMPLING = Resampling(repetitions=200)  # splits of each set over all games

Games = Mapping[str, np.ndarray]  # env_id -> (seeds, bins), NaN where a run has no value


@dataclass(frozen=True, kw_only=True)
class Permutation:
    """`p_value` of the area between two mean curves if the labels meant nothing, and the smallest one attainable."""

    p_value: float
    smallest_p: float


def area_test(a: np.ndarray, b: np.ndarray) -> Permutation:
    """`a`, `b`: (seeds, bins) on one game. NaN where no bin has values of both."""
    values = np.concatenate([a, b])
    observed = _areas(np.arange(len(values))[None, :] < len(a), values)[0]
    if np.isnan(observed):
        return Permutation(p_value=np.nan, smallest_p=np.nan)
    masks, itself = _relabelings(len(a), len(b))
    areas = _areas(masks, values)
    reached = (areas >= observed - ROUNDING * np.nanmax(np.abs(values))).sum() + itself
    return Permutation(
        p_value=float(reached / (len(masks) + itself)),
        smallest_p=max(smallest_area_p(len(a), len(b)), 1 / (len(masks) + itself)),
    )


def smallest_area_p(num_a: int, num_b: int) -> float:
    """Smallest p of the area on one game: with as many seeds on both sides, a relabeling and its mirror are alike."""
    return min(1.0, (2 if num_a == num_b else 1) / comb(num_a + num_b, num_a))


def present_everywhere(games: Games) -> np.ndarray:
    """Bins (bins,) in which every game has a run with a value; in others, an aggregate would be of other games."""
    return np.all([(~np.isnan(values)).any(axis=0) for values in games.values()], axis=0)


def iqm_curve(games: Games) -> np.ndarray:
    """IQM over the runs of all games in each bin (bins,), as `statistics.iqm`; NaN where a game has none."""
    values = _stacked(games)
    return np.where(present_everywhere(games), iqm_of_weighted(values, np.ones((1, len(values))))[0], np.nan)


def bootstrapped_iqm(games: Games, name: str, resampling: Resampling = CURVE_RESAMPLING) -> np.ndarray:
    """IQM curves of resamples, runs drawn with replacement within their game: (repetitions, bins)."""
    env_ids, starts = tuple(sorted(games)), _starts(games)
    keys = stream_keys("bootstrap", name, env_ids, resampling)
    weights = _empty_weights(int(starts[-1]), resampling)
    kernels.draw_bootstrap(keys, starts, 0, weights)
    return iqm_of_weighted(_stacked(games), _by_repetition(weights, resampling))


def relabeled_iqm(
    a: Games, b: Games, name: str, resampling: Resampling = CURVE_RESAMPLING
) -> tuple[np.ndarray, np.ndarray]:
    """IQM curves of both sides, (repetitions, bins) each, when labels are dealt out anew within each game."""
    pooled = {env_id: np.concatenate([a[env_id], b[env_id]]) for env_id in a}
    env_ids, starts = tuple(sorted(pooled)), _starts(pooled)
    taken = np.array([len(a[env_id]) for env_id in env_ids], np.int64)
    weights = _empty_weights(int(starts[-1]), resampling)
    kernels.draw_labels(stream_keys("permutation", name, env_ids, resampling), starts, taken, 0, weights)
    labels, values = _by_repetition(weights, resampling), _stacked(pooled)
    return iqm_of_weighted(values, labels), iqm_of_weighted(values, 1.0 - labels)


def iqm_area_test(a: Games, b: Games, name: str, resampling: Resampling = CURVE_RESAMPLING) -> Permutation:
    """Permutation test of the area between the IQM curves of two sides over the same games."""
    compared = present_everywhere(a) & present_everywhere(b)
    if not compared.any():
        return Permutation(p_value=np.nan, smallest_p=np.nan)
    observed = np.abs(iqm_curve(b) - iqm_curve(a))[compared].mean()
    relabeled_a, relabeled_b = relabeled_iqm(a, b, name, resampling)
    areas = _mean_gap(relabeled_b[:, compared] - relabeled_a[:, compared])
    scale = max(np.nanmax(np.abs(values)) for values in (*a.values(), *b.values()))
    reached = (areas >= observed - ROUNDING * scale).sum() + 1  # what was observed is a relabeling too
    sizes = [(len(a[env_id]), len(b[env_id])) for env_id in a]
    mirrored = all(num_a == num_b for num_a, num_b in sizes)
    # Relabelings of many games are more than a float holds; as a product of small numbers it ends at 0.
    all_of_them = float(np.prod([1 / comb(num_a + num_b, num_a) for num_a, num_b in sizes]))
    smallest = min(1.0, max((2 if mirrored else 1) * all_of_them, 1 / (len(areas) + 1)))
    return Permutation(p_value=float(max(reached / (len(areas) + 1), smallest)), smallest_p=smallest)


def iqm_floor(games: Games, resampling: Resampling = FLOOR_RESAMPLING) -> NoiseFloor:
    """A/A over games: the area between the IQM curves of two halves of one set, each game's runs split at random.

    There is none (NaN, 0 splits) where a game has one seed.
    """
    fewest = min(map(len, games.values()))
    if fewest < 2:
        return NoiseFloor(median=np.nan, largest=np.nan, splits=0, seeds_per_side=0)
    small, large = ({env_id: values[part::2] for env_id, values in games.items()} for part in (1, 0))
    of_small, of_large = relabeled_iqm(small, large, "A/A", resampling)
    areas = _mean_gap((of_large - of_small)[:, present_everywhere(games)])
    return NoiseFloor(
        median=float(np.median(areas)), largest=float(np.max(areas)), splits=len(areas), seeds_per_side=fewest // 2
    )


def widened(replicates: np.ndarray, estimate: float, fewest_seeds: int, confidence: float) -> tuple[float, float]:
    """Percentile interval about the estimate, wider by sqrt(n / (n - 1)): a resample of n runs has (n - 1) / n of the
    variance, which with three seeds is a third too little. NaN with one seed."""
    if fewest_seeds < 2:
        return np.nan, np.nan
    low, high = np.quantile(replicates, [(1 - confidence) / 2, (1 + confidence) / 2])
    factor = sqrt(fewest_seeds / (fewest_seeds - 1))
    return float(estimate + factor * (low - estimate)), float(estimate + factor * (high - estimate))


def iqm_of_weighted(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """IQM of resamples: values [N, P], NaN where a run has none; weights [R, N], how often each takes a run -> [R, P].

    A quarter of the values that a resample has in a bin, rounded down, is cut off at either end; NaN where it has none.
    """
    out = np.full((len(weights), values.shape[1]), np.nan)
    for point, column in enumerate(values.T):
        order = np.argsort(column, kind="stable")[: int((~np.isnan(column)).sum())]
        seen = np.cumsum(weights[:, order], axis=1)
        if not order.size:
            continue
        total = seen[:, -1:]
        cut = np.floor(statistics.TRIMMED * total)
        kept = np.diff(np.clip(seen, cut, total - cut), axis=1, prepend=cut)
        with np.errstate(invalid="ignore"):  # a resample without a value here: 0 / 0, NaN
            out[:, point] = kept @ column[order] / (total - 2 * cut)[:, 0]
    return out


def _relabelings(num_a: int, num_b: int) -> tuple[np.ndarray, int]:
    """Masks (relabelings, seeds) of A's runs: all, or a sample. And 1 where what was observed has to be added."""
    seeds = num_a + num_b
    if comb(seeds, num_a) <= MOST_ENUMERATED:
        chosen = np.array(list(combinations(range(seeds), num_a)))
        masks = np.zeros((len(chosen), seeds), bool)
        np.put_along_axis(masks, chosen, True, axis=1)
        return masks, 0
    ranks = np.random.default_rng(SPLIT_SEED).random((SAMPLED, seeds)).argsort(axis=1)
    return ranks < num_a, 1


def _areas(masks: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Area between the mean curves of the runs chosen and the others: masks (R, seeds), values (seeds, bins) -> (R,).

    NaN where no bin has values of both sides.
    """
    known, filled = (~np.isnan(values)).astype(float), np.nan_to_num(values)
    means = []
    for labels in (masks.astype(float), (~masks).astype(float)):
        counts = labels @ known
        means.append(np.divide(labels @ filled, counts, out=np.full(counts.shape, np.nan), where=counts > 0))
    return _mean_gap(means[1] - means[0])


def _mean_gap(gaps: np.ndarray) -> np.ndarray:
    """Mean of |gap| over the bins that have one: (R, bins) -> (R,); NaN where none has."""
    known = ~np.isnan(gaps)
    counts = known.sum(axis=1)
    sums = np.where(known, np.abs(gaps), 0.0).sum(axis=1)
    return np.divide(sums, counts, out=np.full(len(gaps), np.nan), where=counts > 0)


def _stacked(games: Games) -> np.ndarray:
    """The runs of all games, game after game in the order of names: [N, bins]."""
    return np.concatenate([games[env_id] for env_id in sorted(games)])


def _starts(games: Games) -> np.ndarray:
    return np.cumsum([0, *(len(games[env_id]) for env_id in sorted(games))])


def _empty_weights(num_runs: int, resampling: Resampling) -> np.ndarray:
    return np.empty((-(-resampling.repetitions // kernels.LANES), num_runs, kernels.LANES))


def _by_repetition(weights: np.ndarray, resampling: Resampling) -> np.ndarray:
    """[B, N, L] -> [repetitions, N]"""
    return weights.transpose(0, 2, 1).reshape(-1, weights.shape[1])[: resampling.repetitions]
