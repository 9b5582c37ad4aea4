"""One update's rollouts in host memory, and the rows of the episodes that ended in it."""

from typing import Any, NamedTuple

import numpy as np

from cleanba.envs import Spec, Step

_ALIGNMENT_BYTES = 64  # JAX on CPU shares host memory of this alignment instead of copying it


class Batch(NamedTuple):
    """Rollouts of T env steps in all envs of this process, shard by shard: arrays [shards, envs, T, ...].

    Row t holds x_t, the action taken in it, and the reward and game end that followed; observations have one row more,
    the bootstrap row. `discounts` are left to the learner: gamma where `terminated` is False. Fresh memory for every
    update, since JAX may alias it (FINDINGS T3).
    """

    observations: Any  # [S, n, T + 1, ...]
    actions: Any  # [S, n, T] int32
    behaviour_logits: Any  # [S, n, T, A] float32
    values: Any  # [S, n, T] float32, under the behaviour policy
    rewards: Any  # [S, n, T] float32, for learning
    terminated: Any  # [S, n, T] bool
    valid: Any  # [S, n, T] bool, False where the env was auto-reset

    @classmethod
    def empty(cls, shards: int, envs: int, T: int, spec: Spec) -> "Batch":
        lead = (shards, envs, T)
        return cls(
            observations=_aligned((shards, envs, T + 1, *spec.observation_shape), spec.observation_dtype),
            actions=_aligned(lead, np.int32),
            behaviour_logits=_aligned((*lead, spec.num_actions), np.float32),
            values=_aligned(lead, np.float32),
            rewards=_aligned(lead, np.float32),
            terminated=_aligned(lead, np.bool_),
            valid=_aligned(lead, np.bool_),
        )

    def rows_of(self, envs: slice) -> "Batch":
        """A writable view of a contiguous range of this process' envs, [len(envs), T, ...]."""
        return Batch(*(x.reshape(-1, *x.shape[2:])[envs] for x in self))


def _aligned(shape: tuple[int, ...], dtype) -> np.ndarray:
    """Uninitialised memory whose first byte JAX can share."""
    size_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT_BYTES
    return raw[start : start + size_bytes].view(dtype).reshape(shape)


class EpisodeTracker:
    """Running returns and lengths of one group's envs. Truncation ends an episode as a game end does (FINDINGS T1)."""

    def __init__(self, num_envs: int):
        self._returns = np.zeros((num_envs, 2))  # raw, clipped
        self._lengths = np.zeros(num_envs, np.int64)

    def step(self, step: Step) -> list[dict[str, Any]]:
        """Account for one env step; the rows of the episodes it ended, env by env."""
        self._returns += np.stack([step.raw_rewards, step.rewards], axis=1)  # both are 0 at an auto-reset
        self._lengths += step.valid
        ended = np.flatnonzero(step.terminated | step.truncated)
        if not len(ended):
            return []
        rows = [
            {
                "env": int(env),
                "episode_return": float(self._returns[env, 0]),
                "clipped_return": float(self._returns[env, 1]),
                "episode_length": int(self._lengths[env]),
                "truncated": int(step.truncated[env]),
            }
            for env in ended
        ]
        self._returns[ended] = 0
        self._lengths[ended] = 0
        return rows
