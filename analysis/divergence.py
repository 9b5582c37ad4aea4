"""How far the learning curves of two run sets on one game are apart, what noise alone makes of it, and a verdict.

Seeds are the unit of replication. Bit-identical runs need no statistics: their fingerprints say so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, sqrt

import numpy as np
import pandas as pd
from scipy import stats

from analysis.curves import mean_over_seeds

SEEDS_FOR_A_VERDICT = 4  # with 3 seeds a side no two-sided rank test can go below p = 0.10; with 4, 0.029
MAX_SPLITS = 200  # all splits up to 10 seeds (126 of 5 + 5); beyond, that many drawn ones
SPLIT_SEED = 20_230_930  # any fixed number: the same splits in every report
ALPHA = 0.05
MOST_SEEDS = 1000  # where the search for the seeds that a verdict needs ends


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Curves B minus A on a common grid. `area` and gaps are in the unit of the values (HNS or return).

    area                area between the mean curves per unit budget: the mean of |gap| over the compared bins
    relative_area       area as a share of the mean |value| of A's curve over those bins; NaN where that is 0
    largest_gap         B - A where |B - A| is largest, at `largest_gap_env_steps` (right edge of that bin)
    compared_share      share of the grid's bins in which both sets have a value
    """

    area: float
    relative_area: float
    largest_gap: float
    largest_gap_env_steps: float
    compared_share: float


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """The area between halves of one set (A/A), over `splits` splits with `seeds_per_side` seeds in the smaller half.

    Without a set that has seeds enough for two halves there is no floor: NaN, 0 splits.
    """

    median: float
    largest: float
    splits: int
    seeds_per_side: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`word` is about B against A: same, better, worse or `cannot tell (...)`.

    `difference`, `low`, `high`: mean of B - A of the seeds' mean values over the budget, with the 90 % interval of two
    one-sided Welch tests at 5 %; NaN with fewer than two seeds on a side.
    """

    word: str
    difference: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Fingerprints of two runs over the updates that both recorded; `update`, `stage`, `shard`: where they part, and in
    a rollout `step`, the env step, where that is known."""

    identical: bool
    updates_compared: int
    update: int | None = None
    stage: str | None = None
    shard: int | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class VarianceRatio:
    """Variance over seeds of B over that of A, with the 95 % interval of an F test, which takes scores for normal.

    NaN with fewer than two seeds on a side, or where A does not vary.
    """

    ratio: float
    low: float
    high: float


def divergence(a: np.ndarray, b: np.ndarray, env_steps: np.ndarray) -> Divergence:
    """`a`, `b`: (seeds, bins) on the grid `env_steps` (bins,). All NaN where no bin has values of both sets."""
    return of_means(mean_over_seeds(a), mean_over_seeds(b), env_steps)


def of_means(a: np.ndarray, b: np.ndarray, env_steps: np.ndarray) -> Divergence:
    """`a`, `b`: the curves themselves (bins,), means over seeds or aggregates over games."""
    gap = b - a
    compared = ~np.isnan(gap)
    if not compared.any():
        return Divergence(
            area=np.nan, relative_area=np.nan, largest_gap=np.nan, largest_gap_env_steps=np.nan, compared_share=0.0
        )
    where = int(np.nanargmax(np.abs(gap)))
    area, scale = float(np.abs(gap[compared]).mean()), float(np.abs(a[compared]).mean())
    return Divergence(
        area=area,
        relative_area=area / scale if scale else np.nan,
        largest_gap=float(gap[where]),
        largest_gap_env_steps=float(env_steps[where]),
        compared_share=float(compared.mean()),
    )


def noise_floor(sets: Sequence[np.ndarray], env_steps: np.ndarray, fewest_per_side: int = 2) -> NoiseFloor:
    """A/A: the area between the halves of each set (seeds, bins) with enough seeds for two, all splits together."""
    enough = [values for values in sets if len(values) >= 2 * fewest_per_side]
    splits = [(values, half) for values in enough for half in halves(len(values))]
    areas = [divergence(values[half], values[~half], env_steps).area for values, half in splits]
    if not areas:
        return NoiseFloor(median=np.nan, largest=np.nan, splits=0, seeds_per_side=0)
    return NoiseFloor(
        median=float(np.median(areas)),
        largest=float(np.max(areas)),
        splits=len(areas),
        seeds_per_side=min(int(half.sum()) for _, half in splits),
    )


def verdict(a: np.ndarray, b: np.ndarray, area: float, margin: float | None) -> Verdict:
    """Equivalence of B to A within `margin` (in the unit of the values), or better or worse by more than it.

    `same` needs both: the 90 % interval of the difference inside the margin, and the area between the curves no larger
    than it, since curves that cross can have the same mean. No side with fewer than 4 seeds gets a verdict.
    """
    means_a, means_b = _mean_over_budget(a), _mean_over_budget(b)
    difference, low, high = _interval(means_a, means_b)
    if margin is None:
        word = "cannot tell (the experiment declares no margin)"
    else:
        fewest = min(len(means_a), len(means_b))
        needed = max(fewest + 1, _seeds_needed(means_a, means_b, margin))  # those that are there did not suffice
        enough = fewest >= SEEDS_FOR_A_VERDICT
        word = judge(low, high, area, margin, needed) if enough else cannot_tell(max(SEEDS_FOR_A_VERDICT, needed))
    return Verdict(word=word, difference=difference, low=low, high=high)


def variance_ratio(a: np.ndarray, b: np.ndarray) -> VarianceRatio:
    """`a`, `b`: one score per seed."""
    if min(len(a), len(b)) < 2 or a.var(ddof=1) == 0:
        return VarianceRatio(ratio=np.nan, low=np.nan, high=np.nan)
    ratio = float(b.var(ddof=1) / a.var(ddof=1))
    low, high = stats.f.ppf([ALPHA / 2, 1 - ALPHA / 2], len(b) - 1, len(a) - 1)
    return VarianceRatio(ratio=ratio, low=ratio / float(high), high=ratio / float(low))


def judge(low: float, high: float, area: float, margin: float, seeds_needed: int) -> str:
    """The word for a difference that lies between `low` and `high`, of curves with this area between them."""
    if low > margin:
        return "better"
    if high < -margin:
        return "worse"
    if -margin < low and high < margin:
        return "same" if area <= margin else "cannot tell (the means agree, the curves do not)"
    return cannot_tell(seeds_needed)


def compare_fingerprints(a: pd.DataFrame, b: pd.DataFrame) -> Agreement:
    """`a`, `b`: rows (update, stage, shard, digest) in causal order. No common update: not identical, 0 compared."""
    keys = ["update", "stage", "shard"]
    last = min(a["update"].max(), b["update"].max()) if len(a) and len(b) else 0
    a, b = (rows.loc[rows["update"] <= last].reset_index(drop=True) for rows in (a, b))
    if len(a) == len(b) and a[keys].equals(b[keys]):
        both = a.assign(digest_b=b["digest"])
    else:
        both = a.merge(b, on=keys, suffixes=("", "_b"), sort=False)
    differs = both["digest"].to_numpy() != both["digest_b"].to_numpy()
    compared = len(both["update"].unique())
    if not differs.any():
        return Agreement(identical=compared > 0, updates_compared=compared)
    first = both.iloc[int(differs.argmax())]
    return Agreement(
        identical=False,
        updates_compared=compared,
        update=int(first["update"]),
        stage=str(first["stage"]),
        shard=int(first["shard"]),
    )


def halves(seeds: int) -> list[np.ndarray]:
    """Masks of shape (seeds,) that choose one half; each split of an even number once."""
    if comb(seeds, seeds // 2) <= MAX_SPLITS:
        chosen = list(combinations(range(seeds), seeds // 2))
        if seeds % 2 == 0:
            chosen = [half for half in chosen if 0 in half]
    else:
        rng = np.random.default_rng(SPLIT_SEED)
        chosen = [rng.permutation(seeds)[: seeds // 2] for _ in range(MAX_SPLITS)]
    return [np.isin(np.arange(seeds), half) for half in chosen]


def _mean_over_budget(values: np.ndarray) -> np.ndarray:
    """(seeds, bins) -> (seeds with a value,): each seed's mean over its bins that have one."""
    means = mean_over_seeds(values.T)
    return means[~np.isnan(means)]


def _interval(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """Welch: (difference of means, low, high) of the 1 - 2 ALPHA interval; NaN ends with fewer than 2 seeds a side."""
    if min(len(a), len(b)) < 1:
        return np.nan, np.nan, np.nan
    difference = float(b.mean() - a.mean())
    if min(len(a), len(b)) < 2:
        return difference, np.nan, np.nan
    squares = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
    error = sqrt(squares.sum())
    if error == 0:
        return difference, difference, difference
    freedom = squares.sum() ** 2 / (squares**2 / (np.array([len(a), len(b)]) - 1)).sum()
    half = float(stats.t.ppf(1 - ALPHA, freedom)) * error
    return difference, difference - half, difference + half


def _seeds_needed(a: np.ndarray, b: np.ndarray, margin: float) -> int:
    """The seeds a side with which the interval, as wide as these seeds say, would leave no doubt; 0 if unknown."""
    if min(len(a), len(b)) < 2:
        return 0
    room = abs(margin - abs(b.mean() - a.mean()))
    spread = sqrt(a.var(ddof=1) + b.var(ddof=1))
    for n in range(2, MOST_SEEDS + 1):
        if stats.t.ppf(1 - ALPHA, 2 * n - 2) * spread / sqrt(n) < room:
            return n
    return MOST_SEEDS


def cannot_tell(seeds: int) -> str:
    return f"cannot tell (needs n >= {seeds} seeds)"
