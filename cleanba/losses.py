"""The losses of both algorithms: pure functions of one shard's rows, through rlax where rlax has them.

Index convention. Row t holds the observation x_t, the action a_t taken in it, and the reward r_t and game end that
followed (the papers' r_t in IMPALA, r_{t+1} in rlax). Arrays are batch-major, [B, T], with [B, T + 1] where the row of
the bootstrap value belongs. All losses are sums over valid rows, so that shards add up to the batch.

An invalid row is EnvPool's auto-reset step: its observation is the last of an episode and its action was ignored. It
gives no loss, and the trace is cut at it, while the row before it may still bootstrap from its value: at a time limit
that value is the right target, at a game end the discount is 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax


class ImpalaTargets(NamedTuple):
    """V-trace's targets, constants of the loss."""

    value_errors: jax.Array  # [B, T], v_s - V(x_s); its gradient is that of -V(x_s)
    policy_advantages: jax.Array  # [B, T], rho_s (r_s + gamma v_{s+1} - V(x_s))


def log_probabilities(logits: jax.Array, actions: jax.Array) -> jax.Array:
    """log pi(a | x) for logits [..., A] and actions [...]."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]


def vtrace(
    values: jax.Array,  # [B, T + 1]
    rewards: jax.Array,  # [B, T]
    discounts: jax.Array,  # [B, T], 0 at a game's end
    importance_weights: jax.Array,  # [B, T], pi / mu of the action taken
    valid: jax.Array,  # [B, T] bool
    *,
    clip_rho: float,
) -> ImpalaTargets:
    """V-trace with c-bar = 1 (Espeholt et al. 2018, equation 1 and section 4.2)."""
    # With weight and discount 0, an invalid row's target is its own value and nothing flows back past it.
    weights = jnp.where(valid, importance_weights, 0.0)
    discounts = jnp.where(valid, discounts, 0.0)

    def one_env(values, rewards, discounts, weights):
        return rlax.vtrace_td_error_and_advantage(
            v_tm1=values[:-1],
            v_t=values[1:],
            r_t=rewards,
            discount_t=discounts,
            rho_tm1=weights,
            clip_rho_threshold=clip_rho,
            clip_pg_rho_threshold=clip_rho,
        )

    out = jax.vmap(one_env)(values, rewards, discounts, weights)
    return ImpalaTargets(value_errors=out.errors, policy_advantages=jax.lax.stop_gradient(out.pg_advantage))


def impala_loss(
    logits: jax.Array,  # [B, T, A]
    actions: jax.Array,  # [B, T]
    targets: ImpalaTargets,
    valid: jax.Array,  # [B, T] bool
    *,
    entropy_coefficient: float,
    value_coefficient: float,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """IMPALA's loss (section 4.2), summed over valid rows, and its parts."""
    weights = valid.astype(jnp.float32)
    policy_loss = -jnp.sum(log_probabilities(logits, actions) * targets.policy_advantages * weights)
    value_loss = 0.5 * jnp.sum(jnp.square(targets.value_errors) * weights)
    entropy = _summed_entropy(logits, weights)
    loss = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy
    return loss, {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}


def generalized_advantages(
    values: jax.Array,  # [B, T + 1]
    rewards: jax.Array,  # [B, T]
    discounts: jax.Array,  # [B, T], 0 at a game's end
    valid: jax.Array,  # [B, T] bool
    *,
    gae_lambda: float,
) -> jax.Array:
    """GAE (Schulman et al. 2016, equation 16), [B, T]; 0 at invalid rows."""
    # Reward V(x) and discount 0 make an invalid row's temporal difference 0, which also cuts the trace.
    rewards = jnp.where(valid, rewards, values[:, :-1])
    discounts = jnp.where(valid, discounts, 0.0)

    def one_env(rewards, discounts, values):
        return rlax.truncated_generalized_advantage_estimation(rewards, discounts, gae_lambda, values)

    return jnp.asarray(jax.vmap(one_env)(rewards, discounts, values))


def ppo_loss(
    logits: jax.Array,  # [N, A]
    values: jax.Array,  # [N]
    actions: jax.Array,  # [N]
    behaviour_log_probabilities: jax.Array,  # [N]
    advantages: jax.Array,  # [N], normalised where the run normalises them
    value_targets: jax.Array,  # [N]
    valid: jax.Array,  # [N] bool
    *,
    clip_epsilon: float,
    entropy_coefficient: float,
    value_coefficient: float,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """PPO's clipped loss (Schulman et al. 2017, equations 7 and 9), summed over valid rows, and its parts."""
    weights = valid.astype(jnp.float32)
    ratios = jnp.exp(log_probabilities(logits, actions) - behaviour_log_probabilities)
    # rlax takes the mean over rows; an advantage of 0 takes a row out of it.
    policy_loss = jnp.asarray(rlax.clipped_surrogate_pg_loss(ratios, advantages * weights, clip_epsilon)) * len(ratios)
    value_loss = 0.5 * jnp.sum(jnp.square(values - value_targets) * weights)
    entropy = _summed_entropy(logits, weights)
    loss = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy
    return loss, {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}


def _summed_entropy(logits: jax.Array, weights: jax.Array) -> jax.Array:
    log_p = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.sum(jnp.exp(log_p) * log_p, axis=-1) * weights)
