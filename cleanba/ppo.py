"""PPO (Schulman et al. 2017), trained as Cleanba trains it (Huang et al. 2023).

Reads in the order things happen; `impala` is written in the same order.
"""

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from cleanba import losses, seed_audit, streams, training
from cleanba.checkpoints import NO_CHECKPOINTS, Checkpoints, NoCheckpoints
from cleanba.config import PPOConfig, as_laid_out
from cleanba.delays import Delays, Who
from cleanba.fingerprint import Fingerprints
from cleanba.layout import Layout
from cleanba.learners import Learners
from cleanba.networks import ActorCritic
from cleanba.processes import Processes
from cleanba.recorder import Recorder
from cleanba.rollout import Batch


def train(
    config: PPOConfig,
    layout: Layout,
    recorder: Recorder,
    *,
    checkpoints: Checkpoints | NoCheckpoints = NO_CHECKPOINTS,
    envpool_threads: int = 1,
) -> Any:
    """One run, from its newest checkpoint on; returns the final parameters. The layout and `envpool_threads` change its
    speed alone, unless `reduction` is fast."""
    started = time.perf_counter()
    config = as_laid_out(config, layout)
    seed_audit.check(config)
    processes = Processes(layout)
    learners = Learners(layout, config.num_shards, processes)
    network, params = training.make_network(config)
    optimizer = make_optimizer(config)
    apply = jax.jit(training.make_apply(optimizer, params))
    targets = learners.shard_program(partial(shard_targets, config, network))
    shuffle = learners.shard_program(partial(shard_shuffle, config))
    statistics_of = jax.jit(partial(minibatch_statistics, config))
    gradient = learners.shard_program(partial(shard_gradient, config, network))
    begin = checkpoints.restore(training.initial(config, params, optimizer))
    started -= begin.wall_seconds
    state = jax.device_put(training.State(begin.params, begin.optimizer_state), learners.lead)
    fingerprints = Fingerprints(config, learners)
    rows = training.Rows(config, recorder, processes, begin=begin, started=started)
    policy = training.make_policy(network)
    delays = Delays(config, config.learner_delay_seconds, Who.LEARNER)

    options = {"begin": begin, "envpool_threads": envpool_threads, "started": started}
    with training.make_actors(config, layout, policy, **options) as actors:
        training.publish(actors, begin)
        for update in range(begin.update + 1, config.num_updates + 1):
            before = state.params
            waiting = time.perf_counter()
            rollouts = actors.collect(update)
            learning = time.perf_counter()
            delays.sleep()
            fingerprints.begin(update)
            batch = learners.put(rollouts.batch)
            fingerprints.rollout(batch)
            params = learners.replicate(state.params)
            own = [targets(params, slot) for slot in batch]
            fingerprints.shards("targets", own)
            key = learners.replicate(streams.key(config.seed, streams.Role.MINIBATCHES, update))
            orders = [shuffle(key, numbers) for numbers in learners.put(learners.shards)]
            everyone = learners.gather(
                [(slot.valid, o.advantages, order) for slot, o, order in zip(batch, own, orders)]
            )
            statistics = statistics_of(*everyone)
            fingerprints.whole("minibatches", statistics)
            statistics_everywhere = learners.replicate(statistics)
            metrics = []
            for minibatch in range(config.num_epochs * config.num_minibatches):
                sums, params = [], learners.replicate(state.params)
                for part in range(config.gradient_accumulation_steps):
                    same = (params, statistics_everywhere, minibatch, part)
                    slots = [gradient(same, shard) for shard in zip(batch, own, orders)]
                    sums.append(training.sum_over_shards(learners, fingerprints, slots))
                weight = statistics.weight[minibatch]
                state, step_metrics = apply(state, sums, weight, training.learning_rate(config, update))
                metrics.append(step_metrics)
            fingerprints.whole("optimizer_state", state.optimizer_state)
            fingerprints.whole("parameters", state.params)
            actors.publish(state.params, version=update)
            learned = training.mean_over_steps(metrics)
            seconds = {"rollout_wait_seconds": learning - waiting, "learn_seconds": time.perf_counter() - learning}
            rows.update(update, rollouts, learned, fingerprints, seconds)
            checkpoints.after(update, partial(rows.checkpoint, update, state, before))
    return state.params


def make_optimizer(config: PPOConfig) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.scale_by_adam(eps=config.adam_eps),
    )


class Targets(NamedTuple):
    """What one shard's rollout says of its rows, before the first minibatch."""

    advantages: jax.Array  # [n, T]
    value_targets: jax.Array  # [n, T]


class Statistics(NamedTuple):
    """Of each minibatch over all shards, [num_epochs * num_minibatches]."""

    mean: jax.Array  # of the valid rows' advantages
    deviation: jax.Array  # likewise, population form
    weight: jax.Array  # 1 / number of valid rows


def shard_targets(config: PPOConfig, network: ActorCritic, params: Any, batch: Batch) -> Targets:
    """Advantages and value targets of one shard's rows."""
    _, bootstrap_values = network.forward(params, batch.observations[:, -1])
    advantages = losses.generalized_advantages(
        jnp.concatenate([batch.values, bootstrap_values[:, None]], axis=1),
        batch.rewards,
        jnp.where(batch.terminated, 0.0, config.gamma),
        batch.valid,
        gae_lambda=config.gae_lambda,
    )
    return Targets(advantages, advantages + batch.values)


def shard_shuffle(config: PPOConfig, key: jax.Array, shard: jax.Array) -> jax.Array:
    """The rows of each minibatch, [num_epochs * num_minibatches, rows]: a shard's own permutation for each epoch."""

    def epoch_order(epoch):
        stream = jax.random.fold_in(jax.random.fold_in(key, shard), epoch)
        return jax.random.permutation(stream, config.envs_per_shard * config.rollout_length)

    orders = jnp.stack([epoch_order(epoch) for epoch in range(config.num_epochs)])
    return orders.reshape(config.num_epochs * config.num_minibatches, -1)


def minibatch_statistics(config: PPOConfig, valid: jax.Array, advantages: jax.Array, orders: jax.Array) -> Statistics:
    """Over all shards' rows: `valid` and `advantages` [S, n, T], `orders` [S, minibatches, rows]."""

    def of_minibatches(x):  # [S, n, T] -> [S, minibatches, rows]
        return jax.vmap(lambda own, order: own.reshape(-1)[order])(x, orders)

    weights = of_minibatches(valid.astype(jnp.float32))
    values = of_minibatches(advantages)
    count = jnp.maximum(jnp.sum(weights, axis=(0, 2)), 1)  # a minibatch of resets alone has a gradient of 0
    mean = jnp.sum(values * weights, axis=(0, 2)) / count
    variance = jnp.sum(jnp.square(values - mean[:, None]) * weights, axis=(0, 2)) / count
    return Statistics(mean, jnp.sqrt(variance), 1 / count)


def shard_gradient(config: PPOConfig, network: ActorCritic, same: Any, own: Any) -> training.ShardGradient:
    """The gradient of one shard's loss over its rows of one minibatch, or of a part of it under accumulation."""
    params, statistics, minibatch, part = same
    batch, targets, orders = own
    size = orders.shape[1] // config.gradient_accumulation_steps
    rows = jax.lax.dynamic_slice(orders, (minibatch, part * size), (1, size))[0]
    actions, logits, valid, advantages, value_targets = (
        x.reshape(-1, *x.shape[2:])[rows]
        for x in (batch.actions, batch.behaviour_logits, batch.valid, targets.advantages, targets.value_targets)
    )
    if config.normalize_advantages:
        # 1e-8 as the original has it: it only matters where all advantages are equal
        advantages = (advantages - statistics.mean[minibatch]) / (statistics.deviation[minibatch] + 1e-8)
    frames = batch.observations
    T = config.rollout_length
    observations = frames.reshape(-1, *frames.shape[2:])[rows // T * (T + 1) + rows % T]  # past the bootstrap rows

    def loss_fn(params):
        new_logits, values = network.forward(params, observations)
        return losses.ppo_loss(
            new_logits,
            values,
            actions,
            losses.log_probabilities(logits, actions),
            advantages,
            value_targets,
            valid,
            clip_epsilon=config.clip_epsilon,
            entropy_coefficient=config.entropy_coefficient,
            value_coefficient=config.value_coefficient,
        )

    gradient, parts = jax.grad(loss_fn, has_aux=True)(params)
    return training.ShardGradient(training.as_vector(gradient), parts)
