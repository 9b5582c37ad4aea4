"""Actor groups: their envs, where they stand, and how they make a rollout."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from cleanba import streams
from cleanba.checkpoints import Checkpoint
from cleanba.config import Config
from cleanba.delays import Delays, Who
from cleanba.envs import Envs
from cleanba.layout import Layout
from cleanba.rollout import Batch, EpisodeTracker

# policy(parameters, observations [E, ...], group key, step in rollout) -> actions [E], logits [E, A], values [E]
Policy = Callable[[Any, np.ndarray, jax.Array, int], tuple[jax.Array, jax.Array, jax.Array]]
Newest = Callable[[], tuple[int, Any]]  # -> policy version, parameters


@dataclass
class GroupRollout:
    """What is known of one group's rollout beside its batch."""

    group: int
    policy_versions: list[int] = field(default_factory=list)  # of each env step
    episodes: list[tuple[int, float, dict[str, Any]]] = field(default_factory=list)  # env step, clock, row
    inference_seconds: float = 0.0
    env_seconds: float = 0.0


class Group:
    """One logical actor group: its envs and the episodes under way."""

    def __init__(self, config: Config, number: int, envpool_threads: int, begin: Checkpoint):
        self.number = number
        self._config = config
        self._envpool_threads = envpool_threads
        self._restarts = begin.restarts
        self._delays = Delays(config, config.actor_delay_seconds, Who.ACTOR, number)
        self._open(config.segment_of(begin.update + 1))

    def rollout(self, number: int, rows: Batch, policy: Policy, newest: Newest, device: Any) -> GroupRollout:
        """Fill `rows` [E, T, ...] with this group's rollout `number` (from 1); every env step asks for parameters."""
        if (segment := self._config.segment_of(number)) != self._segment:
            self.envs.close()
            self._open(segment)
        key = jax.device_put(streams.action_key(self._config, self.number, number), device)
        made = GroupRollout(self.number)
        for t in range(self._config.rollout_length):
            self._delays.sleep()
            begin = time.perf_counter()
            version, params = newest()
            rows.observations[:, t] = self._observations
            outputs = policy(params, self._observations, key, t)
            actions, logits, values = (np.asarray(x) for x in outputs)
            rows.actions[:, t], rows.behaviour_logits[:, t], rows.values[:, t] = actions, logits, values
            acted = time.perf_counter()
            step = self.envs.step(actions)
            stepped = time.perf_counter()
            rows.rewards[:, t], rows.terminated[:, t], rows.valid[:, t] = step.rewards, step.terminated, step.valid
            self._observations = step.observations
            made.policy_versions.append(version)
            made.episodes.extend((t, stepped, row) for row in self._tracker.step(step))
            made.inference_seconds += acted - begin
            made.env_seconds += stepped - acted
        rows.observations[:, self._config.rollout_length] = self._observations
        return made

    def _open(self, segment: int) -> None:
        """Fresh envs at the start of their first episodes; of those under way nothing is kept."""
        seeds = streams.group_env_seeds(self._config, self.number, segment + self._restarts)
        self.envs = Envs(self._config.env_id, self._config.protocol, seeds, self._envpool_threads)
        self._segment = segment
        self._tracker = EpisodeTracker(self._config.envs_per_group)
        self._observations = self.envs.reset()


def episode_rows(config: Config, update: int, rollouts: Iterable[GroupRollout], started: float) -> list[dict[str, Any]]:
    """The recorder's rows of the episodes that ended in the rollouts of `update`, by env step, group and env."""
    env_steps_before = (update - 1) * config.env_steps_per_update
    rows = [
        {
            "update": update,
            "env_steps": env_steps_before + (t + 1) * config.num_envs,
            "wall_seconds": round(clock - started, 3),
            "group": rollout.group,
        }
        | row
        for rollout in rollouts
        for t, clock, row in rollout.episodes
    ]
    return in_order(rows)


def in_order(episodes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(episodes, key=lambda row: (row["env_steps"], row["group"], row["env"]))


def make_groups(config: Config, layout: Layout, envpool_threads: int, begin: Checkpoint) -> list[Group]:
    """The groups of this process, in order, as they go on from `begin`."""
    here = config.num_actor_groups // layout.num_processes
    first = jax.process_index() * here
    return [Group(config, number, envpool_threads, begin) for number in range(first, first + here)]


def assign(groups: list[Group], layout: Layout) -> list[tuple[Any, list[Group]]]:
    """(device, groups) of every thread: groups to devices in contiguous ranges, a device's to its threads in turn."""
    devices = [jax.local_devices()[i] for i in layout.actor_device_ids]
    per_device = len(groups) // len(devices)
    num_threads = min(layout.threads_per_actor_device, per_device)
    return [
        (device, groups[i * per_device : (i + 1) * per_device][thread::num_threads])
        for i, device in enumerate(devices)
        for thread in range(num_threads)
    ]


def close(groups: Iterable[Group]) -> None:
    """Close the groups' envs, which no thread may be stepping."""
    for group in groups:
        group.envs.close()
