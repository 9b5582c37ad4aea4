"""What both algorithms share: devices, the network's parameters, the optimiser's step, and the rows of an update."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from cleanba import envs, streams
from cleanba.actors import Actors, Rollouts
from cleanba.async_actors import AsyncActors
from cleanba.checkpoints import Checkpoint
from cleanba.config import Config
from cleanba.fingerprint import Fingerprints
from cleanba.groups import Policy, in_order
from cleanba.layout import Layout
from cleanba.learners import Learners
from cleanba.networks import ActorCritic
from cleanba.processes import Processes
from cleanba.recorder import Recorder


class State(NamedTuple):
    """What the learner carries from update to update."""

    params: Any
    optimizer_state: Any


def initial(config: Config, params: Any, optimizer: optax.GradientTransformation) -> Checkpoint:
    """A run before its first update."""
    no_returns = np.full(config.num_envs, np.nan)
    return Checkpoint(0, params, optimizer.init(params), params, no_returns, wall_seconds=0.0)


def make_network(config: Config) -> tuple[ActorCritic, Any]:
    """The network for the run's environment and its initial parameters, a function of the seed alone."""
    spec = envs.spec(config.env_id, config.protocol)
    vector = len(spec.observation_shape) == 1
    if vector != (config.network == "mlp"):
        raise ValueError(
            f"network is {config.network!r}, which is not for observations of shape {spec.observation_shape}; "
            f"allowed: {'mlp' if vector else 'resnet, impala_shallow, nature_cnn'}"
        )
    network = ActorCritic(network=config.network, num_actions=spec.num_actions)
    example = np.zeros((1, *spec.observation_shape), spec.observation_dtype)
    return network, jax.jit(network.init)(streams.key(config.seed, streams.Role.PARAMETERS), example)


def make_policy(network: ActorCritic) -> Policy:
    """The behaviour policy of the actors, one program per group of envs."""

    @jax.jit
    def policy(params, observations, key, t):
        logits, values = network.forward(params, observations)
        actions = jax.random.categorical(jax.random.fold_in(key, t), logits)
        return actions, logits, values

    return policy


def make_actors(
    config: Config, layout: Layout, policy: Policy, *, begin: Checkpoint, envpool_threads: int, started: float
) -> Actors | AsyncActors:
    """The actors of the run's schedule, which go on from `begin`."""
    kind = AsyncActors if config.schedule == "async" else Actors
    return kind(config, layout, policy, begin=begin, envpool_threads=envpool_threads, started=started)


def publish(actors: Actors | AsyncActors, begin: Checkpoint) -> None:
    """Hand the actors what they begin with: under `cleanba` they still need the version before the learner's."""
    if begin.update > 0:
        actors.publish(begin.previous_params, begin.update - 1)
    actors.publish(begin.params, begin.update)


class ShardGradient(NamedTuple):
    """What the program of one shard gives: sums over its rows."""

    gradient: jax.Array  # one vector, so that one addition and one copy move it
    losses: dict[str, jax.Array]


def as_vector(gradient: Any) -> jax.Array:
    """A gradient as one vector; `make_apply` knows the way back."""
    return ravel_pytree(gradient)[0]


def make_apply(optimizer: optax.GradientTransformation, params: Any):
    """apply(state, sums over shards, weight, learning rate) -> state, metrics: one optimiser step.

    The sums are one `ShardGradient` for each part of a gradient accumulation; `weight` turns sums into means.
    """
    to_tree = ravel_pytree(params)[1]

    def apply(state: State, sums: list[ShardGradient], weight, learning_rate) -> tuple[State, dict[str, jax.Array]]:
        total = jax.tree.map(lambda *parts: sum(parts[1:], parts[0]) * weight, *sums)
        gradient = to_tree(total.gradient)
        direction, optimizer_state = optimizer.update(gradient, state.optimizer_state)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, state.params, direction)
        metrics = {f"losses/{name}": value for name, value in total.losses.items()}
        return State(params, optimizer_state), metrics | {"stats/gradient_norm": optax.tree.norm(gradient)}

    return apply


def sum_over_shards(learners: Learners, fingerprints: Fingerprints, slots: Sequence[ShardGradient]) -> ShardGradient:
    """Add the shards in shard order, and digest what went in and what came out."""
    fingerprints.shards("loss", [slot.losses["loss"] for slot in slots])
    fingerprints.shards("shard_gradient", [slot.gradient for slot in slots])
    total = learners.sum(slots)
    fingerprints.whole("gradient", total.gradient)
    return total


def learning_rate(config: Config, update: int) -> float:
    """Annealed linearly per update, from its full value at update 1 towards 0 after the last."""
    fraction = 1 - (update - 1) / config.num_updates if config.anneal_learning_rate else 1.0
    return config.learning_rate * fraction


def accumulated(parts: Sequence[Any], size: int) -> list[list[Any]]:
    """Consecutive parts, `size` to an optimiser step."""
    return [list(parts[i : i + size]) for i in range(0, len(parts), size)]


def policy_lag(schedule: str, update: int, versions: Mapping[int, int]) -> dict[str, Any]:
    """How many updates behind the learner the env steps of `update` were made; `versions`: version -> env steps.

    `stats/policy_lag_<k>` counts the env steps made k updates behind, where timing decides (`async`).
    """
    lags = {update - 1 - version: env_steps for version, env_steps in sorted(versions.items(), reverse=True)}
    mean = sum(lag * env_steps for lag, env_steps in lags.items()) / sum(lags.values())
    row = {
        "actor_policy_version": update - 1 - mean,
        "policy_lag": mean,
        "stats/policy_lag_min": min(lags),
        "stats/policy_lag_max": max(lags),
    }
    counts = {f"stats/policy_lag_{lag}": env_steps for lag, env_steps in lags.items()}
    return row | counts if schedule == "async" else row


class Rows:
    """Turns what an update produced into the recorder's rows."""

    def __init__(self, config: Config, recorder: Recorder, processes: Processes, *, begin: Checkpoint, started: float):
        self._config = config
        self._recorder = recorder
        self._processes = processes
        self._started = started  # on the clock of perf_counter, without the time that it was interrupted for
        self._restarts = begin.restarts
        self._last_returns = np.array(begin.last_returns)
        self._previous_update_ended = time.perf_counter()

    def update(
        self,
        update: int,
        rollouts: Rollouts,
        learned: dict[str, float],
        fingerprints: Fingerprints,
        seconds: dict[str, float],
    ) -> None:
        """Record one update, in the first process. Raises FloatingPointError where a number that the learner produced
        is not finite, RuntimeError where the processes' fingerprints are not the same."""
        digests = list(fingerprints.rows(update))
        episodes, versions, timing = self._of_all_processes(update, rollouts, digests)
        if self._processes.index == 0:
            self._record(update, episodes, versions, timing | seconds, digests, learned)
        for name, value in learned.items():
            if not np.isfinite(value):
                raise FloatingPointError(f"update {update}: {name} is {value}; the run cannot go on")

    def checkpoint(self, update: int, state: State, previous_params: Any) -> Checkpoint:
        """The run after `update`."""
        wall_seconds = time.perf_counter() - self._started
        return Checkpoint(update, *state, previous_params, self._last_returns, wall_seconds, self._restarts)

    def _of_all_processes(
        self, update: int, rollouts: Rollouts, digests: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], Mapping[int, int], dict[str, float]]:
        """(episodes, policy versions, seconds of the slowest)"""
        if self._processes.count == 1:
            return rollouts.episodes, rollouts.policy_versions, rollouts.seconds
        own = [rollouts.episodes, list(rollouts.policy_versions.items()), rollouts.seconds, digests]
        everyone = self._processes.gather_rows(own)
        for process, (*_, theirs) in enumerate(everyone):
            if theirs != digests:
                raise RuntimeError(f"update {update}: the fingerprints of process {process} are not this process'")
        versions = sum((Counter(dict(counts)) for _, counts, _, _ in everyone), Counter())
        seconds = {name: max(times[name] for _, _, times, _ in everyone) for name in rollouts.seconds}
        return in_order(row for episodes, *_ in everyone for row in episodes), versions, seconds

    def _record(
        self,
        update: int,
        episodes: list[dict[str, Any]],
        versions: Mapping[int, int],
        seconds: dict[str, float],
        digests: list[dict[str, Any]],
        learned: dict[str, float],
    ) -> None:
        config, now = self._config, time.perf_counter()
        place = {
            "update": update,
            "env_steps": update * config.env_steps_per_update,
            "wall_seconds": round(now - self._started, 3),
        }
        self._recorder.episodes(episodes)
        self._recorder.fingerprints(digests)
        self._recorder.timing(place | {name: round(value, 6) for name, value in seconds.items()})
        self._recorder.metrics(
            place
            | {
                "frames": envs.frames_per_env_step(config.protocol) * place["env_steps"],
                "learning_rate": learning_rate(config, update),
                "charts/SPS": round(config.env_steps_per_update / (now - self._previous_update_ended), 1),
            }
            | policy_lag(config.schedule, update, versions)
            | self._average_return(episodes)
            | learned
        )
        self._previous_update_ended = now

    def _average_return(self, episodes: list[dict[str, Any]]) -> dict[str, float]:
        """Mean raw return over the envs' last finished episodes; nothing before the first (FINDINGS C7)."""
        for row in episodes:
            self._last_returns[row["env"] + row["group"] * self._config.envs_per_group] = row["episode_return"]
        finished = self._last_returns[~np.isnan(self._last_returns)]
        return {"charts/avg_episodic_return": float(finished.mean())} if len(finished) else {}


def mean_over_steps(metrics: Sequence[dict[str, jax.Array]]) -> dict[str, float]:
    """The mean of each metric over an update's optimiser steps, on the host. Waits for the learner to finish them."""
    rows = jax.device_get(list(metrics))
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
