"""Learning curves on a common env-step grid: per run, then mean and band over seeds.

Bin i of a grid holds the episodes that ended in (edge i, edge i + 1]. A bin in which a run ended no episode is a gap
(NaN): not zero, not the value before, and nothing stands past a run's last env step.
"""

import numpy as np
import pandas as pd

from analysis.scores import ScoreTable

NUM_BINS = (100, 50, 20, 10)  # each divides the first, so that finer bins add up to coarser ones
EPISODES_PER_BIN = 10  # on average, for the run with the fewest; below, a bin's mean is mostly luck
BAND = "from the lowest to the highest seed"


def bin_episodes(
    env_steps: np.ndarray, returns: np.ndarray, budget: int, episodes: np.ndarray | None = None
) -> np.ndarray:
    """Sums of returns and numbers of episodes per bin of the finest grid over (0, budget]: shape (2, NUM_BINS[0]).

    With `episodes`, an entry of `returns` is the sum of so many. What lies outside (0, budget] is left out.
    """
    num_bins = NUM_BINS[0]
    steps = np.ceil(env_steps).astype(np.int64)  # a log in frames may give a quarter of an env step
    inside = (steps > 0) & (steps <= budget)
    index = (steps[inside] * num_bins - 1) // budget
    weights = (returns, np.ones(len(steps)) if episodes is None else episodes)
    return np.array([np.bincount(index, weight[inside], minlength=num_bins) for weight in weights])


def choose_num_bins(fewest_episodes: int) -> int:
    """The finest grid on which the run with the fewest episodes has 10 a bin on average; else the coarsest."""
    return next((n for n in NUM_BINS if fewest_episodes / n >= EPISODES_PER_BIN), NUM_BINS[-1])


def run_curve(binned: np.ndarray, budget: int, num_bins: int) -> pd.DataFrame:
    """One run's curve: env_steps (a bin's right edge), episodes and their mean return (NaN without any) per bin."""
    sums, counts = binned.reshape(2, num_bins, -1).sum(axis=2)
    means = np.divide(sums, counts, out=np.full(num_bins, np.nan), where=counts > 0)
    edges = budget * np.arange(1, num_bins + 1) / num_bins
    return pd.DataFrame({"env_steps": edges, "episodes": counts.astype(int), "episode_return": means})


def hns(frame: pd.DataFrame, column: str, table: ScoreTable) -> np.ndarray:
    """The column of raw returns human-normalised by the row's env_id; NaN for games that the table does not have."""
    unknown = (np.nan, np.nan)
    random, human = np.array([table.scores.get(env_id, unknown) for env_id in frame["env_id"]]).T
    return (frame[column].to_numpy() - random) / (human - random)


def over_seeds(curves: pd.DataFrame, value: str = "episode_return") -> pd.DataFrame:
    """Mean and band over seeds per system, game and bin; every seed weighs the same, `seeds` says how many had a value.

    Returns algorithm, profile, env_id, env_steps, mean, low, high, seeds, episodes.
    """
    groups = curves.groupby(["algorithm", "profile", "env_id", "env_steps"], observed=True, sort=True)
    return groups.agg(
        mean=(value, "mean"),
        low=(value, "min"),
        high=(value, "max"),
        seeds=(value, "count"),
        episodes=("episodes", "sum"),
    ).reset_index()


def matrix(curves: pd.DataFrame, value: str) -> tuple[np.ndarray, np.ndarray]:
    """One system's curves on one game as (env_steps of shape (bins,), values of shape (seeds, bins)), seeds sorted."""
    ordered = curves.sort_values(["seed", "env_steps"])
    env_steps = np.unique(ordered["env_steps"])
    return env_steps, ordered[value].to_numpy().reshape(-1, len(env_steps))


def mean_over_seeds(values: np.ndarray) -> np.ndarray:
    """(seeds, bins) -> (bins,): mean over the seeds that have a value; NaN where none has."""
    counts = (~np.isnan(values)).sum(axis=0)
    return np.divide(np.nansum(values, axis=0), counts, out=np.full(values.shape[1], np.nan), where=counts > 0)
