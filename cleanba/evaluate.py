"""Evaluation of a policy over whole games."""

from typing import Any

import numpy as np

from cleanba import streams, training
from cleanba.config import Config
from cleanba.envs import Envs
from cleanba.rollout import EpisodeTracker

_MAX_ENVS = 16  # games side by side


def evaluate(config: Config, params: Any, num_episodes: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of `num_episodes` full games under the run's protocol, actions sampled as in training.

    Every env plays a number of games fixed beforehand: taking the first games to finish would favour short ones.
    """
    if num_episodes < 1:
        raise ValueError(f"num_episodes is {num_episodes}; allowed: 1 or more")
    num_envs = min(num_episodes, _MAX_ENVS)
    games_left = np.full(num_envs, num_episodes // num_envs)
    games_left[: num_episodes % num_envs] += 1
    seeds = streams.env_seeds(seed, range(num_envs), evaluation=True)
    envs = Envs(config.env_id, config.protocol, seeds, num_threads=num_envs)
    network, _ = training.make_network(config)
    policy = training.make_policy(network)
    key = streams.key(seed, streams.Role.EVALUATION)
    tracker = EpisodeTracker(num_envs)
    observations, t, rows = envs.reset(), 0, []
    while games_left.any():
        actions, _, _ = policy(params, observations, key, t)
        step = envs.step(np.asarray(actions))
        observations, t = step.observations, t + 1
        for row in tracker.step(step):
            if games_left[row["env"]] > 0:
                games_left[row["env"]] -= 1
                rows.append(row)
    envs.close()
    return rows
