"""Percentile intervals by a bootstrap stratified by game: seeds are resampled within their game, games are fixed.

Every random number is addressed by (seed, system, game, repetition, draw), so an interval's bits depend on nothing
else: not on the other systems of the call, the order of systems, games or seeds, the number of threads, or how
repetitions are dealt out. Dropping a game leaves the other games' resamples as they were.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import kernels, statistics
from analysis.matrix import ScoreMatrix, same_games

_CHUNK_CELLS = 2**18  # weights held by a thread at a time: 2 MiB

Draw = Callable[[int, np.ndarray], object]  # (first repetition, weights [B, N, L] to fill)
Evaluate = Callable[[np.ndarray], np.ndarray]  # weights [B, N, L] -> statistic [P, B, L]


@dataclass(frozen=True, kw_only=True)
class Resampling:
    """How intervals are made. `threads` is None for the usable CPUs; it changes no bit."""

    repetitions: int = 50_000
    seed: int = 0
    confidence: float = 0.95
    threads: int | None = None

    def __post_init__(self):
        if self.repetitions < 1:
            raise ValueError(f"repetitions is {self.repetitions}; allowed: 1 or more")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence is {self.confidence}; allowed: a share between 0 and 1, such as 0.95")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads is {self.threads}; allowed: 1 or more")

    @property
    def quantiles(self) -> tuple[float, float]:
        return (1 - self.confidence) / 2, (1 + self.confidence) / 2


DEFAULT = Resampling()


@dataclass(frozen=True, eq=False)
class Cells:
    """All runs in one row: `scores` [P, N], game after game in the order of names; `starts` [G + 1] bound the games."""

    env_ids: tuple[str, ...]
    starts: np.ndarray
    scores: np.ndarray

    @classmethod
    def of(cls, scores: Mapping[str, np.ndarray], *, keep_order: bool = False) -> "Cells":
        """scores: env_id -> [seeds] or [P, seeds]. Seeds are sorted by score, so that their order does not matter,
        unless `keep_order`, which pairing needs."""
        env_ids = tuple(sorted(scores))
        games = [np.atleast_2d(np.asarray(scores[env_id], np.float64)) for env_id in env_ids]
        if not keep_order:
            games = [np.sort(game, axis=1) for game in games]
        starts = np.cumsum([0] + [game.shape[1] for game in games])
        return cls(env_ids, starts.astype(np.int64), np.ascontiguousarray(np.concatenate(games, axis=1)))

    @property
    def sizes(self) -> np.ndarray:
        """Runs of each game [G]."""
        return np.diff(self.starts)


def aggregates(
    matrices: Sequence[ScoreMatrix],
    *,
    names: Sequence[str] = tuple(statistics.AGGREGATES),
    resampling: Resampling = DEFAULT,
) -> pd.DataFrame:
    """The named aggregates of each system with their intervals, one row per system and statistic.

    Columns: system, statistic, estimate, low, high, num_games, num_runs, fewest_seeds, most_seeds, confidence,
    repetitions, note. With one seed per game there is no interval (NaN), and `note` says so.
    """
    same_games(matrices)
    rows = []
    for matrix in matrices:
        _refuse_raw(matrix)
        cells = Cells.of(matrix.scores)
        replicated = replicates(
            cells, names, draw=bootstrap_draw(matrix.system, cells, resampling), resampling=resampling
        )
        for name in names:
            estimate = statistics.AGGREGATES[name](matrix.scores)
            low, high = interval(replicated[name][0], cells.sizes, resampling)
            rows.append({"system": matrix.system, "statistic": name, "estimate": estimate, "low": low, "high": high})
            rows[-1] |= _counts(matrix, resampling)
    return pd.DataFrame(rows)


def profiles(
    matrices: Sequence[ScoreMatrix],
    thresholds: Sequence[float] | np.ndarray,
    *,
    kind: str = "score",
    resampling: Resampling = DEFAULT,
) -> pd.DataFrame:
    """Performance profiles with pointwise bands, one row per system and threshold.

    `kind` is `score` (share of runs above the threshold) or `average` (share of games whose mean is). Columns: system,
    kind, threshold, estimate, low, high and the counts of `aggregates`.
    """
    points = {"score": statistics.score_profile, "average": statistics.average_score_profile}
    if kind not in points:
        raise ValueError(f"kind of profile is {kind!r}; allowed: {', '.join(points)}")
    thresholds = np.asarray(thresholds, np.float64)
    if not thresholds.size or not np.isfinite(thresholds).all() or (np.diff(thresholds) <= 0).any():
        raise ValueError("thresholds of a performance profile must be finite numbers that increase, at least one")
    same_games(matrices)
    frames = []
    for matrix in matrices:
        _refuse_raw(matrix)
        estimate = points[kind](matrix.scores, thresholds)
        low, high = _profile_band(matrix, thresholds, kind, resampling)
        frame = pd.DataFrame({"threshold": thresholds, "estimate": estimate, "low": low, "high": high})
        frames.append(frame.assign(system=matrix.system, kind=kind, **_counts(matrix, resampling)))
    return pd.concat(frames, ignore_index=True)


def interval(replicated: np.ndarray, sizes: np.ndarray, resampling: Resampling) -> tuple[float, float]:
    """Percentile interval of replicates [repetitions]; NaN where no game has a second seed."""
    if (sizes == 1).all():
        return np.nan, np.nan
    low, high = np.quantile(replicated, resampling.quantiles)
    return float(low), float(high)


def note_on_seeds(sizes: np.ndarray) -> str:
    """What the reader of an interval must know about games with one seed; empty where there is none."""
    single = int((sizes == 1).sum())
    if single == len(sizes):
        return "one seed per game: no interval"
    if single:
        return f"{single} of {len(sizes)} games have one seed, whose spread counts as zero: the interval is too narrow"
    return ""


def replicates(
    cells: Cells,
    names: Sequence[str],
    *,
    draw: Draw,
    resampling: Resampling,
    sizes: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """The named aggregates of every resample: name -> [P, repetitions].

    `sizes` [G] is how many runs of each game a resample has, when not all.
    """
    sizes = cells.sizes if sizes is None else sizes
    evaluators = {name: _evaluator(name, cells, sizes) for name in names}
    shape = len(cells.scores), resampling.repetitions
    out = {name: np.empty(shape) for name in names}

    def use(first: int, last: int, weights: np.ndarray) -> None:
        for name, evaluate in evaluators.items():
            out[name][:, first:last] = evaluate(weights).reshape(shape[0], -1)[:, : last - first]

    for_each_chunk(cells.scores.shape[1], draw, use, resampling)
    return out


def for_each_chunk(
    num_cells: int, draw: Draw, use: Callable[[int, int, np.ndarray], object], resampling: Resampling
) -> None:
    """Calls use(first, last, weights [B, N, L]) for all repetitions, first up to before last, shared out to threads.

    The weights of lanes from `last` on are not to be used.
    """
    blocks = max(1, _CHUNK_CELLS // (num_cells * kernels.LANES))
    step = blocks * kernels.LANES

    def run(first: int) -> None:
        last = min(first + step, resampling.repetitions)
        weights = np.empty((-(-(last - first) // kernels.LANES), num_cells, kernels.LANES))
        draw(first, weights)
        use(first, last, weights)

    with ThreadPoolExecutor(resampling.threads or len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(run, range(0, resampling.repetitions, step)):
            pass  # raises what a thread raised


def bootstrap_draw(name: str, cells: Cells, resampling: Resampling) -> Draw:
    """Draws each game's runs with replacement, on the streams of `name`."""
    keys = stream_keys("bootstrap", name, cells.env_ids, resampling)
    return lambda first, weights: kernels.draw_bootstrap(keys, cells.starts, first, weights)


def stream_keys(purpose: str, name: str, env_ids: Sequence[str], resampling: Resampling) -> np.ndarray:
    """One 64-bit stream key per game [G], from everything that addresses it."""
    addresses = [json.dumps([purpose, resampling.seed, name, env_id]) for env_id in env_ids]
    digests = [hashlib.sha256(address.encode()).digest() for address in addresses]
    return np.array([int.from_bytes(digest[:8], "little") for digest in digests], np.uint64)


def _evaluator(name: str, cells: Cells, sizes: np.ndarray) -> Evaluate:
    """The kernel of an aggregate with all that depends on the values alone worked out beforehand."""
    values, total = cells.scores, int(sizes.sum())
    if name == "mean":
        return _linear(values / np.repeat(sizes * len(sizes), cells.sizes))
    if name == "optimality_gap":
        shortfall = statistics.GAP_TARGET - np.minimum(values, statistics.GAP_TARGET)
        return _linear(shortfall / total)
    if name == "iqm":
        order = np.argsort(values, axis=1, kind="stable")
        ascending = np.take_along_axis(values, order, axis=1)
        cut = int(statistics.TRIMMED * total)
        return _evaluate(kernels.trimmed_mean, len(values), order, ascending, float(cut), float(total - 2 * cut))
    if name == "median":
        network = kernels.median_network(len(sizes))
        return _evaluate(kernels.median_of_means, len(values), cells.starts, sizes, network, values)
    raise ValueError(f"statistic is {name!r}; allowed: {', '.join(statistics.AGGREGATES)}")


def _linear(coefficients: np.ndarray) -> Evaluate:
    return _evaluate(kernels.linear, len(coefficients), np.ascontiguousarray(coefficients))


def _evaluate(kernel: Callable, num_points: int, *arguments) -> Evaluate:
    def evaluate(weights: np.ndarray) -> np.ndarray:
        out = np.empty((num_points, len(weights), kernels.LANES))
        kernel(weights, *arguments, out)
        return out

    return evaluate


def _profile_band(
    matrix: ScoreMatrix, thresholds: np.ndarray, kind: str, resampling: Resampling
) -> tuple[np.ndarray, np.ndarray]:
    """Pointwise percentile band [T], [T]. The shares are counts, so a histogram per threshold holds all replicates."""
    cells = Cells.of(matrix.scores)
    if (cells.sizes == 1).all():
        return np.full(thresholds.size, np.nan), np.full(thresholds.size, np.nan)
    most = cells.scores.shape[1] if kind == "score" else len(cells.env_ids)
    surpassed = np.searchsorted(thresholds, cells.scores[0])
    histograms = []  # one per chunk; whole numbers, so their sum does not depend on the order of threads

    def use(first: int, last: int, weights: np.ndarray) -> None:
        histogram = np.zeros((thresholds.size, most + 1), np.int64)
        if kind == "score":
            kernels.score_profile(weights, surpassed, last - first, histogram)
        else:
            kernels.average_profile(
                weights, cells.starts, cells.sizes, cells.scores[0], thresholds, last - first, histogram
            )
        histograms.append(histogram)

    for_each_chunk(cells.scores.shape[1], bootstrap_draw(matrix.system, cells, resampling), use, resampling)
    low, high = (histogram_quantile(np.sum(histograms, axis=0), quantile) / most for quantile in resampling.quantiles)
    return low, high


def histogram_quantile(histogram: np.ndarray, quantile: float) -> np.ndarray:
    """np.quantile (linear) of counts of the values 0, 1, 2, ...: histogram [T, M + 1] -> [T]."""
    up_to = np.cumsum(histogram, axis=1)
    position = quantile * (up_to[0, -1] - 1)
    below, above = ((up_to <= rank).sum(axis=1) for rank in (np.floor(position), np.ceil(position)))
    return below + (above - below) * (position - np.floor(position))


def _counts(matrix: ScoreMatrix, resampling: Resampling) -> dict[str, object]:
    fewest, most = matrix.num_seeds
    sizes = np.array([len(scores) for scores in matrix.scores.values()])
    return {
        "num_games": matrix.num_games,
        "num_runs": matrix.num_runs,
        "fewest_seeds": fewest,
        "most_seeds": most,
        "confidence": resampling.confidence,
        "repetitions": resampling.repetitions,
        "note": note_on_seeds(sizes),
    }


def _refuse_raw(matrix: ScoreMatrix) -> None:
    if matrix.unit != "hns" and matrix.num_games > 1:
        raise ValueError(f"{matrix.system}: an aggregate over games needs human-normalised scores; found {matrix.unit}")
