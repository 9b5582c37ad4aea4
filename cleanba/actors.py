"""Actor threads: they collect rollouts of known policy versions and hand them to the learner.

Which version a rollout is made with is part of the algorithm, not of timing. Rollout u is made with version u - 1 under
`sync` (policy lag 0), and under `cleanba` with version max(u - 2, 0), while the learner trains on rollout u - 1 (lag 1;
Huang et al. 2023, section 4). Queues of size one carry parameters and rollouts, so that nobody can run further ahead.
`async_actors` has the actors of the schedule without such a rule.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from cleanba.actor_threads import HUNG_SECONDS, ActorThreads
from cleanba.channel import Channel
from cleanba.checkpoints import Checkpoint
from cleanba.config import Config
from cleanba.groups import Group, GroupRollout, Policy, assign, close, episode_rows, make_groups
from cleanba.layout import Layout
from cleanba.rollout import Batch


@dataclass
class Rollouts:
    """What all actors of this process made for one update."""

    batch: Batch
    policy_versions: Mapping[int, int]  # version -> env steps made with it
    episodes: list[dict[str, Any]]  # rows of the recorder, in the order (env step, group, env)
    seconds: dict[str, float]  # the slowest thread's


@dataclass
class _Part:
    """One thread's share of a `Rollouts`."""

    policy_version: int
    rollouts: list[GroupRollout] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def policy_version(schedule: str, update: int) -> int:
    """The version that rollout `update` (from 1) is made with."""
    return update - 1 if schedule == "sync" else max(update - 2, 0)


class Actors:
    """The actor threads of this process, as a context. Leaving it stops them; what one raised is raised here."""

    def __init__(
        self, config: Config, layout: Layout, policy: Policy, *, begin: Checkpoint, envpool_threads: int, started: float
    ):
        self._config = config
        self._policy = policy
        self._begin = begin
        self._started = started
        self._threads = ActorThreads()
        self._batches: dict[int, Batch] = {}
        self._batches_lock = threading.Lock()
        self._groups = make_groups(config, layout, envpool_threads, begin)
        self._workers = [_Worker(device, groups, self._threads.stop) for device, groups in assign(self._groups, layout)]

    def __enter__(self) -> "Actors":
        self._threads.start([partial(self._run, worker) for worker in self._workers])
        return self

    def __exit__(self, *_) -> None:
        for worker, ended in zip(self._workers, self._threads.end()):
            if ended:
                close(worker.groups)

    def publish(self, params: Any, version: int) -> None:
        """Hand version `version` to every actor that will use it. `params` sit on any one device."""
        last_used = policy_version(self._config.schedule, self._config.num_updates)
        if version > last_used:
            return
        # Ready before it is handed over: an actor's program that waits for the learner's would hold a device thread.
        params = jax.block_until_ready(params)
        on_device = {device: jax.device_put(params, device) for device in {w.device for w in self._workers}}
        for worker in self._workers:
            self._threads.unless_failed(lambda w=worker: w.params.put((version, on_device[w.device])))

    def collect(self, update: int) -> Rollouts:
        """The rollouts for `update`; waits for them."""
        parts = [self._threads.unless_failed(worker.rollouts.get) for worker in self._workers]
        versions = {part.policy_version for part in parts}
        expected = policy_version(self._config.schedule, update)
        if versions != {expected}:  # contract D5
            raise RuntimeError(f"update {update}: rollouts are of policy versions {versions}, expected {expected}")
        with self._batches_lock:
            batch = self._batches.pop(update)
        made = [rollout for part in parts for rollout in part.rollouts]
        return Rollouts(
            batch=batch,
            policy_versions={expected: batch.actions.size},
            episodes=episode_rows(self._config, update, made, self._started),
            seconds={name: max(part.seconds[name] for part in parts) for name in parts[0].seconds},
        )

    def _run(self, worker: "_Worker") -> None:
        for update in range(self._begin.update + 1, self._config.num_updates + 1):
            worker.rollouts.put(self._rollout(worker, update))

    def _rollout(self, worker: "_Worker", update: int) -> _Part:
        begin = time.perf_counter()
        version = policy_version(self._config.schedule, update)
        while worker.newest[0] < version:
            worker.newest = worker.params.get()
        waited = time.perf_counter() - begin
        part = _Part(policy_version=worker.newest[0])
        batch = self._batch(update)
        for group in worker.groups:
            rows = batch.rows_of(self._envs_of(group))
            part.rollouts.append(group.rollout(update, rows, self._policy, lambda: worker.newest, worker.device))
        part.seconds = {
            "params_wait_seconds": waited,
            "rollout_seconds": time.perf_counter() - begin - waited,
            "inference_seconds": sum(made.inference_seconds for made in part.rollouts),
            "env_seconds": sum(made.env_seconds for made in part.rollouts),
        }
        return part

    def _envs_of(self, group: Group) -> slice:
        """Where the group's envs are among those of this process."""
        first = (group.number - self._groups[0].number) * self._config.envs_per_group
        return slice(first, first + self._config.envs_per_group)

    def _batch(self, update: int) -> Batch:
        """The memory of `update`, made by the first thread that needs it."""
        config = self._config
        with self._batches_lock:
            if update not in self._batches:
                shards = len(self._groups) * config.envs_per_group // config.envs_per_shard
                self._batches[update] = Batch.empty(
                    shards,
                    config.envs_per_shard,
                    config.rollout_length,
                    self._groups[0].envs.spec,
                )
            return self._batches[update]


class _Worker:
    """One actor thread, the groups it serves in turn, and its two queues."""

    def __init__(self, device: Any, groups: list[Group], stop: threading.Event):
        self.device = device
        self.groups = groups
        self.params: Channel[tuple[int, Any]] = Channel(stop)
        self.rollouts: Channel[_Part] = Channel(stop, patience_seconds=HUNG_SECONDS)
        self.newest: tuple[int, Any] = (-1, None)  # policy version, parameters
