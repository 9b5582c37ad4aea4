"""IMPALA with V-trace (Espeholt et al. 2018), trained as Cleanba trains it (Huang et al. 2023).

Reads in the order things happen; `ppo` is written in the same order.
"""

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from cleanba import losses, seed_audit, training
from cleanba.checkpoints import NO_CHECKPOINTS, Checkpoints, NoCheckpoints
from cleanba.config import ImpalaConfig, as_laid_out
from cleanba.delays import Delays, Who
from cleanba.fingerprint import Fingerprints
from cleanba.layout import Layout
from cleanba.learners import Learners
from cleanba.networks import ActorCritic
from cleanba.processes import Processes
from cleanba.recorder import Recorder
from cleanba.rollout import Batch


def train(
    config: ImpalaConfig,
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
            parts = [learners.put(part) for part in envs_in_parts(config, rollouts.batch)]
            metrics = []
            for step in training.accumulated(parts, config.gradient_accumulation_steps):
                sums, params = [], learners.replicate(state.params)
                for part in step:
                    fingerprints.rollout(part)
                    slots, targets = zip(*(gradient(params, slot) for slot in part), strict=True)
                    fingerprints.shards("targets", targets)
                    sums.append(training.sum_over_shards(learners, fingerprints, slots))
                state, step_metrics = apply(state, sums, 1.0, training.learning_rate(config, update))
                metrics.append(step_metrics)
            fingerprints.whole("optimizer_state", state.optimizer_state)
            fingerprints.whole("parameters", state.params)
            actors.publish(state.params, version=update)
            learned = training.mean_over_steps(metrics)
            seconds = {"rollout_wait_seconds": learning - waiting, "learn_seconds": time.perf_counter() - learning}
            rows.update(update, rollouts, learned, fingerprints, seconds)
            checkpoints.after(update, partial(rows.checkpoint, update, state, before))
    return state.params


def make_optimizer(config: ImpalaConfig) -> optax.GradientTransformation:
    """RMSProp in torch's form: optax's default puts eps inside the root, a first step 10 times smaller."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.scale_by_rms(config.rmsprop_decay, config.rmsprop_eps, eps_in_sqrt=False),
    )


def envs_in_parts(config: ImpalaConfig, batch: Batch) -> list[Batch]:
    """Every shard's envs in equal parts, one to each gradient: whole sequences, since V-trace runs along time."""
    num_parts = config.num_minibatches * config.gradient_accumulation_steps
    size = config.envs_per_shard // num_parts
    return [Batch(*(x[:, i * size : (i + 1) * size] for x in batch)) for i in range(num_parts)]


def shard_gradient(
    config: ImpalaConfig, network: ActorCritic, params: Any, batch: Batch
) -> tuple[training.ShardGradient, losses.ImpalaTargets]:
    """The gradient of one shard's loss over its rows [n, T], and the targets it came from."""

    def loss_fn(params):
        frames = batch.observations
        logits, values = network.forward(params, frames.reshape(-1, *frames.shape[2:]))
        logits = logits.reshape(*frames.shape[:2], -1)[:, :-1]
        log_ratios = losses.log_probabilities(logits, batch.actions) - losses.log_probabilities(
            batch.behaviour_logits, batch.actions
        )
        targets = losses.vtrace(
            values.reshape(frames.shape[:2]),
            batch.rewards,
            jnp.where(batch.terminated, 0.0, config.gamma),
            jnp.exp(log_ratios),
            batch.valid,
            clip_rho=config.clip_rho,
        )
        loss, parts = losses.impala_loss(
            logits,
            batch.actions,
            targets,
            batch.valid,
            entropy_coefficient=config.entropy_coefficient,
            value_coefficient=config.value_coefficient,
        )
        return loss, (parts, targets)

    gradient, (parts, targets) = jax.grad(loss_fn, has_aux=True)(params)
    return training.ShardGradient(training.as_vector(gradient), parts), targets
