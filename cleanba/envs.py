"""EnvPool under a named protocol, with game end, time limit, auto-reset and raw reward told apart."""

import difflib
from typing import Any, NamedTuple

import envpool
import numpy as np

# Env steps per episode: 108,000 frames (Hessel et al. 2018, table 3) at 4 frames an env step.
ATARI_MAX_EPISODE_STEPS = 27_000

PROTOCOLS: dict[str, dict[str, Any]] = {
    # Machado et al. 2018, table 5: sticky actions, full action set, no life-loss episodes; as Cleanba's paper.
    "machado2018": {
        "repeat_action_probability": 0.25,
        "full_action_space": True,
        "episodic_life": False,
        "noop_max": 1,
        "max_episode_steps": ATARI_MAX_EPISODE_STEPS,
        "reward_clip": True,
    },
    "classic_control": {},  # the environment's own settings
}


def frames_per_env_step(protocol: str) -> int:
    """Emulator frames per agent step: EnvPool's Atari repeats each action over 4."""
    return 1 if protocol == "classic_control" else 4


class Spec(NamedTuple):
    """What a network must know of an environment."""

    num_actions: int
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype


def spec(env_id: str, protocol: str) -> Spec:
    """Raises ValueError for an unknown environment and for a protocol that is not for it."""
    known = envpool.list_all_envs()
    if env_id not in known:
        near = difflib.get_close_matches(env_id, known, n=3)
        raise ValueError(f"env_id is {env_id!r}, which EnvPool does not have; nearest: {', '.join(near) or 'none'}")
    atari = envpool.make_spec(env_id).__class__.__name__.startswith("Atari")
    if atari != (protocol != "classic_control"):
        raise ValueError(f"protocol is {protocol!r}, which is not for env_id {env_id!r}")
    made = envpool.make_spec(env_id, **PROTOCOLS[protocol])
    space = made.observation_space
    dtype = np.dtype(np.uint8 if space.dtype == np.uint8 else np.float32)
    return Spec(int(made.action_space.n), tuple(space.shape), dtype)


class Step(NamedTuple):
    """What one env step of all envs of a group gave. Arrays have shape [E] but for observations [E, ...]."""

    observations: np.ndarray
    rewards: np.ndarray  # for learning: clipped where the protocol clips
    raw_rewards: np.ndarray  # for the logged return
    terminated: np.ndarray  # the game ended
    truncated: np.ndarray  # the time limit ended the episode; its value is bootstrapped
    valid: np.ndarray  # False where the env was auto-reset and ignored the action


class Envs:
    """One actor group's envs. `num_threads` changes the speed and nothing else (FINDINGS T15)."""

    def __init__(self, env_id: str, protocol: str, seeds: list[int], num_threads: int):
        self.spec = spec(env_id, protocol)
        self._envs: Any = envpool.make(
            env_id,
            env_type="gymnasium",
            num_envs=len(seeds),
            env_seed=seeds,
            num_threads=min(num_threads, len(seeds)),
            **PROTOCOLS[protocol],
        )
        self._ended = np.zeros(len(seeds), bool)
        self._time_limit: int = self._envs.spec.config.max_episode_steps

    def reset(self) -> np.ndarray:
        """Observations [E, ...] at the start of every env's first episode."""
        observations, _ = self._envs.reset()
        return self._narrow(observations)

    def step(self, actions: np.ndarray) -> Step:
        """One env step with `actions` [E] int32. An env whose episode ended is reset instead."""
        observations, rewards, terminated, _, info = self._envs.step(actions)
        elapsed = info["elapsed_step"]
        reset = elapsed == 0
        if not np.array_equal(reset, self._ended):  # else rows would be masked that are not resets, or the reverse
            raise RuntimeError(f"EnvPool reset envs {np.flatnonzero(reset)}, expected {np.flatnonzero(self._ended)}")
        # T1: EnvPool's own flags can both be False at a time limit, so that the limit is read off the step count.
        terminated = np.asarray(info.get("terminated", terminated), bool)
        truncated = (elapsed >= self._time_limit) & ~terminated
        self._ended = terminated | truncated
        return Step(
            observations=self._narrow(observations),
            rewards=np.asarray(rewards, np.float32),
            raw_rewards=np.asarray(info.get("reward", rewards), np.float32),  # T2: `rewards` is clipped
            terminated=terminated,
            truncated=truncated,
            valid=~reset,
        )

    def close(self) -> None:
        self._envs.close()

    def _narrow(self, observations: np.ndarray) -> np.ndarray:
        return np.asarray(observations, self.spec.observation_dtype)
