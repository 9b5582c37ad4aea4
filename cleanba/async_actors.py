"""The actors of schedule `async`: the actor-learner of monobeast and moolib, a control and a baseline.

An actor takes the newest parameters at any env step. The learner takes rollouts as they come, in batches of as many as
there are groups, whichever groups made them. Timing decides which policy versions meet in a batch: that is what the
other schedules rule out, and all that differs between them and this one.
"""

import time
from collections import Counter
from functools import partial
from typing import Any

import jax

from cleanba.actor_threads import HUNG_SECONDS, ActorThreads
from cleanba.actors import Rollouts
from cleanba.channel import Channel, Stopped
from cleanba.checkpoints import Checkpoint
from cleanba.config import Config
from cleanba.groups import Group, GroupRollout, Policy, assign, close, episode_rows, make_groups
from cleanba.layout import Layout
from cleanba.rollout import Batch

_Arrival = tuple[Batch, GroupRollout, float]  # rows [E, T, ...], what is known of them, seconds they took

_GAP_SECONDS = 60.0  # that count, at most, between two arrivals: the process may have been stopped for a night


class AsyncActors:
    """The actor threads of this process, as a context. Leaving it stops them; what one raised is raised here."""

    def __init__(
        self, config: Config, layout: Layout, policy: Policy, *, begin: Checkpoint, envpool_threads: int, started: float
    ):
        self._config = config
        self._policy = policy
        self._begin = begin
        self._started = started
        self._threads = ActorThreads()
        self._groups = make_groups(config, layout, envpool_threads, begin)
        self._assigned = assign(self._groups, layout)
        # One batch may wait while the next is made: twice as many buffers as actors, monobeast's default.
        self._arrived: Channel[_Arrival] = Channel(self._threads.stop, len(self._groups), HUNG_SECONDS)
        self._absent_seconds = {group.number: 0.0 for group in self._groups}  # since the group's last rollout
        self._last_arrival = time.perf_counter()
        self._newest: dict[Any, tuple[int, Any]] = {}  # device -> policy version, parameters

    def __enter__(self) -> "AsyncActors":
        return self

    def __exit__(self, *_) -> None:
        for (_, groups), ended in zip(self._assigned, self._threads.end()):
            if ended:
                close(groups)

    def publish(self, params: Any, version: int) -> None:
        """Make `version` the newest; that of the beginning starts the actors. `params` sit on any one device."""
        # Ready before it is handed over: an actor's program that waits for the learner's would hold a device thread.
        params = jax.block_until_ready(params)
        for device in {device for device, _ in self._assigned}:
            self._newest[device] = (version, jax.device_put(params, device))
        if version == self._begin.update:
            self._threads.start([partial(self._run, device, groups) for device, groups in self._assigned])

    def collect(self, update: int) -> Rollouts:
        """The rollouts that arrived first; waits until they are as many as there are groups."""
        arrived = [self._threads.unless_failed(self._next) for _ in self._groups]
        made = [rollout for _, rollout, _ in arrived]
        versions = Counter(version for rollout in made for version in rollout.policy_versions)
        return Rollouts(
            batch=self._joined([rows for rows, _, _ in arrived]),
            policy_versions={version: count * self._config.envs_per_group for version, count in versions.items()},
            episodes=episode_rows(self._config, update, made, self._started),
            seconds={
                "params_wait_seconds": 0.0,
                "rollout_seconds": max(seconds for _, _, seconds in arrived),
                "inference_seconds": max(rollout.inference_seconds for rollout in made),
                "env_seconds": max(rollout.env_seconds for rollout in made),
            },
        )

    def _next(self) -> _Arrival:
        """Raises TimeoutError when patience with a group is over, also where the others keep the channel full."""
        arrival = self._arrived.get()
        now = time.perf_counter()
        passed, self._last_arrival = min(now - self._last_arrival, _GAP_SECONDS), now
        for group in self._absent_seconds:
            self._absent_seconds[group] += passed
        self._absent_seconds[arrival[1].group] = 0.0
        if max(self._absent_seconds.values()) >= HUNG_SECONDS:
            raise TimeoutError
        return arrival

    def _run(self, device: Any, groups: list[Group]) -> None:
        """An actor thread's life: its groups' rollouts in turn, until the run ends."""
        number = self._begin.update
        while True:
            number += 1
            for group in groups:
                self._arrived.put(self._rollout(group, number, device))

    def _rollout(self, group: Group, number: int, device: Any) -> _Arrival:
        begin = time.perf_counter()
        config = self._config
        rows = Batch.empty(1, config.envs_per_group, config.rollout_length, group.envs.spec)
        rows = rows.rows_of(slice(0, config.envs_per_group))
        made = group.rollout(number, rows, self._policy, partial(self._newest_on, device), device)
        return rows, made, time.perf_counter() - begin

    def _newest_on(self, device: Any) -> tuple[int, Any]:
        if self._threads.stop.is_set():  # a long rollout that nobody will want
            raise Stopped
        return self._newest[device]

    def _joined(self, parts: list[Batch]) -> Batch:
        """Groups' rows [E, T, ...] -> the shards' [S, n, T, ...], in the order given."""
        config = self._config
        shards = len(parts) * config.envs_per_group // config.envs_per_shard
        batch = Batch.empty(shards, config.envs_per_shard, config.rollout_length, self._groups[0].envs.spec)
        for i, part in enumerate(parts):
            rows = batch.rows_of(slice(i * config.envs_per_group, (i + 1) * config.envs_per_group))
            for into, own in zip(rows, part, strict=True):
                into[:] = own
        return batch
