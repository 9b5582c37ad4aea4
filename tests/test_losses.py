"""The losses against constants worked out by hand and against naive float64 loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cleanba import losses

SINGLE = {"rtol": 2e-6, "atol": 2e-6}  # float32 has 24 bits; sums here have at most 20 terms of order 1


def naive_vtrace(values, rewards, discounts, ratios, valid, clip_rho):
    """Espeholt et al. 2018, equation 1, one env at a time, backwards, in float64; a resetting row ends the trace."""
    errors, advantages = np.zeros_like(rewards), np.zeros_like(rewards)
    for b in range(len(rewards)):
        next_error, next_target = 0.0, values[b, -1]
        for t in reversed(range(rewards.shape[1])):
            if not valid[b, t]:
                next_error, next_target = 0.0, values[b, t]
                continue
            rho, c = min(clip_rho, ratios[b, t]), min(1.0, ratios[b, t])
            delta = rho * (rewards[b, t] + discounts[b, t] * values[b, t + 1] - values[b, t])
            errors[b, t] = delta + discounts[b, t] * c * next_error
            advantages[b, t] = rho * (rewards[b, t] + discounts[b, t] * next_target - values[b, t])
            next_error, next_target = errors[b, t], values[b, t] + errors[b, t]
    return errors, advantages


def naive_gae(values, rewards, discounts, valid, gae_lambda):
    advantages = np.zeros_like(rewards)
    for b in range(len(rewards)):
        following = 0.0
        for t in reversed(range(rewards.shape[1])):
            if not valid[b, t]:
                following = 0.0
                continue
            delta = rewards[b, t] + discounts[b, t] * values[b, t + 1] - values[b, t]
            following = delta + discounts[b, t] * gae_lambda * following
            advantages[b, t] = following
    return advantages


def random_rollout(seed, B=5, T=20):
    """Rows in which a game end or a time limit is followed by a resetting row, as EnvPool gives them."""
    rng = np.random.default_rng(seed)
    ended = rng.random((B, T)) < 0.2
    valid = np.ones((B, T), bool)
    for t in range(1, T):
        valid[:, t] = ~(ended[:, t - 1] & valid[:, t - 1])
    terminated = ended & valid & (rng.random((B, T)) < 0.5)  # the others of `ended` are time limits
    return {
        "values": rng.normal(size=(B, T + 1)),
        "rewards": rng.normal(size=(B, T)),
        "discounts": np.where(terminated, 0.0, 0.9),
        "valid": valid,
    }, np.exp(rng.normal(size=(B, T)))


def float32(rollout):
    return {name: jnp.asarray(x, bool if name == "valid" else jnp.float32) for name, x in rollout.items()}


def test_vtrace_by_hand():
    """gamma 0.5; V = 1, 2, 4; r = 1, 2; ratios 2 (clipped to 1) and 0.5.

    delta_1 = 0.5 (2 + 0.5 * 4 - 2) = 1, so v_1 = 3; delta_0 = 1 + 0.5 * 2 - 1 = 1, v_0 - V_0 = 1 + 0.5 * 1 * 1 = 1.5.
    Advantages: 1 (1 + 0.5 * 3 - 1) = 1.5 and 0.5 (2 + 0.5 * 4 - 2) = 1.
    """
    out = losses.vtrace(
        jnp.array([[1.0, 2.0, 4.0]]),
        jnp.array([[1.0, 2.0]]),
        jnp.array([[0.5, 0.5]]),
        jnp.array([[2.0, 0.5]]),
        jnp.array([[True, True]]),
        clip_rho=1.0,
    )
    np.testing.assert_array_equal(out.value_errors, [[1.5, 1.0]])
    np.testing.assert_array_equal(out.policy_advantages, [[1.5, 1.0]])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("clip_rho", [1.0, 3.0])
def test_vtrace_equals_the_naive_loop(seed, clip_rho):
    rollout, ratios = random_rollout(seed)
    out = losses.vtrace(**float32(rollout), importance_weights=jnp.asarray(ratios, jnp.float32), clip_rho=clip_rho)
    errors, advantages = naive_vtrace(**rollout, ratios=ratios, clip_rho=clip_rho)
    np.testing.assert_allclose(out.value_errors, errors, **SINGLE)
    np.testing.assert_allclose(out.policy_advantages, advantages, **SINGLE)


def test_gae_by_hand():
    """gamma 0.5, lambda 0.5; V = 1, 2, 4; r = 1, 2: delta = 1, 2; A_1 = 2, A_0 = 1 + 0.25 * 2 = 1.5."""
    advantages = losses.generalized_advantages(
        jnp.array([[1.0, 2.0, 4.0]]),
        jnp.array([[1.0, 2.0]]),
        jnp.array([[0.5, 0.5]]),
        jnp.array([[True, True]]),
        gae_lambda=0.5,
    )
    np.testing.assert_array_equal(advantages, [[1.5, 2.0]])


@pytest.mark.parametrize("seed", range(5))
def test_gae_equals_the_naive_loop(seed):
    rollout, _ = random_rollout(seed)
    out = losses.generalized_advantages(**float32(rollout), gae_lambda=0.95)
    np.testing.assert_allclose(out, naive_gae(**rollout, gae_lambda=0.95), **SINGLE)


@pytest.mark.parametrize("seed", range(3))
def test_what_follows_a_reset_never_reaches_back(seed):
    """Change everything from the resetting row on, but for its observation's value: earlier rows keep their bits."""
    rollout, _ = random_rollout(seed, B=1, T=10)
    rollout["valid"][0] = [True] * 4 + [False] + [True] * 5
    rollout["discounts"][0] = 0.9  # a time limit at row 3: the worst case, since the discount does not cut
    changed = {name: x.copy() for name, x in rollout.items()}
    changed["rewards"][0, 4:] += 100
    changed["values"][0, 5:] -= 50
    for function, more in (
        (losses.generalized_advantages, {"gae_lambda": 0.95}),
        (lambda **a: losses.vtrace(**a).value_errors, {"importance_weights": jnp.ones((1, 10)), "clip_rho": 1.0}),
        (lambda **a: losses.vtrace(**a).policy_advantages, {"importance_weights": jnp.ones((1, 10)), "clip_rho": 1.0}),
    ):
        a, b = function(**float32(rollout), **more), function(**float32(changed), **more)
        np.testing.assert_array_equal(a[0, :4], b[0, :4])
        assert a[0, 4] == 0
        assert not np.array_equal(a[0, 5:], b[0, 5:])  # the control: the change is seen where it should be


def test_a_time_limit_bootstraps_and_a_game_end_does_not():
    values, rewards, valid = jnp.array([[0.0, 10.0, 5.0]]), jnp.array([[1.0, 0.0]]), jnp.array([[True, False]])
    for discount, expected in ((0.5, 6.0), (0.0, 1.0)):
        advantages = losses.generalized_advantages(values, rewards, jnp.array([[discount, 0.5]]), valid, gae_lambda=1.0)
        assert advantages[0, 0] == expected


def test_impala_loss_by_hand():
    """Uniform over 2 actions: log pi = -ln 2 = -0.693147, entropy 0.693147 a row; the second row is not valid."""
    targets = losses.ImpalaTargets(value_errors=jnp.array([[2.0, 9.0]]), policy_advantages=jnp.array([[3.0, 9.0]]))
    loss, parts = losses.impala_loss(
        jnp.zeros((1, 2, 2)),
        jnp.array([[0, 1]]),
        targets,
        jnp.array([[True, False]]),
        entropy_coefficient=0.01,
        value_coefficient=0.5,
    )
    np.testing.assert_allclose(parts["policy_loss"], 3 * 0.69314718, rtol=1e-6)
    np.testing.assert_allclose(parts["value_loss"], 2.0)
    np.testing.assert_allclose(parts["entropy"], 0.69314718, rtol=1e-6)
    np.testing.assert_allclose(loss, 2.0794415 + 0.5 * 2.0 - 0.01 * 0.69314718, rtol=1e-6)


def test_ppo_loss_by_hand():
    """Ratios 1.5 and 0.5, clip 0.1: max side min(1.5 * 2, 1.1 * 2) = 2.2; min side min(0.5 * -1, 0.9 * -1) = -0.9.

    The third row would add -7 and is not valid. Value loss: 0.5 (1^2 + 2^2) = 2.5.
    """
    logits = jnp.zeros((3, 2))
    behaviour = jnp.log(jnp.array([0.5 / 1.5, 0.5 / 0.5, 0.5]))
    loss, parts = losses.ppo_loss(
        logits,
        values=jnp.array([1.0, 2.0, 3.0]),
        actions=jnp.array([0, 1, 0]),
        behaviour_log_probabilities=jnp.array([behaviour[0], jnp.log(1.0), behaviour[2]]),
        advantages=jnp.array([2.0, -1.0, 7.0]),
        value_targets=jnp.zeros(3),
        valid=jnp.array([True, True, False]),
        clip_epsilon=0.1,
        entropy_coefficient=0.0,
        value_coefficient=1.0,
    )
    np.testing.assert_allclose(parts["policy_loss"], -(2.2 - 0.9), rtol=1e-6)
    np.testing.assert_allclose(parts["value_loss"], 2.5)
    np.testing.assert_allclose(loss, -1.3 + 2.5, rtol=1e-6)


def test_gradients_reach_logits_and_values_only():
    """V-trace's targets are constants: the gradient of the value loss with regard to V(x_0) is -(v_0 - V_0)."""

    def value_loss(values):
        targets = losses.vtrace(
            values,
            jnp.array([[1.0, 2.0]]),
            jnp.array([[0.5, 0.5]]),
            jnp.array([[2.0, 0.5]]),
            jnp.array([[True, True]]),
            clip_rho=1.0,
        )
        return 0.5 * jnp.sum(targets.value_errors**2)

    np.testing.assert_array_equal(jax.grad(value_loss)(jnp.array([[1.0, 2.0, 4.0]])), [[-1.5, -1.0, 0.0]])
