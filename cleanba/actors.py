"""Actor threads: they collect rollouts of known policy versions and hand them to the learner.

Which version a rollout is made with is part of the algorithm, not of timing. Rollout u is made with version u - 1 under
`sync` (policy lag 0), and under `cleanba` with version max(u - 2, 0), while the learner trains on rollout u - 1 (lag 1;
Huang et al. 2023, section 4). Queues of size one carry parameters and rollouts, so that nobody can run further ahead.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from cleanba import streams
from cleanba.channel import Channel, Stopped
from cleanba.config import Config
from cleanba.envs import Envs
from cleanba.layout import Layout
from cleanba.rollout import Batch, EpisodeTracker

_JOIN_SECONDS = 10.0  # for a thread to finish the env step that it is in

# policy(parameters, observations [E, ...], group key, step in rollout) -> actions [E], logits [E, A], values [E]
Policy = Callable[[Any, np.ndarray, jax.Array, int], tuple[jax.Array, jax.Array, jax.Array]]


@dataclass
class Rollouts:
    """What all actors of this process made for one update."""

    batch: Batch
    policy_version: int
    episodes: list[dict[str, Any]]  # rows of the recorder, in the order (env step, group, env)
    seconds: dict[str, float]  # the slowest thread's


@dataclass
class _Part:
    """One thread's share of a `Rollouts`."""

    policy_version: int
    episodes: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def policy_version(schedule: str, update: int) -> int:
    """The version that rollout `update` (from 1) is made with."""
    return update - 1 if schedule == "sync" else max(update - 2, 0)


class Actors:
    """The actor threads of this process, as a context. Leaving it stops them; what one raised is raised here."""

    def __init__(self, config: Config, layout: Layout, policy: Policy, *, envpool_threads: int, started: float):
        self._config = config
        self._policy = policy
        self._started = started
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._batches: dict[int, Batch] = {}
        self._batches_lock = threading.Lock()
        groups_here = config.num_actor_groups // layout.num_processes
        self._first_group = jax.process_index() * groups_here
        self._groups = [_Group(config, self._first_group + i, envpool_threads) for i in range(groups_here)]
        self._workers = self._assign(layout)

    def _assign(self, layout: Layout) -> list["_Worker"]:
        """Groups to devices in contiguous ranges, a device's groups to its threads in turn."""
        devices = [jax.local_devices()[i] for i in layout.actor_device_ids]
        per_device = len(self._groups) // len(devices)
        workers = []
        for i, device in enumerate(devices):
            groups = self._groups[i * per_device : (i + 1) * per_device]
            num_threads = min(layout.threads_per_actor_device, per_device)
            for thread in range(num_threads):
                workers.append(_Worker(device, groups[thread::num_threads], self._stop))
        return workers

    def __enter__(self) -> "Actors":
        for number, worker in enumerate(self._workers):
            worker.thread = threading.Thread(target=self._run, args=(worker,), name=f"actor-{number}", daemon=True)
            worker.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        for worker in self._workers:
            worker.thread.join(_JOIN_SECONDS)
            if not worker.thread.is_alive():  # one that hangs in an emulator is left behind with its envs
                for group in worker.groups:
                    group.envs.close()

    def publish(self, params: Any, version: int) -> None:
        """Hand version `version` to every actor that will use it. `params` sit on any one device."""
        last_used = policy_version(self._config.schedule, self._config.num_updates)
        if version > last_used:
            return
        # Ready before it is handed over: an actor's program that waits for the learner's would hold a device thread.
        params = jax.block_until_ready(params)
        on_device = {device: jax.device_put(params, device) for device in {w.device for w in self._workers}}
        for worker in self._workers:
            self._unless_failed(lambda w=worker: w.params.put((version, on_device[w.device])))

    def collect(self, update: int) -> Rollouts:
        """The rollouts for `update`; waits for them."""
        parts = [self._unless_failed(worker.rollouts.get) for worker in self._workers]
        versions = {part.policy_version for part in parts}
        expected = policy_version(self._config.schedule, update)
        if versions != {expected}:  # contract D5
            raise RuntimeError(f"update {update}: rollouts are of policy versions {versions}, expected {expected}")
        with self._batches_lock:
            batch = self._batches.pop(update)
        episodes = [row for part in parts for row in part.episodes]
        episodes.sort(key=lambda row: (row["env_steps"], row["group"], row["env"]))
        seconds = {name: max(part.seconds[name] for part in parts) for name in parts[0].seconds}
        return Rollouts(batch=batch, policy_version=expected, episodes=episodes, seconds=seconds)

    def _unless_failed(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Stopped:
            error = self._failures[0]
            raise RuntimeError(f"an actor thread failed: {type(error).__name__}: {error}") from error

    def _run(self, worker: "_Worker") -> None:
        """An actor thread's life. Any exception ends the run."""
        try:
            for update in range(1, self._config.num_updates + 1):
                worker.rollouts.put(self._rollout(worker, update))
        except Stopped:
            pass
        except BaseException as error:
            self._failures.append(error)
            self._stop.set()

    def _rollout(self, worker: "_Worker", update: int) -> _Part:
        begin = time.perf_counter()
        version = policy_version(self._config.schedule, update)
        while worker.version < version:
            worker.version, worker.current = worker.params.get()
        waited = time.perf_counter() - begin
        part = _Part(policy_version=worker.version, seconds={"params_wait_seconds": waited})
        batch = self._batch(update)
        for group in worker.groups:
            self._collect_group(group, worker, update, batch, part)
        part.seconds["rollout_seconds"] = time.perf_counter() - begin - waited
        return part

    def _collect_group(self, group: "_Group", worker: "_Worker", update: int, batch: Batch, part: _Part) -> None:
        config = self._config
        first_env = (group.number - self._first_group) * config.envs_per_group
        rows = batch.rows_of(slice(first_env, first_env + config.envs_per_group))
        key = jax.device_put(streams.key(config.seed, streams.Role.ACTIONS, group.number, update), worker.device)
        env_steps_before = (update - 1) * config.env_steps_per_update
        inference = stepping = 0.0
        for t in range(config.rollout_length):
            begin = time.perf_counter()
            rows.observations[:, t] = group.observations
            outputs = self._policy(worker.current, group.observations, key, t)
            actions, logits, values = (np.asarray(x) for x in outputs)
            rows.actions[:, t], rows.behaviour_logits[:, t], rows.values[:, t] = actions, logits, values
            acted = time.perf_counter()
            step = group.envs.step(actions)
            stepped = time.perf_counter()
            rows.rewards[:, t], rows.terminated[:, t], rows.valid[:, t] = step.rewards, step.terminated, step.valid
            group.observations = step.observations
            place = {
                "update": update,
                "env_steps": env_steps_before + (t + 1) * config.num_envs,
                "wall_seconds": round(stepped - self._started, 3),
                "group": group.number,
            }
            part.episodes.extend(place | row for row in group.tracker.step(step))
            inference += acted - begin
            stepping += stepped - acted
        rows.observations[:, config.rollout_length] = group.observations
        part.seconds["inference_seconds"] = part.seconds.get("inference_seconds", 0.0) + inference
        part.seconds["env_seconds"] = part.seconds.get("env_seconds", 0.0) + stepping

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


class _Group:
    """One logical actor group: its envs, where they stand, and the episodes under way."""

    def __init__(self, config: Config, number: int, envpool_threads: int):
        first = number * config.envs_per_group
        seeds = streams.env_seeds(config.seed, range(first, first + config.envs_per_group))
        self.number = number
        self.envs = Envs(config.env_id, config.protocol, seeds, envpool_threads)
        self.tracker = EpisodeTracker(config.envs_per_group)
        self.observations = self.envs.reset()


class _Worker:
    """One actor thread, the groups it serves in turn, and its two queues."""

    thread: threading.Thread

    def __init__(self, device: Any, groups: list[_Group], stop: threading.Event):
        self.device = device
        self.groups = groups
        self.params: Channel[tuple[int, Any]] = Channel(stop)
        self.rollouts: Channel[_Part] = Channel(stop)
        self.version = -1
        self.current: Any = None
