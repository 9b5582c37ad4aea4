"""Final scores of the real curves in ../shared/data, human-normalised; tests that need them are skipped without."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.matrix import ScoreMatrix, from_frame

DATA = Path(__file__).parents[1] / ".." / "shared" / "data"

needed = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is absent: no curves of others to test on")


def ppo_curves() -> pd.DataFrame:
    """57 games x 5 seeds: env_id, seed, frames, hns."""
    return _normalised(pd.read_csv(DATA / "curves" / "ppo_atari57_dreamerv3.csv.gz"), "mean_return")


def ppo() -> ScoreMatrix:
    """Score at the last point, 200M frames."""
    return from_frame(ppo_curves().query("frames == frames.max()"), "ppo")


def moolib() -> ScoreMatrix:
    """56 games x 3 seeds: mean over the last tenth of the env steps."""
    curves = pd.read_csv(DATA / "curves" / "moolib_atari_2021.csv.gz").dropna(subset="mean_episode_return")
    end = curves.groupby(["env_id", "seed"])["env_train_steps"].transform("max")
    last = _normalised(curves[curves["env_train_steps"] >= 0.9 * end], "mean_episode_return")
    return from_frame(last.groupby(["env_id", "seed"], as_index=False)["hns"].mean(), "moolib")


def array(matrix: ScoreMatrix) -> np.ndarray:
    """rliable's form [runs, games]."""
    return np.stack(list(matrix.scores.values()), axis=1)


def _normalised(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    table = pd.read_csv(DATA / "published" / "atari57_hns.csv", index_col="env_id").loc[frame["env_id"]]
    low, high = table["random_score"].to_numpy(), table["human_score"].to_numpy()
    return frame.assign(hns=(frame[column].to_numpy() - low) / (high - low))
